"""A lab as tables for the terminal, as one self-contained page, and as a plot."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from mempo_benchmarks.credit.reading import number, reading, span
from mempo_benchmarks.credit.results import FEW, LEAST, Lab, Stage
from mempo_benchmarks.credit.strips import Strips, settled
from mempo_benchmarks.report import page, table
from mempo_benchmarks.stats import Interval
from mempo_env.files import atomic_file

if TYPE_CHECKING:
    from rich.table import Table

COLUMNS = (
    ("rank", "rank correlation", "Spearman's rank correlation with the truth, over all operations."),
    ("within", "within questions", "The same within each question, averaged over questions."),
    ("gain", "above grpo", "Rank correlation minus that of grpo, paired."),
    (
        "wrong",
        "wrong sign",
        "Share of operations of known sign that get the other sign; 0 counts half, a coin has 0.5.",
    ),
    ("noise", "chance", "Share of its variance that is chance: the same operation in groups drawn anew."),
    (
        "gold",
        "gold fact",
        "Its advantage where a gold fact was kept minus where one was dropped, scaled to the truth.",
    ),
)
"""Field of a row, heading, meaning."""

METHOD = (
    "True advantage: the mean of R over forks after the operation minus that over as many forks after "
    "operations that the policy draws anew in the same state; R is the share of objectives answered "
    "rightly, undiscounted, and the policy plays on unchanged. An operation is the whole set of facts a "
    "round keeps; what an estimator says of it is its mean advantage over the segment's memory tokens. A "
    "pair of forks shares the environment's seed and the policy's random numbers of every round; pairs "
    "share nothing. Forks go where the spread is (Neyman, after a pilot). Intervals: 95 %, BCa bootstrap "
    "over questions. Scaled: by one factor a row, so that its standard deviation is that of the true "
    "advantages."
)


# --- The terminal -------------------------------------------------------------------------------------------


def tables(lab: Lab) -> list[Table | str]:
    """For each stage a line on the truth, the estimators, and their bias by round."""
    found: list[Table | str] = []
    for stage in lab.stages:
        found += [lead(stage), _estimators(stage), _bias(stage)]
    return found


def lead(stage: Stage) -> str:
    """A stage and its truth in a line."""
    low, high = stage.fork_range
    gold = "–" if stage.gold is None else span(stage.gold, 3, "+")
    return (
        f"{stage.name} ({stage.trained}) · em {number(stage.em, 2)}, success {number(stage.success, 2)} · "
        f"{stage.operations} operations, {stage.pairs:,} pairs of forks ({low} to {high} each "
        f"after the pilot; independent ones would have taken {number(stage.saved, 1)} times as many) · true "
        f"advantages: sd {number(stage.signal, 3)}, standard error {number(stage.se, 3)}, reliability "
        f"{number(stage.reliability[0], 2)} · a gold fact kept: {gold}"
    )


def _estimators(stage: Stage) -> Table:
    rows = [
        [row.name, *(_cell(getattr(row, key), *_style(key)) for key, _, _ in COLUMNS)] for row in stage.rows
    ]
    title = "Estimators against the truth"
    if stage.reliability[0] < LEAST:
        title += f" (no correlation: its reliability is {number(stage.reliability[0], 2)}, below {LEAST})"
    if len(set(stage.question)) < FEW:
        title += f" (fewer than {FEW} questions: the intervals are too narrow)"
    return table(title, ["estimator", *(label for _, label, _ in COLUMNS)], rows)


def _bias(stage: Stage) -> Table:
    def cell(interval: Interval | None) -> str:
        return "–" if interval is None else number(interval.value, 3, "+") + ("*" if clear(interval) else " ")

    return table(
        "Bias by round, on the scale of R (*: the interval leaves 0 out)",
        ["estimator", *(f"round {number}" for number in stage.rounds)],
        [[row.name, *(cell(interval) for interval in row.bias)] for row in stage.rows],
    )


def clear(interval: Interval) -> bool:
    """Whether the interval leaves 0 out."""
    return interval.low is not None and interval.high is not None and interval.low * interval.high > 0


def _style(key: str) -> tuple[int, str]:
    return (3, "+") if key == "gold" else (2, "+" if key == "gain" else "")


def _cell(interval: Interval | None, digits: int = 2, sign: str = "") -> str:
    """The value, and its bounds in the line below."""
    if interval is None:
        return "–"
    if interval.low is None or interval.high is None:
        return number(interval.value, digits, sign)
    low, high = (number(bound, digits, sign) for bound in (interval.low, interval.high))
    return f"{number(interval.value, digits, sign)}\n{low} to {high}"


# --- The page -----------------------------------------------------------------------------------------------


def lab_page(lab: Lab) -> str:
    """The lab as an HTML document that needs no network."""
    data: dict[str, Any] = {
        "reading": reading(lab),
        "method": METHOD,
        "least": LEAST,
        "plan": lab.plan,
        "columns": [{"key": key, "label": label, "about": about} for key, label, about in COLUMNS],
        "stages": lab.stages,
    }
    return page("Credit lab", _part("lab.css"), _part("lab.js"), data)


def show_page(strips: Strips, reference: str) -> str:
    """A rollout's strips as an HTML document that needs no network."""
    rows = {name: settled(values).tolist() for name, values in strips.rows.items()}
    data = {"reference": reference, **msgspec.structs.asdict(strips), "rows": rows}
    return page(f"Credit of {strips.title}", _part("show.css"), _part("show.js"), data)


@cache
def _part(name: str) -> str:
    return (files("mempo_benchmarks.credit") / "page" / name).read_text(encoding="utf-8")


# --- The plot -----------------------------------------------------------------------------------------------


def write_plot(lab: Lab, path: Path) -> bool:
    """Rank correlations with their intervals, a panel for each stage; False without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    names = [row.name for row in lab.stages[0].rows]
    figure = Figure(figsize=(3 + 3 * len(lab.stages), 1.2 + 0.27 * len(names)), layout="constrained")
    axes = figure.subplots(1, len(lab.stages), sharey=True, sharex=True, squeeze=False)[0]
    for stage, axis in zip(lab.stages, axes, strict=True):
        axis.axvline(0, color="0.7", linewidth=1)
        for y, row in enumerate(stage.rows):
            if row.rank is not None:
                ends = (row.rank.low, row.rank.high)
                bounds = [row.rank.value if end is None else end for end in ends]
                axis.plot(bounds, [y, y], color="C0", linewidth=2)
                axis.plot(row.rank.value, y, "o", color="C0", markersize=5)
        title = f"{stage.name}: em {number(stage.em, 2)}, reliability {number(stage.reliability[0], 2)}"
        axis.set(title=title, yticks=range(len(names)), yticklabels=names)
        axis.title.set_fontsize(10)
        axis.grid(axis="x", alpha=0.3)
        axis.set_ylim(len(names) - 0.5, -0.5)
    figure.supxlabel("rank correlation with the true advantage, 95 % interval", fontsize=10)
    with atomic_file(path) as file:
        figure.savefig(file, format="png", dpi=130)
    return True
