"""`mempo train compare`: training runs side by side, seeds of the same settings together."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from msgspec import Struct

from mempo_benchmarks.stats import Interval, mean_interval
from mempo_benchmarks.toy.sweep import SUCCESS, WINDOW, Course, course, told
from mempo_env.errors import ResultsError
from mempo_trainers.run import RESULT, SETTINGS, flat, read_metrics, read_settings

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

LOG_WIDTH = 160
"""Columns of a table that goes to a file."""

BARS = "▁▂▃▄▅▆▇█"
SEEDS = ("config.seed", "task.warm.seed")
"""Settings in which repetitions of one run differ."""

HEADS = (
    "settings",
    "runs",
    "success",
    f"rollouts to {SUCCESS}",
    "degenerate groups",
    "seconds",
    "training",
)


class Group(Struct, frozen=True):
    """Runs of the same settings but for their seeds.

    Attributes:
        settings: Theirs, by their whole names.
        runs: How many.
        success: At the end, with its interval over seeds: on new episodes where all are `finished`, else the
            mean of the last `WINDOW` steps.
        finished: Whether all were evaluated.
        degenerate: Share of the groups whose outcomes are all equal; None where nobody counts them.
        course: How they went.
    """

    settings: dict[str, Any]
    runs: int
    success: Interval
    finished: bool
    degenerate: float | None
    course: Course


class _Result(Struct):
    success: float


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(help="Runs, or folders with runs somewhere in them.")],
    out: Annotated[Path | None, typer.Option(help="File for the curves, a PNG.")] = None,
) -> None:
    """Compare training runs: the settings that differ, success with its interval over seeds, and curves."""
    from rich.console import Console

    from mempo_benchmarks.report import table
    from mempo_benchmarks.toy.plots import curves

    groups = grouped(runs)
    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else LOG_WIDTH)
    rows = [_row(name, group) for name, group in groups.items()]
    console.print(table("Training runs", HEADS, rows))
    if not all(group.finished for group in groups.values()):
        console.print(f"* not finished: mean of the last {WINDOW} steps of training, not of new episodes")
    if out is not None:
        curves({"": {name: group.course for name, group in groups.items()}}, out)
        console.print(f"curves: {out}")


def grouped(folders: Sequence[Path]) -> dict[str, Group]:
    """Runs by the settings in which they differ.

    Raises:
        ResultsError: if there is no run in a folder, or one without a finished step.
    """
    found: dict[bytes, list[Path]] = {}
    for folder in dict.fromkeys(folder.resolve() for folder in folders):
        runs = runs_in(folder)
        if not runs:
            raise ResultsError(f"{folder}: wanted a training run, or a folder with runs in it, found none")
        for run in runs:
            same = found.setdefault(msgspec.json.encode(_settings(run), order="sorted"), [])
            if run not in same:
                same.append(run)
    groups = [_group(runs) for runs in found.values()]
    return dict(zip(_names([group.settings for group in groups]), groups, strict=True))


def runs_in(folder: Path) -> list[Path]:
    """The folder if it is a run, else the runs in it by name; what lies inside a run is a part of it."""
    if (folder / SETTINGS).is_file():
        return [folder]
    below = sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    return [run for path in below for run in runs_in(path)]


def _settings(run: Path) -> dict[str, Any]:
    named = flat(read_settings(run))
    return {name: value for name, value in named.items() if name not in (*SEEDS, "format")}


def _group(runs: Sequence[Path]) -> Group:
    rows = [read_metrics(run) for run in runs]
    went = course(rows)
    finished = all((run / RESULT).is_file() for run in runs)
    if finished:
        ends = [_result(run / RESULT) for run in runs]
    else:
        ends = [_mean([row["success"] for row in run[-WINDOW:]]) for run in rows]
    counted = [row for run in rows for row in run if row.get("groups")]
    dead, groups = (sum(row[name] for row in counted) for name in ("degenerate_groups", "groups"))
    return Group(
        settings=_settings(runs[0]),
        runs=len(runs),
        success=mean_interval(ends),
        finished=finished,
        degenerate=dead / groups if groups else None,
        course=went,
    )


def _result(file: Path) -> float:
    try:
        return msgspec.json.decode(file.read_bytes(), type=_Result).success
    except msgspec.MsgspecError as error:
        raise ResultsError(f"{file}: wanted what the trained policy does: {error}") from None


def _mean(success: Sequence[float | None]) -> float:
    known = [value for value in success if value is not None]
    return sum(known) / max(len(known), 1)


def _names(all_settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """What to call each: the settings that differ among those that have them; if it takes that, among all."""
    missing = dict.fromkeys((name for settings in all_settings for name in settings), "–")
    few, many = (
        [_told(mine, complete) for mine in complete]
        for complete in (all_settings, [{**missing, **settings} for settings in all_settings])
    )
    return few if len(set(few)) == len(few) else many


def _told(mine: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> str:
    differ = [
        f"{name.partition('.')[2] or name}={value}"
        for name, value in mine.items()
        if any(other.get(name, value) != value for other in others)
    ]
    return ", ".join(differ) or "all alike"


def _row(name: str, group: Group) -> tuple[str, ...]:
    went, reached = group.course, sum(rollouts is not None for rollouts in group.course.rollouts)
    many = f" ({reached} of {group.runs})" if 0 < reached < group.runs else ""
    return (
        name.replace(", ", "\n"),
        str(group.runs),
        told(group.success) + ("" if group.finished else "*"),
        ("never" if went.median is None else f"{went.median:,}") + many,
        "" if group.degenerate is None else f"{group.degenerate:.0%}",
        f"{went.seconds:,.0f}",
        "".join(BARS[round(point.value * (len(BARS) - 1))] for point in went.curve),
    )
