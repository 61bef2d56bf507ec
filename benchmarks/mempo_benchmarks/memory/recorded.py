"""Streams of the operations that agents did in a run of the benchmark."""

from __future__ import annotations

from pathlib import Path

from mempo_benchmarks.results import FullRow, read_plan, read_rows
from mempo_env.errors import DataError
from mempo_env.memory.streams import Stream, recorded


def streams_of(run: Path) -> tuple[Stream, ...]:
    """A stream for each episode of a run that was played with a memory bank and did something to it."""
    plan = read_plan(run)
    episodes = (row.episode for row in read_rows(run, plan, FullRow))
    streams = [recorded(e) for e in episodes if e.settings.get("memory") == "bank"]
    found = tuple(stream for stream in streams if stream)
    if not found:
        raise DataError(f"{run}: wanted episodes with operations on a memory bank, there are none")
    return found
