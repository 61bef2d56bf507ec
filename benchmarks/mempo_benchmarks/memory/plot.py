"""A sweep as curves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mempo_benchmarks.memory.sweep import IN_TOKENS, Cell, swept, telling
from mempo_env.errors import MissingExtra
from mempo_env.files import atomic_file

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555")
"""Colours that the colour-blind can tell apart (Okabe and Ito)."""


def plot(cells: Sequence[Cell], file: Path) -> None:
    """A panel for each measure over the first axis swept, a line for each value of the second.

    There is a row of panels for each combination of the values of further axes.
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
    figure = Figure(figsize=(2.9 * len(measures), 2.6 * len(rows) + 0.6), dpi=130, layout="constrained")
    panels = figure.subplots(len(rows), len(measures), squeeze=False, sharey="col")
    for row, (values, those) in zip(panels, rows.items(), strict=True):
        for axis, (measure, name) in zip(row, measures.items(), strict=True):
            _panel(axis, those, measure, x, line)
            axis.set(title=name, xlabel=x.replace("_", " "))
        row[0].set_ylabel("\n".join(_named(name, value) for name, value in zip(further, values, strict=True)))
    for axis, measure in zip(panels[0], measures, strict=True):
        axis.set_ylim(*((0, None) if measure in IN_TOKENS else (-0.03, 1.03)))
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
