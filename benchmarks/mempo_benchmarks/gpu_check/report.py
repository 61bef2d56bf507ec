"""What was found: a line a check as it is found, and all of it as JSON."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import msgspec
from msgspec import Struct

from mempo_env.files import atomic_file


class Row(Struct, frozen=True):
    """One finding.

    Attributes:
        part: Of which part.
        name: What it is, with its unit.
        value: The figure, or words.
        bound: What it must be, in words; "" for what is only told.
        ok: Whether it is.
    """

    part: str
    name: str
    value: float | str
    bound: str
    ok: bool


class Report(Struct, frozen=True, eq=False):
    """All findings so far; each is printed when it is told."""

    rows: list[Row] = []

    def tell(
        self, part: str, name: str, value: float | str, most: float | None = None, least: float | None = None
    ) -> None:
        """Add a finding: what is only told, or a number that must be at most, or at least, another."""
        bounds = {"at most": most, "at least": least}
        bound = ", ".join(f"{word} {number:g}" for word, number in bounds.items() if number is not None)
        number = value if isinstance(value, (int, float)) else 0.0
        ok = (most is None or number <= most) and (least is None or number >= least)  # nan is neither
        self.add(Row(part, name, value, bound, ok))

    def fail(self, part: str, name: str, told: str, wanted: str) -> None:
        """Add what must not be."""
        self.add(Row(part, name, told, wanted, False))

    def add(self, row: Row) -> None:
        """Add and print."""
        self.rows.append(row)
        value = f"{row.value:.4g}" if isinstance(row.value, float) else str(row.value)
        verdict = f" ({row.bound}) {'ok' if row.ok else 'FAILED'}" if row.bound else ""
        sys.stdout.write(f"{row.part}, {row.name}: {value}{verdict}\n")
        sys.stdout.flush()

    def write(self, file: Path) -> None:
        """Write all of it as JSON."""
        with atomic_file(file) as out:
            out.write(msgspec.json.format(msgspec.json.encode(self.rows), indent=1))


class Late(Exception):
    """A part took longer than it may."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Interrupt what takes longer, by `Late`; of the main thread only."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Late(f"{seconds:.0f} s were over")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def guarded(report: Report, name: str, seconds: float, part: Callable[[], None]) -> None:
    """Run a part for so long at most; whatever it raises is a failure, and the next parts go on."""
    began = time.perf_counter()
    if seconds <= 0:
        report.fail(name, "left out", "no time is left", "in time")
        return
    try:
        with limited(seconds):
            part()
    except Exception as error:
        report.fail(name, "stopped", f"{type(error).__name__}: {' '.join(str(error).split())[:500]}", "none")
    report.tell(name, "seconds", time.perf_counter() - began)
