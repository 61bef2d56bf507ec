"""A model as a folder that transformers and servers load."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from mempo_agents.models.network import Loaded
from mempo_env.errors import ConfigError
from mempo_env.files import atomic_folder
from mempo_trainers.checkpoint import os_errors
from mempo_trainers.policies.huggingface.adapter import merged


def save_folder(folder: Path, loaded: Loaded, dtype: torch.dtype) -> None:
    """Write a model and its tokenizer as a new folder, adapters merged, whole or not at all.

    Raises:
        ConfigError: if there is something in that place.
        OSError: if it can't be written.
    """
    if folder.exists():
        raise ConfigError(f"{folder}: wanted a new folder for a model, found something there: choose another")
    with atomic_folder(folder) as draft, os_errors(), _without_bars():
        loaded.network.save_pretrained(draft, state_dict=merged(loaded.network, dtype))
        loaded.tokenizer.save_pretrained(draft)
        config = draft / "config.json"  # tells the dtype in memory, not that of the file
        told = json.loads(config.read_bytes()) | {"dtype": str(dtype).removeprefix("torch.")}
        config.write_text(json.dumps(told, indent=2, sort_keys=True) + "\n")


@contextmanager
def _without_bars() -> Iterator[None]:
    """No progress bars of transformers: a model may be saved in every step."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
