"""A state of training comes back from its file as it went in, and no other file is taken for one."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from mempo_trainers import checkpoint
from train_help import disk_of

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool)
PLAIN = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    seed = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    values = torch.rand(shape, generator=seed, dtype=torch.float64) * 100
    return values.to(draw(st.sampled_from(DTYPES))).movedim(0, -1) if shape else values


STATES = st.recursive(
    PLAIN | st.text() | tensors(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=4) | st.integers(0, 9), inner, max_size=3)
    ),
    max_leaves=12,
)


def same(one: object, other: object) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        alike = isinstance(other, dict) and list(one) == list(other)
        return alike and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return isinstance(other, list) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


@given(st.dictionaries(st.text(max_size=4) | st.integers(0, 9), STATES, max_size=4))
@settings(deadline=None, max_examples=60)
def test_a_state_comes_back_as_it_went_in(tmp_path_factory: pytest.TempPathFactory, state: dict) -> None:
    file = tmp_path_factory.mktemp("states") / "state.safetensors"
    checkpoint.write(file, state)
    assert same(checkpoint.read(file), state)


def test_an_optimiser_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    def steps(layer: torch.nn.Linear, adam: torch.optim.Optimizer, number: int) -> None:
        for step in range(number):
            layer(torch.full((2, 3), step + 0.5)).square().sum().backward()
            adam.step()
            adam.zero_grad()

    torch.manual_seed(0)
    layer, other = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    adam, again = (torch.optim.AdamW(each.parameters(), lr=0.01) for each in (layer, other))
    steps(layer, adam, 3)
    checkpoint.write(tmp_path / "x", {"layer": layer.state_dict(), "adam": adam.state_dict()})
    state = checkpoint.read(tmp_path / "x")
    other.load_state_dict(state["layer"])
    again.load_state_dict(state["adam"])
    steps(layer, adam, 3)
    steps(other, again, 3)
    assert torch.equal(layer.weight, other.weight) and torch.equal(layer.bias, other.bias)


def test_shared_memory_is_written_once(tmp_path: Path) -> None:
    tied = torch.rand(1000)
    checkpoint.write(tmp_path / "one", {"a": tied})
    checkpoint.write(tmp_path / "two", {"a": tied, "b": tied})
    one, two = ((tmp_path / name).stat().st_size for name in ("one", "two"))
    assert two < one + 200
    assert same(checkpoint.read(tmp_path / "two"), {"a": tied, "b": tied})


def test_each_damaged_byte_is_found(tmp_path: Path) -> None:
    file = tmp_path / "x"
    checkpoint.write(file, {"a": torch.arange(8.0)})
    whole = file.read_bytes()
    for place in range(len(whole)):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with suppress(ValueError):
            assert same(checkpoint.read(file), {"a": torch.arange(8.0)}), place  # a byte that says nothing


def test_a_file_of_safetensors_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    save_file({"weight": torch.zeros(2)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="no checkpoint: KeyError"):
        checkpoint.read(tmp_path / "model.safetensors")


KILLED = """
import os, signal, sys
from pathlib import Path
import torch
from mempo_trainers import checkpoint

def half(tensors, name, header):  # writes beside its name first, as safetensors does from 0.8 on
    (Path(name).parent / ".tmp7Xq2aZ").write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)

checkpoint.save_file = half
checkpoint.write(Path(sys.argv[1]), {"a": torch.zeros(2)})
"""


def test_a_process_killed_while_it_writes_leaves_nothing_after_the_next(tmp_path: Path) -> None:
    file = tmp_path / "x"
    killed = subprocess.run([sys.executable, "-c", KILLED, file])
    assert killed.returncode == -signal.SIGKILL and not file.exists()
    checkpoint.write(file, {"a": torch.zeros(2)})
    assert list(tmp_path.iterdir()) == [file]


def test_whom_the_umask_lets_reads_it(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        checkpoint.write(tmp_path / "x", {"a": torch.zeros(2)})
    finally:
        os.umask(before)
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o640


def test_a_full_disk_is_an_error_of_the_system_and_leaves_nothing(tmp_path: Path) -> None:
    with disk_of(1_000), pytest.raises(OSError, match="too large") as caught:
        checkpoint.write(tmp_path / "x", {"a": torch.zeros(10_000)})
    assert caught.value.errno == errno.EFBIG and caught.value.filename == str(tmp_path / "x")
    assert not list(tmp_path.iterdir())


def test_what_is_neither_tensor_nor_plain_is_refused_and_nothing_written(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="got set"):
        checkpoint.write(tmp_path / "x", {"a": {1, 2}})
    assert not list(tmp_path.iterdir())
