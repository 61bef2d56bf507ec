"""What all scorers do with a causal language model of transformers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from mempo_trainers.credit.data import Floats, Ints
from mempo_trainers.scoring.base import Asked

Network: TypeAlias = Any
"""A causal language model of transformers, or of peft around one."""

_SOFTMAX_ROWS = 1_024
"""Rows of logits that are held in float32 at a time: a row of 150,000 tokens is 600 kB."""


def text_config(network: Network) -> Any:
    """The configuration of the language model in it."""
    return network.config.get_text_config()


def positions(network: Network) -> int | None:
    """Tokens that the network can read at most; None where it has no such limit."""
    most = getattr(text_config(network), "max_position_embeddings", None)
    return None if most is None else int(most)


def rope_types(network: Network) -> set[str]:
    """The kinds of rotary embedding of its layers; empty where it has none."""
    held = getattr(text_config(network), "rope_parameters", None) or {}
    each = [held] if "rope_type" in held else [one for one in held.values() if isinstance(one, dict)]
    return {str(one.get("rope_type", "default")) for one in each}


def rope_changes(network: Network) -> bool:
    """Whether rotations depend on the longest text of a batch, so that texts must be read alone."""
    return any("dynamic" in kind or kind == "longrope" for kind in rope_types(network))


@contextmanager
def at_rest(network: Network) -> Iterator[None]:
    """No gradients and no dropout; afterwards each module trains that trained before."""
    training = [module for module in network.modules() if module.training]
    network.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


def logprobs_at(logits_BCV: Tensor, rows_M: Ints, columns_M: Ints, asked: Sequence[Asked]) -> list[Tensor]:
    """Log-probs of the asked answers' tokens, a vector of float32 for each.

    Args:
        logits_BCV: What a network said.
        rows_M: For each token of each answer, one answer after the other, where what was said before it is.
        columns_M: The same, along the second axis.
        asked: The answers.
    """
    device = logits_BCV.device
    ids_M = np.concatenate([one.answer for one in asked])
    index = torch.from_numpy(np.stack([rows_M, columns_M, ids_M])).to(device)
    parts = []
    for rows, columns, ids in (part.unbind() for part in torch.split(index, _SOFTMAX_ROWS, dim=1)):
        logprobs = logits_BCV[rows, columns].float().log_softmax(-1)
        parts.append(logprobs.gather(1, ids[:, None])[:, 0])
    return list(torch.split(torch.cat(parts), [len(one.answer) for one in asked]))


def as_floats(logprobs: Sequence[Tensor]) -> list[Floats]:
    """Vectors of a network as arrays."""
    return [each.double().cpu().numpy() for each in logprobs]
