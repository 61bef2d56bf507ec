"""A state of training as one file of safetensors: tensors, and all else as JSON in its header; no pickle."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from mempo_env.files import BAD_JSON, atomic_named

_REST, _SUM = "state", "sum"
"""The header's keys: all that is no tensor, and the sum of its bytes."""


def write(file: Path, state: Mapping[str, Any]) -> None:
    """Write nested mappings, lists and tuples of tensors and plain values; whole, or not at all.

    Tensors that share memory, as tied weights do, are written once. Tuples come back as lists.

    Raises:
        OSError: with the file's name, if it can't be written.
    """
    tensors: dict[str, torch.Tensor] = {}
    rest = msgspec.json.encode(_packed(state, tensors, {}))
    header = {_REST: rest.decode(), _SUM: str(zlib.crc32(rest))}
    with atomic_named(file) as draft, os_errors():
        save_file(tensors, draft, header)


def read(file: Path) -> dict[str, Any]:
    """What `write` wrote, on the CPU.

    Raises:
        ValueError: if it is no such file, or is damaged, by what is wrong.
    """
    try:
        with safe_open(file, "pt") as held:
            header = held.metadata() or {}
            if str(zlib.crc32(header[_REST].encode())) != header[_SUM]:
                raise ValueError("its header is damaged")
            rest = msgspec.json.decode(header[_REST])
            found = _unpacked(rest, {name: held.get_tensor(name) for name in held.keys()})  # noqa: SIM118
    except (SafetensorError, KeyError, TypeError, *BAD_JSON) as error:
        raise ValueError(f"no checkpoint: {type(error).__name__}: {str(error).splitlines()[0]}") from None
    if not isinstance(found, dict):
        raise ValueError("no checkpoint: its header holds no mapping")
    return found


def finite(state: Any) -> bool:
    """Whether all tensors of a state are."""
    if isinstance(state, torch.Tensor):
        return bool(state.isfinite().all())
    parts = state.values() if isinstance(state, dict) else state if isinstance(state, (list, tuple)) else ()
    return all(map(finite, parts))


def _packed(value: Any, tensors: dict[str, torch.Tensor], names: dict[Any, str]) -> Any:
    """A value as JSON in which tensors are names, with sums of their bytes; adds them to `tensors`.

    JSON knows no keys but texts and no tuples, so a mapping is {"d": pairs} and a list {"l": items}.
    """
    if isinstance(value, torch.Tensor):
        tensor = value.detach().cpu().contiguous()
        place = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape)) if tensor.numel() else object()
        name = names.setdefault(place, f"{len(names):06d}")
        tensors.setdefault(name, tensor)
        return {"t": name, "sum": _sum(tensor)}
    if isinstance(value, Mapping):
        return {"d": [[key, _packed(item, tensors, names)] for key, item in value.items()]}
    if isinstance(value, (list, tuple)):
        return {"l": [_packed(item, tensors, names) for item in value]}
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    raise TypeError(f"wanted tensors, numbers, texts, lists and mappings, got {type(value).__name__}")


def _unpacked(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    if "d" in value:
        return {key: _unpacked(item, tensors) for key, item in value["d"]}
    if "l" in value:
        return [_unpacked(item, tensors) for item in value["l"]]
    tensor = tensors[value["t"]]
    if _sum(tensor) != value["sum"]:
        raise ValueError(f"tensor {value['t']} is damaged")
    return tensor


def _sum(tensor: torch.Tensor) -> int:
    """CRC-32 of a tensor's bytes."""
    return zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data)


@contextmanager
def os_errors() -> Iterator[None]:
    """What the operating system says of a file that can't be written, which safetensors tells in words alone.

    Raises:
        OSError: in place of a SafetensorError.
    """
    try:
        yield
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        raise OSError(*([int(number[1])] if number else []), str(error)) from None
