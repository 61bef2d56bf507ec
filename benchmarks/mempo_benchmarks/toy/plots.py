"""Pictures of what toy runs learned."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mempo_benchmarks.stats import Interval
from mempo_benchmarks.toy.sweep import SUCCESS, Course, Learned
from mempo_env.errors import MissingExtra
from mempo_env.files import atomic_file

COLOURS = {
    "mempo": "#0072b2",
    "grpo": "#555555",
    "spread": "#d55e00",
    "mempo_gain": "#009e73",
    "placebo": "#cc79a7",
    "grpo-em_mean": "#e69f00",
    "ppo-mempo": "#0072b2",
    "ppo-gae": "#555555",
    "ppo-gae-em_mean": "#e69f00",
}
"""Colours that the colour-blind can tell apart (Okabe and Ito)."""
COLUMNS = 3
"""Panels beside each other."""
ALONE = 6.0
"""Inches that a single panel is wide."""
LETTERS, KEY = 12, 6
"""Letters of a legend in an inch, and as how many its lines and spaces count."""
MARKS = {"mempo": "o", "grpo": "s", "spread": "^", "mempo_gain": "D"}


def curves(groups: Mapping[str, Mapping[str, Course]], file: Path) -> None:
    """Success while training against rollouts, a panel for each group, intervals as bands."""
    columns = min(len(groups), COLUMNS)
    rows = -(-len(groups) // columns)
    figure, axes = _figure(rows, columns, max(3.4 * columns, ALONE), 2.9 * rows + 0.4)
    for axis in axes[len(groups) :]:
        axis.set_visible(False)
    for axis, (title, results) in zip(axes, groups.items(), strict=False):
        for name, result in results.items():
            if not result.curve:
                continue
            low, high = zip(*map(_bounds, result.curve), strict=True)
            middle = [point.value for point in result.curve]
            (line,) = axis.plot(result.at, middle, color=COLOURS.get(name), label=name, lw=1.8)
            axis.fill_between(result.at, low, high, color=line.get_color(), alpha=0.15, lw=0)
        axis.axhline(SUCCESS, color="#999999", lw=0.8, ls=":")
        axis.set(title=title.replace("-", " "), xlabel="rollouts", ylim=(-0.03, 1.03))
        axis.xaxis.set_major_locator(_ticker().MaxNLocator(3))
    for axis in axes[::columns]:
        axis.set_ylabel("all objectives right")
    named = {
        label: handle
        for axis in axes
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.tight_layout()
    _legend(figure, named)
    _save(figure, file)


def dots(groups: Mapping[str, Sequence[Learned]], file: Path) -> None:
    """Success after training, a line for each task, a mark with its interval for each credit."""
    figure, (axis,) = _figure(1, 1, 8.5, 0.42 * len(groups) + 1.2)
    for line, results in enumerate(groups.values()):
        for place, result in enumerate(results):
            low, high = _bounds(result.success)
            y = line + 0.16 * (place - (len(results) - 1) / 2)
            axis.plot([low, high], [y, y], color=COLOURS[result.arm.name], lw=1.4)
            axis.plot(
                result.success.value,
                y,
                MARKS[result.arm.name],
                color=COLOURS[result.arm.name],
                ms=5,
                label=result.arm.name if line == 0 else None,
            )
        if line % 2:
            axis.axhspan(line - 0.5, line + 0.5, color="#000000", alpha=0.04, lw=0)
    axis.set_yticks(range(len(groups)), list(groups))
    axis.set(xlabel="all objectives right, new episodes", xlim=(-0.03, 1.03), ylim=(len(groups) - 0.5, -0.5))
    axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4, frameon=False)
    figure.tight_layout()
    _save(figure, file)


def _legend(figure: Any, named: Mapping[str, Any]) -> None:
    """Below all panels, in as many rows as it takes to be no wider than they are."""
    letters = int(figure.get_figwidth() * LETTERS)
    labels = [textwrap.fill(name, letters) for name in named]
    longest = max(len(line) for label in labels for line in label.splitlines())
    columns = max(1, min(-(-len(labels) // 2), letters // (longest + KEY)))
    figure.legend(
        named.values(), labels, loc="upper center", bbox_to_anchor=(0.5, 0), ncols=columns, frameon=False
    )


def _bounds(interval: Interval) -> tuple[float, float]:
    return (
        interval.value if interval.low is None else interval.low,
        interval.value if interval.high is None else interval.high,
    )


def _ticker() -> Any:
    from matplotlib import ticker

    return ticker


def _figure(rows: int, columns: int, width: float, height: float) -> tuple[Any, Any]:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("matplotlib", "bench") from None
    figure = Figure(figsize=(width, height), dpi=130)
    axes = figure.subplots(rows, columns, squeeze=False, sharey=True).ravel()
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _save(figure: Any, file: Path) -> None:
    with atomic_file(file) as out:
        figure.savefig(out, format="png", bbox_inches="tight")
