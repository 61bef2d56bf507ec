"""Progress of long work: a bar with rate and time left on a terminal, a plain line now and then in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from mempo_env.console import console


class Advance(Protocol):
    """Says that so much more is done, and what there is to tell of it."""

    def __call__(self, amount: int, told: str = "", /) -> None:
        """Show it."""
        ...


LOG_INTERVAL_S = 10.0
QUIET_S = 1.0
"""Work that is done sooner leaves no line in a log."""


@contextmanager
def progress(label: str, total: int | None, done: int = 0, unit: str = "items") -> Iterator[Advance]:
    """Show progress on stderr while the block runs; call the yielded function with each amount done.

    Args:
        label: What is being done.
        total: Amount of work, `None` if it is not known.
        done: Amount that an earlier run finished; it does not count for the rate.
        unit: What is counted.
    """
    if sys.stderr.isatty():
        yield from _bar(label, total, done, unit)
    else:
        yield from _lines(label, total, done, unit)


def _bar(label: str, total: int | None, done: int, unit: str) -> Iterator[Advance]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}", markup=False),
        TimeRemainingColumn(),
        TextColumn("{task.fields[told]}", markup=False),
    )
    start, worked = time.monotonic(), 0
    with Progress(*columns, console=console(stderr=True)) as bar:
        task = bar.add_task(label, total=total, completed=done, rate="", told="")

        def advance(amount: int, told: str = "", /) -> None:
            nonlocal worked
            worked += amount
            rate = worked / max(time.monotonic() - start, 1e-9)
            bar.update(task, advance=amount, rate=_pace(rate), told=told)

        yield advance


def _pace(rate: float) -> str:
    """How many a second, or how long one takes."""
    return f"{rate:,.0f}/s" if rate >= 10 or rate == 0 else f"{1 / rate:,.2g} s each"


def _lines(label: str, total: int | None, done: int, unit: str) -> Iterator[Advance]:
    start = last = time.monotonic()
    worked, last_told = 0, ""

    def line() -> str:
        elapsed = max(time.monotonic() - start, 1e-9)
        rate = worked / elapsed
        text = f"{label}: {done + worked:,}"
        if total is not None:
            text += f" of {total:,}"
        text += f" {unit}, {_pace(rate)}"
        if total is not None and rate > 0 and done + worked < total:
            text += f", {(total - done - worked) / rate:,.0f} s left"
        return f"{text}; {last_told}" if last_told else text

    def advance(amount: int, told: str = "", /) -> None:
        nonlocal worked, last, last_told
        worked, last_told = worked + amount, told
        if time.monotonic() - last >= LOG_INTERVAL_S:
            last = time.monotonic()
            print(line(), file=sys.stderr, flush=True)  # noqa: T201

    yield advance
    if time.monotonic() - start >= QUIET_S:
        print(line(), file=sys.stderr, flush=True)  # noqa: T201
