"""The tables of the speed comparison: medians with their range, and ratios within each repetition."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from msgspec import Struct


class Part(Struct, frozen=True):
    """One comparison.

    Attributes:
        title: What was done, and of what the seconds are.
        seconds: For each system, what one took in each repetition, in the order of the repetitions.
        ours: The systems to which all others are compared.
        aim: How fast they should be, in words.
    """

    title: str
    seconds: dict[str, list[float]]
    ours: tuple[str, ...]
    aim: str


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
    head = [
        part.title,
        "time",
        "least to greatest",
        "per second",
        *(f"{mine} is faster" for mine in part.ours),
    ]
    lines = [_line(head), _line(["---", *["---:"] * (len(head) - 1)])]
    for name, seconds in part.seconds.items():
        took = spread(seconds)
        cells = [name, _time(took.median), f"{_time(took.least)} to {_time(took.greatest)}"]
        cells.append(f"{1 / took.median:,.{0 if took.median < 0.1 else 1}f}")
        for mine in part.ours:
            times = ratio(part, mine, name)
            shown = f"{times.median:.2f} times ({times.least:.2f} to {times.greatest:.2f})"
            cells.append("" if mine == name else shown)
        lines.append(_line(cells))
    return "\n".join([*lines, "", f"Aim: {part.aim}."])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _time(seconds: float) -> str:
    """A time with three digits, in the unit that suits it."""
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"
