"""A sweep as curves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mempo_benchmarks.memory.sweep import IN_TOKENS, Cell, swept, telling
from mempo_env.errors import MissingExtra
from mempo_env.files import atomic_file
from mempo_env.memory.simulator import TOO_MANY_MERGES

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555")
"""Colours that the colour-blind can tell apart (Okabe and Ito)."""


WIDE = 3
"""Panels beside one another at most."""

WARNED = f"dashed: warning from {TOO_MANY_MERGES:.0%} on"


def plot(cells: Sequence[Cell], file: Path) -> None:
    """A panel for each measure over the first axis swept, a line for each value of the second.

    There is a block of panels for each combination of the values of further axes. A dashed line shows the
    share of merged or refused writes from which on practice doubts the threshold.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("matplotlib", "bench") from None
    names = sorted(swept(cells), key=lambda name: name == "agent")  # agents have no order along an axis
    x, *others = names or [next(iter(cells[0].settings))]
    line, further = (others[0], others[1:]) if others else (None, [])
    rows: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in cells:
        rows.setdefault(tuple(cell.settings[name] for name in further), []).append(cell)
    measures = telling(cells)
    wide = min(len(measures), WIDE)
    high = -(-len(measures) // wide)  # of a block
    size = 2.9 * wide, 2.6 * high * len(rows) + 0.6
    figure = Figure(figsize=size, dpi=130, layout="constrained")
    panels = figure.subplots(high * len(rows), wide, squeeze=False).reshape(len(rows), -1)
    for block, (values, those) in zip(panels, rows.items(), strict=True):
        for axis, (measure, name) in zip(block, measures.items(), strict=False):
            _panel(axis, those, measure, x, line)
            axis.set(title=name, xlabel=x.replace("_", " "))
        for axis in block[::wide]:
            axis.set_ylabel("\n".join(map(_named, further, values)))
        for axis in block[len(measures) :]:
            axis.remove()
    for axes, measure in zip(panels.T, measures, strict=False):
        top = max(axis.dataLim.y1 for axis in axes)
        for axis in axes:
            axis.set_ylim(*((0, 1.05 * top or 1) if measure in IN_TOKENS else (-0.03, 1.03)))
    if line:
        handles, labels = panels[0][0].get_legend_handles_labels()
        title = line.replace("_", " ")
        figure.legend(
            handles, labels, title=title, loc="outside lower center", ncols=len(labels), frameon=False
        )
    with atomic_file(file) as out:
        figure.savefig(out, format="png")


def _named(name: str, value: Any) -> str:
    return f"{name.replace('_', ' ')} {value}"


def _panel(axis: Any, cells: Sequence[Cell], measure: str, x: str, line: str | None) -> None:
    """The curves of one measure."""
    places = list(dict.fromkeys(cell.settings[x] for cell in cells))
    for i, value in enumerate(dict.fromkeys(cell.settings[line] if line else None for cell in cells)):
        those = [cell for cell in cells if line is None or cell.settings[line] == value]
        at = [places.index(cell.settings[x]) for cell in those]
        _curve(axis, at, those, measure, COLOURS[i % len(COLOURS)], value)
    if measure == "merges":
        axis.axhline(TOO_MANY_MERGES, color="#555555", lw=0.9, ls="--", gid=WARNED)
        axis.text(0.02, 0.97, WARNED, transform=axis.transAxes, va="top", color="#555555", fontsize=7.5)
    axis.set_xticks(range(len(places)), [f"{place}" for place in places])
    axis.spines[["top", "right"]].set_visible(False)


def _curve(axis: Any, at: list[int], cells: Sequence[Cell], measure: str, colour: str, label: Any) -> None:
    points = [
        (place, found) for place, cell in zip(at, cells, strict=True) if (found := cell.interval(measure))
    ]
    places = [place for place, _ in points]
    axis.plot(
        places, [found.value for _, found in points], "o-", color=colour, lw=1.6, ms=4, label=str(label)
    )
    bounds = [(f.value if f.low is None else f.low, f.value if f.high is None else f.high) for _, f in points]
    if bounds:
        axis.fill_between(places, *zip(*bounds, strict=True), color=colour, alpha=0.15, lw=0)
