"""Streams of the operations that agents did in a run of the benchmark."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from mempo_benchmarks.results import FullRow, read_plan, read_rows
from mempo_env.errors import DataError
from mempo_env.memory.streams import Stream, recorded


def streams_of(run: Path) -> dict[str, tuple[Stream, ...]]:
    """By agent, a stream for each episode of a run that was played with a bank and did something to it."""
    found: dict[str, list[Stream]] = defaultdict(list)
    for row in read_rows(run, read_plan(run), FullRow):
        if row.episode.settings.get("memory") == "bank" and (stream := recorded(row.episode)):
            found[row.agent].append(stream)
    if not found:
        raise DataError(f"{run}: wanted episodes with operations on a memory bank, there are none")
    return {agent: tuple(streams) for agent, streams in found.items()}
