"""The weights in a folder of a Hugging Face model: which there are, and whether they are those of another."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TypeAlias

from mempo_env.errors import ConfigError
from mempo_env.files import digest

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]
"""Name: shape of a tensor."""

_STRETCHES, _STRETCH = 4, 256  # bytes


def weight_files(folder: Path) -> list[Path]:
    """The safetensors in a folder; a ConfigError if there are none."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ConfigError(f"{folder}: wanted a folder with *.safetensors, found none: save the model there")
    return files


def shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Name and shape of each tensor in a folder's safetensors, none of which is read.

    Raises:
        ConfigError: if there are none, or a file is cut off or something else.
    """
    from safetensors import SafetensorError, safe_open

    found = dict[str, tuple[int, ...]]()
    for file in weight_files(folder):
        try:
            with safe_open(file, framework="numpy") as tensors:
                found |= {name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise ConfigError(
                f"{file}: wanted whole safetensors, got something else ({error}): save the model again"
            ) from None
    return found


def sampled(folder: Path) -> dict[str, tuple[str, ...]]:
    """Of each tensor in a folder's safetensors: type, shape, and a digest of four stretches of its bytes.

    Training changes each tensor that it changes all over, so the stretches tell two such networks apart
    without reading gigabytes; they do not tell whether all else is equal. How the tensors are spread over
    files has no part in it.

    Raises:
        ConfigError: as `shapes`.
    """
    shapes(folder)  # the files are whole
    found: dict[str, tuple[str, ...]] = {}
    for file in weight_files(folder):
        with file.open("rb") as data:
            size = int.from_bytes(data.read(8), "little")
            header = json.loads(data.read(size))
            header.pop("__metadata__", None)
            for name, told in header.items():
                start, end = told["data_offsets"]
                parts = []
                for i in range(_STRETCHES):
                    data.seek(8 + size + start + max(0, end - start - _STRETCH) * i // (_STRETCHES - 1))
                    parts.append(data.read(min(_STRETCH, end - start)))
                found[name] = (told["dtype"], str(told["shape"]), digest(*parts))
    return found


def check_same(folder: Path, given: Shapes, wanted: Shapes, spared: Collection[str] = ()) -> None:
    """Refuse weights that differ from those wanted by a name or a shape.

    Args:
        folder: Where they lie, for the message.
        given: What is there.
        wanted: What should be.
        spared: Names that may be missing.

    Raises:
        ConfigError: with the first that differs, and how many do.
    """
    faults = [
        *(f"{name} is none of its" for name in given.keys() - wanted.keys()),
        *(f"{name} is missing" for name in wanted.keys() - given.keys() - set(spared)),
        *(
            f"{name} is {given[name]} instead of {wanted[name]}"
            for name in given.keys() & wanted.keys()
            if given[name] != wanted[name]
        ),
    ]
    if faults:
        more = f", and {len(faults) - 1:,} more" if len(faults) > 1 else ""
        raise ConfigError(
            f"{folder}: wanted the weights of the same network, got others ({min(faults)}{more}): give the "
            "folder of a model of its kind and size"
        )
