"""How fast banks are replayed, in processor time: `python -m mempo_benchmarks.speed.memory`.

A stream is replayed on a full bank of each size, without its first part, which fills the bank.
"""

from __future__ import annotations

import os
import sys

for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import time  # noqa: E402

from mempo_env.memory.bank import BankConfig  # noqa: E402
from mempo_env.memory.simulator import replay, vectors_of  # noqa: E402
from mempo_env.memory.streams import Stream, StreamSpec, made_up  # noqa: E402

SIZES = (100, 1_000, 10_000)
MORE = 10_000
"""Writes after those that fill the bank."""


def stream_for(size: int, seed: int = 0) -> tuple[Stream, int]:
    """A stream whose first part fills a bank of a size, and where that part ends."""
    stream = made_up(StreamSpec(writes=2 * size + MORE, reads=0.3, repeats=0.1, drift=0.05), seed)
    filled = next(i for i, event in enumerate(stream) if event.round > 2 * size)
    return stream, filled


def rate(size: int) -> float:
    """Operations a second of processor time on a full bank."""
    stream, filled = stream_for(size)
    config = BankConfig(capacity=size, duplicate=0.97)
    embed = vectors_of([stream], config.embed)
    seconds = []
    for part in (stream[:filled], stream):
        began = time.process_time()
        found = replay(part, config, embed=embed)
        seconds.append(time.process_time() - began)
    assert found.evictions > MORE // 2, "the bank was full"
    return (len(stream) - filled) / (seconds[1] - seconds[0])


if __name__ == "__main__":
    for size in SIZES:
        sys.stdout.write(f"{size:>6,} entries: {rate(size):>8,.0f} operations a second\n")
