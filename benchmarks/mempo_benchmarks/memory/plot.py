"""A sweep as curves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mempo_benchmarks.memory.sweep import AXES, MEASURES, Cell
from mempo_env.errors import MissingExtra
from mempo_env.files import atomic_file

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555")
"""Colours that the colour-blind can tell apart (Okabe and Ito)."""


def swept(cells: Sequence[Cell]) -> list[str]:
    """The axes that have more than one value."""
    given = [name for name in AXES if name in cells[0].settings]
    return [name for name in given if len({cell.settings[name] for cell in cells}) > 1]


def plot(cells: Sequence[Cell], file: Path) -> str:
    """A panel for each measure over the first axis swept, a line for each value of the second.

    Further axes stay at their first value; what is shown is returned in words.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("matplotlib", "bench") from None
    x, *others = swept(cells) or [next(iter(cells[0].settings))]
    line = others[0] if others else None
    fixed = {name: cells[0].settings[name] for name in others[1:]}
    shown = [cell for cell in cells if all(cell.settings[name] == value for name, value in fixed.items())]
    figure = Figure(figsize=(2.9 * len(MEASURES), 3.2), dpi=130)
    axes = figure.subplots(1, len(MEASURES), squeeze=False).ravel()
    places = list(dict.fromkeys(cell.settings[x] for cell in shown))
    for axis, (measure, name) in zip(axes, MEASURES.items(), strict=True):
        lines = list(dict.fromkeys(cell.settings[line] if line else None for cell in shown))
        for i, value in enumerate(lines):
            those = [cell for cell in shown if line is None or cell.settings[line] == value]
            _curve(
                axis,
                [places.index(c.settings[x]) for c in those],
                those,
                measure,
                COLOURS[i % len(COLOURS)],
                value,
            )
        axis.set_xticks(range(len(places)), [f"{place}" for place in places])
        axis.set(title=name, xlabel=x.replace("_", " "))
        axis.set_ylim(*((0, None) if measure == "tokens" else (-0.03, 1.03)))
        axis.spines[["top", "right"]].set_visible(False)
    told = ", ".join(f"{name} {value}" for name, value in fixed.items())
    if line:
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(
            handles,
            labels,
            title=line.replace("_", " "),
            loc="lower center",
            ncols=len(labels),
            frameon=False,
        )
    figure.tight_layout(rect=(0, 0.17 if line else 0, 1, 1))
    with atomic_file(file) as out:
        figure.savefig(out, format="png")
    return told


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
