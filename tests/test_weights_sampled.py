"""What a sample of the weights in a folder tells, without reading all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from llm_help import chatting, make_network, save
from mempo_agents.models.sglang import SGLang
from mempo_agents.models.weights import sampled
from mempo_env.errors import ConfigError


def fingerprint(folder: Path) -> str:
    return SGLang(model=str(folder), url="http://h:1").fingerprint


def test_a_network_that_was_trained_on_has_another_fingerprint(tmp_path: Path) -> None:
    """Equal config and shapes: both had the same one, so their runs could be gone on with and compared."""
    network, folders = (
        make_network(chatting()),
        [tmp_path / which / "tiny" for which in ("first", "copy", "on")],
    )
    for folder in folders[:2]:
        save(folder, network, chatting())
    optimiser = torch.optim.SGD(network.parameters(), lr=1e-3)
    network(torch.tensor([[1, 2, 3, 4]]), labels=torch.tensor([[1, 2, 3, 4]])).loss.backward()
    optimiser.step()
    save(folders[2], network, chatting())
    first, copy, on = map(fingerprint, folders)
    assert first == copy != on


def test_how_tensors_are_spread_over_files_has_no_part_in_it(tmp_path: Path) -> None:
    tensors = {name: np.arange(size, dtype=np.float32) for name, size in (("a", 5), ("b", 900), ("c", 0))}
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
    save_file(tensors, tmp_path / "one" / "model.safetensors", metadata={"format": "pt"})
    for name in tensors:
        save_file({name: tensors[name]}, tmp_path / "two" / f"{name}.safetensors")
    assert sampled(tmp_path / "one") == sampled(tmp_path / "two")


@pytest.mark.parametrize(
    "other",
    [
        {"a": np.zeros(1000, np.float32)},
        {"a": np.arange(1000, dtype=np.float32).reshape(10, 100)},
        {"a": np.arange(1000, dtype=np.float32).view(np.int32)},
        {"b": np.arange(1000, dtype=np.float32)},
        {"a": np.append(np.arange(999, dtype=np.float32), np.float32(1))},
    ],
)
def test_other_values_types_shapes_and_names_are_seen(other: dict[str, Any], tmp_path: Path) -> None:
    found = []
    for name, tensors in (("one", {"a": np.arange(1000, dtype=np.float32)}), ("other", other)):
        (tmp_path / name).mkdir()
        save_file(tensors, tmp_path / name / "model.safetensors")
        found.append(sampled(tmp_path / name))
    assert found[0] != found[1]


def test_a_file_that_was_cut_is_refused(tmp_path: Path) -> None:
    save_file({"a": np.zeros(1000, np.float32)}, tmp_path / "model.safetensors")
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[:-9])
    with pytest.raises(ConfigError, match="wanted whole safetensors"):
        sampled(tmp_path)
