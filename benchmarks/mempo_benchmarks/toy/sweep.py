"""Many toy runs, each on disk as `mempo train toy` writes it, and what came of them."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import asdict
from numpy.typing import NDArray

from mempo_benchmarks.figures import figure
from mempo_benchmarks.stats import Interval, runs_interval, runs_intervals
from mempo_env.errors import ResultsError
from mempo_env.files import BAD_JSON
from mempo_env.progress import progress
from mempo_env.settings import Share, Size, Whole
from mempo_trainers.config import Config
from mempo_trainers.run import FORMAT
from mempo_trainers.run_files import METRICS, RESULT, SETTINGS, read_metrics, read_settings
from mempo_trainers.run_settings import differences
from mempo_trainers.toy import Toy

SUCCESS = 0.9
"""The share of episodes that must be right for a run to have learned."""
WINDOW = 10
"""Steps over which that share is taken while it learns."""
BINS = 24
"""Points of the longest curve."""
OVER_RUNS = (
    "Intervals are Student's over runs, 95 %; of one run, or runs that came to the same, there is none."
)


S = TypeVar("S", bound=Struct)


class Arm(Struct, frozen=True):
    """One way to train, repeated with several seeds.

    Attributes:
        name: What to call it; unique among the arms of its task.
        group: The task that it is compared on.
        task: The task.
        config: The settings, but for the seed.
        seeds: How many runs, with the seeds 0, 1, ...
    """

    name: str
    group: str
    task: Toy
    config: Config
    seeds: int

    def folder(self, out: Path, seed: int) -> Path:
        """Where the run with a seed lies."""
        return out / self.group / self.name / f"seed-{seed}"

    def folders(self, out: Path) -> list[Path]:
        """Where all its runs lie."""
        return [self.folder(out, seed) for seed in range(self.seeds)]


class Step(Struct, frozen=True, kw_only=True):
    """What a row of metrics must say of a step for runs to be compared; see `mempo_trainers.metrics.row`."""

    success: Share | None
    rollouts: Whole
    seconds: Size
    groups: Whole | None = None
    degenerate_groups: Whole | None = None


class Result(Struct, frozen=True):
    """What every trainer finds out about the trained policy."""

    success: Share


class ToyResult(Result, frozen=True):
    """What `mempo train toy` finds out beside."""

    recall: Share
    em: Share


class Course(Struct, frozen=True, kw_only=True):
    """How runs with different seeds went, with intervals over them.

    Attributes:
        rollouts: Rollouts until `SUCCESS` over `WINDOW` steps of training, one a seed; None: it has not
            reached it.
        steps: How far all of them are, where the curve ends.
        at: Rollouts at the points of the curve.
        curve: Success while training, mean over the rollouts up to each point from the one before; of the
            runs of which it is known, empty if it is of none.
        seconds: Mean duration of the training steps that a run has done.
    """

    rollouts: tuple[int | None, ...]
    steps: int
    at: tuple[int, ...]
    curve: tuple[Interval, ...]
    seconds: float

    @property
    def median(self) -> int | None:
        """Median of `rollouts`, runs that have not reached it counted as infinity; None if it is that."""
        never = np.inf
        middle = float(np.median([never if n is None else n for n in self.rollouts]))
        return None if not np.isfinite(middle) else int(middle)


class Learned(Course, frozen=True, kw_only=True):
    """What the runs of an arm came to.

    Attributes:
        arm: Which.
        success: On new episodes of the test split, after training.
        recall: Share of the gold facts that the trained policy's searches show, mean over runs.
        em: Share of the objectives that it answers rightly, mean over runs.
        reached: How many of them ended at `SUCCESS` or better there.
    """

    arm: Arm
    success: Interval
    recall: float
    em: float
    reached: int


def finished(folder: Path, task: Toy, config: Config) -> bool:
    """Whether a folder holds the whole run of these settings; False if it holds a part of it, or nothing.

    Raises:
        ResultsError: if it holds a run of other settings; names those that differ.
    """
    if not (folder / SETTINGS).exists() and not (folder / RESULT).exists():
        return False
    wanted = {"format": FORMAT, "task": msgspec.to_builtins(task), "config": msgspec.to_builtins(config)}
    if told := differences(read_settings(folder), wanted):
        raise ResultsError(
            f"{folder}: holds a run of other settings (there / wanted: {told}); choose another --out"
        )
    return (folder / RESULT).exists()


def run_all(arms: Sequence[Arm], out: Path, jobs: int) -> None:
    """Train what is not trained yet, several runs at a time; a killed sweep goes on where it was.

    Raises:
        ResultsError: if a run was begun with other settings; before anything is trained.
    """
    most = max(arm.seeds for arm in arms)
    todo = [(arm, seed) for seed in range(most) for arm in arms if seed < arm.seeds]
    left = [(arm, seed) for arm, seed in todo if not _finished(arm, out, seed)]
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    with (
        progress("runs", len(todo), len(todo) - len(left), unit="runs") as advance,
        multiprocessing.get_context("spawn").Pool(jobs, initializer=_alone) as pool,
    ):
        for _ in pool.imap_unordered(_train, [(arm, seed, out) for arm, seed in left]):
            advance(1)


def learned(arm: Arm, out: Path) -> Learned:
    """Read what the runs of an arm came to.

    Raises:
        ResultsError: if one is not finished, or is of other settings, or cannot be read.
    """
    folders = arm.folders(out)
    unfinished = [str(folders[seed]) for seed in range(arm.seeds) if not _finished(arm, out, seed)]
    if unfinished:
        raise ResultsError(f"{unfinished[0]}: wanted a finished run; run the same command again")
    results = [read_result(folder, ToyResult) for folder in folders]
    final = [result.success for result in results]
    return Learned(
        **asdict(course([read_steps(folder) for folder in folders])),
        arm=arm,
        success=runs_interval(final, 0, 1),
        recall=float(np.mean([result.recall for result in results])),
        em=float(np.mean([result.em for result in results])),
        reached=sum(value >= SUCCESS for value in final),
    )


def read_steps(folder: Path) -> list[Step]:
    """The steps of a run.

    Raises:
        ResultsError: if there is none, or a row of the metrics that does not say how it went, by its number.
    """
    return [_as(Step, row, f"{folder / METRICS}:{row['step']}") for row in read_metrics(folder)]


def read_result(folder: Path, kind: type[S]) -> S:
    """What the trained policy of a run does on new episodes; ResultsError if it is not said."""
    file = folder / RESULT
    try:
        return _as(kind, msgspec.json.decode(file.read_bytes()), file)
    except BAD_JSON as error:
        raise ResultsError(f"{file}: {error}; was it edited by hand?") from None


def _as(kind: type[S], value: Any, place: str | Path) -> S:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ResultsError(
            f"{place}: wanted the figures of a training run: {error}; was it edited by hand, or is this a "
            "run of another kind, such as a warm start?"
        ) from None


def point_width(runs: Sequence[Sequence[Step]]) -> float:
    """The rollouts of a point of the curves of runs that are compared, the same for short and long runs."""
    return max(sum(step.rollouts for step in run) for run in runs) / min(BINS, max(map(len, runs)))


def course(runs: Sequence[Sequence[Step]], width: float | None = None) -> Course:
    """How runs went, from their steps: their curve as far as all of them are, the rest of each on its own.

    A step of which nobody knows the success (no rollout ended, or all are masked) counts as the one before. A
    run of which it is known in no step has no part in the curve.

    Args:
        runs: Their steps.
        width: The rollouts of a point, as `point_width` has it of all that they are compared with; the last
            point has half as many to half as many more. None: of these runs.
    """
    success = [np.array(_known([step.success for step in run])) for run in runs]
    done = [np.cumsum([step.rollouts for step in run]) for run in runs]
    width, end = max(width or point_width(runs), 1), max(min(done_T[-1] for done_T in done), 1)
    edges = np.append(np.arange(0, max(end - width / 2, width / 2), width), end)
    right = [
        _right(success_T, done_T, edges)
        for run, success_T, done_T in zip(runs, success, done, strict=True)
        if any(step.success is not None for step in run)
    ]
    return Course(
        rollouts=tuple(map(_reached, success, done)),
        steps=min(map(len, runs)),
        at=tuple(edges[1:].astype(int).tolist()),
        curve=tuple(runs_intervals(np.diff(right, axis=1) / np.diff(edges), 0, 1) if right else ()),
        seconds=float(np.mean([sum(step.seconds for step in run) for run in runs])),
    )


def area_difference(a: Arm, b: Arm, out: Path) -> Interval:
    """Mean success over the whole training of one arm minus that of another, paired by seed."""
    means = [
        [np.mean(_known([step.success for step in read_steps(folder)])) for folder in arm.folders(out)]
        for arm in (a, b)
    ]
    return runs_interval(np.subtract(means[0], means[1]), -1, 1)


def by_group(results: Sequence[Learned]) -> dict[str, list[Learned]]:
    """The results of each group, in the order of the arms."""
    groups: dict[str, list[Learned]] = {}
    for result in results:
        groups.setdefault(result.arm.group, []).append(result)
    return groups


def told(interval: Interval) -> str:
    """An estimate with its interval, as text."""
    if interval.low is None or interval.high is None:
        return figure(interval.value, 2)
    return f"{figure(interval.value, 2)} [{figure(interval.low, 2)}, {figure(interval.high, 2)}]"


def table(results: Sequence[Learned], row: Callable[[Learned], tuple[str, ...]], head: Sequence[str]) -> str:
    """A table in Markdown, a row for each result."""
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    lines += [f"| {' | '.join(row(result))} |" for result in results]
    return "\n".join(lines)


def _known(success: Sequence[float | None]) -> list[float]:
    """Each number that is known, else the one before it; 0 before the first."""
    known = [0.0]
    for value in success:
        known.append(known[-1] if value is None else value)
    return known[1:]


def _right(
    success_T: NDArray[np.float64], done_T: NDArray[np.int64], at: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Rollouts that were right among the first so many; within a step they are spread evenly."""
    right_T = np.cumsum(success_T * np.diff(done_T, prepend=0))
    right: NDArray[np.float64] = np.interp(at, np.append(0, done_T), np.append(0, right_T))
    return right


def _reached(success_T: NDArray[np.float64], done_T: NDArray[np.int64]) -> int | None:
    """Rollouts until the mean over a window of steps is high enough."""
    if len(success_T) < WINDOW:
        return None
    window = np.convolve(success_T, np.ones(WINDOW) / WINDOW, "valid")
    hits = np.flatnonzero(window >= SUCCESS - 1e-9)
    return int(done_T[hits[0] + WINDOW - 1]) if len(hits) else None


def _finished(arm: Arm, out: Path, seed: int) -> bool:
    return finished(arm.folder(out, seed), arm.task, msgspec.structs.replace(arm.config, seed=seed))


def _alone() -> None:
    """One thread, and no progress of its own beside that of the sweep; errors reach it as exceptions."""
    import torch

    torch.set_num_threads(1)
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def _train(work: tuple[Arm, int, Path]) -> None:
    from mempo_trainers.toy import train

    arm, seed, out = work
    train(arm.task, msgspec.structs.replace(arm.config, seed=seed), arm.folder(out, seed), board=False)
