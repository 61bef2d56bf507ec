"""The tables of the speed comparison: medians with their range, and ratios within each repetition."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from msgspec import Struct


class Part(Struct, frozen=True):
    """One comparison.

    Attributes:
        title: What was done.
        unit: What one of it is, "episode" for example.
        seconds: For each system, what one took in each repetition, in the order of the repetitions.
        ours: The systems to which all others are compared.
        aims: What the issue aims at, in words.
    """

    title: str
    unit: str
    seconds: dict[str, list[float]]
    ours: tuple[str, ...]
    aims: str


class Spread(Struct, frozen=True):
    """Median, least and greatest of some repetitions."""

    median: float
    least: float
    greatest: float


def spread(values: Sequence[float]) -> Spread:
    """Median and range; at least one value."""
    return Spread(median(values), min(values), max(values))


def ratio(part: Part, mine: str, theirs: str) -> Spread:
    """How many times as fast as another system ours is, taken within each repetition."""
    pairs = zip(part.seconds[mine], part.seconds[theirs], strict=True)
    return spread([other / own for own, other in pairs])


def table(part: Part) -> str:
    """A part in Markdown."""
    head = [part.title, f"a {part.unit}", "(least to greatest)", f"{part.unit}s/s"]
    head += [f"{mine} is so many times as fast" for mine in part.ours]
    lines = [
        f"| {' | '.join(head)} |",
        f"|{'|'.join(['---'] + ['---:'] * (len(head) - 1))}|",
    ]
    for name, seconds in part.seconds.items():
        took = spread(seconds)
        cells = [
            name,
            _time(took.median),
            f"{_time(took.least)} to {_time(took.greatest)}",
            f"{1 / took.median:,.0f}" if took.median < 1 else f"{1 / took.median:.2f}",
        ]
        for mine in part.ours:
            times = ratio(part, mine, name)
            cells.append(
                "" if mine == name else f"{times.median:.2f} ({times.least:.2f} to {times.greatest:.2f})"
            )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"Aim: {part.aims}."])


def _time(seconds: float) -> str:
    """A time with three digits, in the unit that suits it."""
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"
