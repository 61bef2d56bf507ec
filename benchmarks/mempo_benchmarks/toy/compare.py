"""`mempo train compare`: training runs side by side, seeds of the same settings together."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from msgspec import UNSET, Struct

from mempo_benchmarks.figures import figure, percent
from mempo_benchmarks.stats import Interval, runs_interval
from mempo_benchmarks.toy.sweep import (
    OVER_RUNS,
    SUCCESS,
    WINDOW,
    Course,
    Result,
    Step,
    course,
    point_width,
    read_result,
    read_steps,
    told,
)
from mempo_env.console import console
from mempo_env.errors import ResultsError
from mempo_trainers.run_files import RESULT, SETTINGS, begun, read_rows, read_settings
from mempo_trainers.run_settings import flat

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
COUNTED = (
    f"success: on new episodes after training, mean over runs; rollouts to {SUCCESS}: until the mean success "
    f"of {WINDOW} training steps in a row is {SUCCESS}, median over runs (never, or not yet: half of them or "
    "more did not get there), with how many got there where not all did; degenerate groups: the share whose "
    "outcomes are all equal; training: success while training"
)


class Group(Struct, frozen=True):
    """Runs of the same settings but for their seeds.

    Attributes:
        settings: Theirs, by their whole names.
        names: The folders of the runs.
        runs: How many.
        success: At the end, with its interval over seeds: on new episodes where all are `finished`, else the
            mean of the last `WINDOW` steps; of the runs of which it is known, None if it is of none.
        known: Of how many.
        finished: Whether all were evaluated.
        pending: How many may still learn: not finished, and not at `SUCCESS` yet.
        degenerate: Share of the groups whose outcomes are all equal; None where nobody counts them.
        course: How they went.
    """

    settings: dict[str, Any]
    names: tuple[str, ...]
    runs: int
    success: Interval | None
    known: int
    finished: bool
    pending: int
    degenerate: float | None
    course: Course


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(help="Runs, or folders with runs somewhere in them.")],
    out: Annotated[Path | None, typer.Option(help="File for the curves, a PNG.")] = None,
) -> None:
    """Compare training runs: the settings that differ, success with its interval over seeds, and curves."""
    from mempo_benchmarks.report import table
    from mempo_benchmarks.toy.plots import curves

    groups = grouped(runs)
    screen = console(LOG_WIDTH)
    rows = [_row(name, group) for name, group in groups.items()]
    shown = table("Training runs", HEADS, rows)
    shown.columns[-1].justify = "left"  # curves start together, and end where they end
    screen.print(shown)
    screen.print(COUNTED, soft_wrap=True)
    for run in _runs(runs):
        if reason := _left_out(run):
            screen.print(f"left out: {run}: {reason}", soft_wrap=True)
    if any(group.success is not None and group.success.low is None for group in groups.values()):
        screen.print(OVER_RUNS, soft_wrap=True)
    if not all(group.finished for group in groups.values()):
        screen.print(
            f"* not finished: success is the mean of the last {WINDOW} steps of training, not of new "
            "episodes; seconds are of the steps that are done; the curve ends with the shortest run",
            soft_wrap=True,
        )
    if changed := _changed([group.settings for group in groups.values()]):
        screen.print(
            f"! these runs were not given the same: {', '.join(changed)} differ, though what names them does "
            "not",
            soft_wrap=True,
        )
    if out is not None:
        curves({"": {name: group.course for name, group in groups.items()}}, out)
        screen.print(f"curves: {out}")


def grouped(folders: Sequence[Path]) -> dict[str, Group]:
    """Runs by the settings in which they differ, whatever form these are written in.

    Raises:
        ResultsError: if there is no run in a folder, or none to compare among all, or one of the settings and
            the seed of another, or what is there cannot be read.
    """
    found: list[list[Path]] = []
    reasons = {run: _left_out(run) for run in _runs(folders)}
    settings = {run: _settings(run) for run, reason in reasons.items() if not reason}
    if not settings:
        raise ResultsError(
            f"{', '.join(map(str, folders))}: wanted a training run to compare, found none "
            f"({'; '.join(dict.fromkeys(reasons.values()))})"
        )
    steps = {run: read_steps(run) for run in settings}
    width = point_width(list(steps.values()))
    for run, mine in settings.items():
        same = next((group for group in found if _seedless(settings[group[0]]) == _seedless(mine)), None)
        if same is None:
            found.append([run])
        elif twin := next((other for other in same if settings[other] == mine), None):
            raise ResultsError(
                f"{run}: wanted other settings or another seed than those of {twin}, got the same, which is "
                "no further evidence; leave one of the two out"
            )
        else:
            same.append(run)
    groups = [
        _group({run: steps[run] for run in runs}, _seedless(settings[runs[0]]), width) for runs in found
    ]
    return dict(zip(_names([group.settings for group in groups]), groups, strict=True))


def _runs(folders: Sequence[Path]) -> list[Path]:
    """All runs in some folders, each once."""
    return list(dict.fromkeys(run for folder in folders for run in _some_in(folder)))


def _left_out(run: Path) -> str:
    """Why a run is no part of a comparison; "" if it is one."""
    if not begun(run):
        return "no step was done"
    first = read_rows(run, whole=False)[:1]
    if first and "success" not in msgspec.json.decode(first[0]):
        return "its steps have no success, as those of a warm start by imitation have none"
    return ""


def _some_in(folder: Path) -> list[Path]:
    if runs := runs_in(folder.resolve()):
        return runs
    raise ResultsError(f"{folder}: wanted a training run, or a folder with runs in it, found none")


def runs_in(folder: Path) -> list[Path]:
    """The folder if it is a run, else the runs in it by name; each by where it really lies.

    What lies inside a run is a part of it. Of links, only those to runs are followed.
    """
    if (folder / SETTINGS).is_file():
        return [folder.resolve()]
    if not folder.is_dir() or folder.is_symlink():
        return []
    return [run for path in sorted(folder.iterdir()) for run in runs_in(path)]


def _settings(run: Path) -> dict[str, Any]:
    return {name: value for name, value in flat(read_settings(run)).items() if name != "format"}


def _seedless(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in SEEDS}


def _group(runs: Mapping[Path, Sequence[Step]], settings: dict[str, Any], width: float) -> Group:
    steps = list(runs.values())
    went = course(steps, width)
    finished = [(run / RESULT).is_file() for run in runs]
    if all(finished):
        ends: list[float | None] = [read_result(run, Result).success for run in runs]
    else:
        ends = [_mean([step.success for step in run[-WINDOW:]]) for run in steps]
    known = [end for end in ends if end is not None]
    return Group(
        settings=settings,
        names=tuple(run.name for run in runs),
        runs=len(runs),
        success=runs_interval(known, 0, 1) if known else None,
        known=len(known),
        finished=all(finished),
        pending=sum(not end and n is None for end, n in zip(finished, went.rollouts, strict=True)),
        degenerate=_degenerate([step for run in steps for step in run]),
        course=went,
    )


def _degenerate(steps: Sequence[Step]) -> float | None:
    counted = [step for step in steps if step.degenerate_groups is not None]
    dead, groups = (
        sum(getattr(step, name) or 0 for step in counted) for name in ("degenerate_groups", "groups")
    )
    return dead / groups if groups else None


def _mean(success: Sequence[float | None]) -> float | None:
    known = [value for value in success if value is not None]
    return sum(known) / len(known) if known else None


def _names(all_settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """What to call each: the settings that differ among those that have them; if it takes that, of all.

    Where they only look alike, as 1 and "1" do, texts are quoted and names whole: no two are called the same.
    """
    every = dict.fromkeys(name for settings in all_settings for name in settings)
    set_by_people = [
        {name: value for name, value in mine.items() if name != "model" and not name.startswith("data.")}
        for mine in all_settings
    ]
    shown = [
        set_by_people,
        all_settings,
        *([{**dict.fromkeys(every, absent), **mine} for mine in all_settings] for absent in ("–", UNSET)),
    ]
    names = ([_told(mine, told, exact=told is shown[-1]) for mine in told] for told in shown)
    return next(told for told in names if len(set(told)) == len(told))


def _changed(all_settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Digests of questions and models that differ between runs whose settings name the same ones."""

    def differ(held: str) -> list[str]:
        every = dict.fromkeys(name for mine in all_settings for name in mine if name.startswith(held))
        return [name for name in every if len({str(mine.get(name)) for mine in all_settings}) > 1]

    data = [] if any(map(differ, _NAME_DATA)) else differ("data.")
    return data + ([] if differ("policy.model") else differ("model"))


_NAME_DATA = ("task.dataset", "task.objectives", "task.sets", "task.held_out")
"""Settings that say which questions a run is given."""


def _told(mine: Mapping[str, Any], others: Sequence[Mapping[str, Any]], exact: bool) -> str:
    differ = [
        f"{name}={value!r}" if exact else f"{name.partition('.')[2] or name}={value}"
        for name, value in mine.items()
        if any(other.get(name, value) != value for other in others)
    ]
    return ", ".join(differ) or "all alike"


def _row(name: str, group: Group) -> tuple[str, ...]:
    went, mark = group.course, "" if group.finished else "*"
    bars = "".join(BARS[round(point.value * (len(BARS) - 1))] for point in went.curve)
    return (
        "\n".join([*name.split(", "), _named(group.names)]),
        str(group.runs),
        _succeeded(group) + mark,
        _reached(group),
        "" if group.degenerate is None else percent(group.degenerate),
        f"{figure(went.seconds)}{mark}",
        bars if group.finished else f"{bars} to step {went.steps:,}".lstrip(),
    )


def _succeeded(group: Group) -> str:
    """Success with its interval, and of how many runs it is known where it is not of all."""
    if group.success is None:
        return "unknown"
    of = f" ({group.known} of {group.runs} known)" if group.known < group.runs else ""
    return told(group.success) + of


def _named(runs: Sequence[str]) -> str:
    """What runs are called, on one line."""
    return f"in {textwrap.shorten(', '.join(dict.fromkeys(runs)), 40, placeholder=' ...')}"


def _reached(group: Group) -> str:
    """The median of the rollouts to `SUCCESS`; where not all got there, how many did and how many may."""
    median, reached = group.course.median, sum(n is not None for n in group.course.rollouts)
    if median is None:
        text, more = "not yet" if group.pending else "never", ""
    else:
        text, more = f"{median:,}", f", {group.pending} not yet" if group.pending else ""
    return f"{text} ({reached} of {group.runs}{more})" if 0 < reached < group.runs else text
