"""What lies in the folder of a training run, and how it is read."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from mempo_env import viewer
from mempo_env.errors import ResultsError
from mempo_env.files import BAD_JSON, atomic_file

SETTINGS, METRICS, CHECKPOINT = viewer.SETTINGS, "metrics.jsonl", "checkpoint.safetensors"
BENCH = "run.json"
"""What a run of another kind has, which compares agents; both in one folder would hide each other."""

RESULT = "result.json"
"""What the trained policy does on questions it has never seen; written by who trains it."""


def conclude(out: Path, result: Mapping[str, float]) -> None:
    """Write what an evaluation says to the run."""
    with atomic_file(out / RESULT) as file:
        file.write(msgspec.json.format(msgspec.json.encode(result)))


def read_settings(folder: Path) -> dict[str, Any]:
    """The settings that a run was begun with; ResultsError if there are none."""
    file = folder / SETTINGS
    if not file.is_file():
        raise ResultsError(
            f"{file}: wanted a training run, found none; make one: mempo train toy --out {folder}"
        )
    return as_object(str(file), file.read_bytes())


def read_result(folder: Path) -> dict[str, float]:
    """What the evaluation at the end of a run said; ResultsError if that can't be read."""
    return as_object(str(folder / RESULT), (folder / RESULT).read_bytes())


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The rows of a run's metrics, one a step."""
    return [msgspec.json.decode(line) for line in read_rows(folder, whole=True)]


def read_rows(folder: Path, *, whole: bool) -> list[bytes]:
    """The lines of a run's metrics; what a killed process left of one is left out.

    Raises:
        ResultsError: for a line that is no row of its step, by file and number; with `whole`, also if there
            is none at all.
    """
    file, rows = folder / METRICS, []
    with file.open("rb") if file.is_file() else io.BytesIO() as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                break
            step = as_object(f"{file}:{number}", line).get("step")
            if step != number:
                raise ResultsError(f"{file}:{number}: wanted the row of step {number}, got that of {step}")
            rows.append(line)
    if whole and not rows:
        raise ResultsError(f"{file}: wanted at least one row of metrics, found none")
    return rows


def begun(folder: Path) -> bool:
    """Whether a step of a run was ever finished."""
    return (folder / CHECKPOINT).exists() or bool(read_rows(folder, whole=False))


def as_object(place: str, text: bytes) -> dict[str, Any]:
    """A JSON object; a ResultsError by its place for anything else."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except BAD_JSON as error:
        raise ResultsError(f"{place}: {error}; was it edited by hand?") from None
