"""From the rows of one run or several to the numbers of a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from mempo_benchmarks.costs import Price, Spent, check_prices, spending, tokens_for_an_answer
from mempo_benchmarks.metrics import METRICS, Metric, units
from mempo_benchmarks.pairs import Pair, between, memory_gains, paired
from mempo_benchmarks.results import (
    FAILED,
    Arm,
    Plan,
    Row,
    alike,
    differences,
    first_line,
    read_plan,
    read_rows,
)
from mempo_benchmarks.run import CEILING, FLOORS
from mempo_benchmarks.stats import Interval, bounded, mean_intervals, pareto_front, wilson
from mempo_env.errors import ResultsError, lookup
from mempo_env.types import Failure

RIGHT = "right"
"""What stands in place of a failure reason for an objective that was answered rightly."""


class Point(Struct, frozen=True):
    """Prompt tokens of one round: episodes that came so far, their mean, 10th and 90th percentile."""

    round: int
    episodes: int
    mean: float
    low: float
    high: float


class ArmSummary(Struct, frozen=True, kw_only=True):
    """The figures of one agent in one run.

    Attributes:
        label: Its name in the report: the agent, and the run where several runs have that agent.
        agent: Its name.
        model: Name of the model behind it; "" if there is none.
        run: The folder of its run.
        role: "floor", "ceiling" or "".
        done: Episodes that have a result.
        planned: Episodes that should have.
        asks: What identifies the model behind it.
        failed: Episodes that failed rather than ended.
        masked: Those of them that failed by no fault of the agent.
        env_kwargs: What it sets in the environment.
        metrics: By key; None where nothing is known. Over all episodes that have a result, unless all of them
            failed by no fault of the agent.
        outcomes: "right" or the failure reason: share of the objectives; empty without results.
        prompts: Prompt tokens by round.
        unit: What its tokens are; "" if it has none.
        spent: What it cost, by key of `COSTS`; those that are known.
        for_an_answer: Tokens of all episodes for each right answer; None if none was.
        several: By question, where all episodes have the same number, above 1; None without results, too.
    """

    label: str
    agent: str
    model: str
    run: str
    role: str
    done: int
    planned: int
    asks: str
    failed: int
    masked: int
    env_kwargs: dict[str, Any]
    metrics: dict[str, Interval | None]
    outcomes: dict[str, float]
    prompts: tuple[Point, ...]
    unit: str
    spent: dict[str, Spent]
    for_an_answer: Interval | None
    several: Several | None

    @property
    def complete(self) -> bool:
        """Whether every planned episode has a result."""
        return self.done == self.planned

    @property
    def compares(self) -> bool:
        """Whether it takes part in differences and front: all episodes are there, and most of them ended."""
        return self.complete and 2 * self.failed <= self.done

    @property
    def steady(self) -> tuple[Point, ...]:
        """Prompt tokens of the rounds from the second on that at least half of the episodes came to."""
        return tuple(point for point in self.prompts[1:] if 2 * point.episodes >= self.done)


class Several(Struct, frozen=True, kw_only=True):
    """How an agent did on episodes of several questions (MEM1's protocol, 2506.15841).

    Attributes:
        em: EM summed over the questions of an episode, the mean over episodes; like
        f1: F1.
        positions: Of the question in each place, the share of episodes that answered it rightly.
        answered: For 0, 1, ... all: the share of episodes that gave so many answers.
    """

    em: Interval
    f1: Interval
    positions: tuple[Interval, ...]
    answered: tuple[float, ...]


class Comparison(Struct, frozen=True, kw_only=True):
    """All numbers of a report.

    Attributes:
        runs: Folder and plan of each run.
        differing: What differs between the runs, "name first / other" for each.
        arms: In the order of the plans.
        notes: What a reader must know: what failed, arms that take no part in differences, units of tokens
            that differ, gains that are not known.
        pairs: Of arms over the same questions, each pair once.
        gains: The memory-isolated gain: of arms to `no_memory` with the same model, settings and questions,
            so that what a strong reader does without a memory is taken off (MemGym, 2605.20833).
        front: Labels of the arms that no other beats in EM and peak tokens of the same unit, without the
            ceiling.
        baseline: Label of the arm that differences are shown against.
    """

    runs: tuple[tuple[str, Plan], ...]
    differing: tuple[str, ...]
    notes: tuple[str, ...]
    arms: tuple[ArmSummary, ...]
    pairs: tuple[Pair, ...]
    gains: tuple[Pair, ...]
    front: tuple[str, ...]
    baseline: str

    @property
    def units(self) -> tuple[str, ...]:
        """What tokens are, for any arm."""
        return tuple(dict.fromkeys(arm.unit for arm in self.arms if arm.unit))

    @property
    def names(self) -> dict[str, str]:
        """What each run is called."""
        return _names([run for run, _ in self.runs])

    @property
    def by_questions(self) -> dict[str, list[ArmSummary]]:
        """The arms that were asked the same questions, by the names of their runs; one entry if all were."""
        sets: dict[tuple[str, tuple[str, ...]], list[str]] = {}
        for run, plan in self.runs:
            sets.setdefault((plan.data, plan.questions), []).append(run)
        return {
            ", ".join(self.names[run] for run in runs): [arm for arm in self.arms if arm.run in runs]
            for runs in sets.values()
        }

    def difference(self, a: str, b: str) -> Pair | None:
        """Of arm a to arm b; None where they can't be paired."""
        return between(self.pairs, a, b)


def compare(
    runs: Sequence[Path],
    baseline: str = "random",
    allow_different: bool = False,
    prices: Mapping[str, Price] | None = None,
) -> Comparison:
    """Read runs and compute all that a report shows.

    Args:
        runs: Their folders.
        baseline: Label of the arm that differences are shown against.
        allow_different: Whether runs that differ may share a table.
        prices: By the name of the model; they decide nothing but the dollars.

    Raises:
        ResultsError: if a run is missing, was changed by hand, or differs from the others; says in what.
        ConfigError: if there is no such baseline, or the prices are for none of the models.
    """
    folders: dict[Path, Path] = {}
    for folder in runs:
        folders.setdefault(folder.resolve(), folder)  # named in two ways it is one run
    plans = {str(folder): read_plan(folder) for folder in folders.values()}
    differing = _differing(plans)
    if differing and not allow_different:
        raise ResultsError(
            f"wanted runs of one data set, index, scorer, code and settings, got runs that differ: "
            f"{'; '.join(differing)}; report them one by one, or pass --allow-different"
        )
    prices = prices or {}
    check_prices(prices, {arm.model for plan in plans.values() for arm in plan.arms})
    told = _told(plans)
    times, names = Counter(arm.agent for _, arm, _ in told), _names(plans)
    arms: list[ArmSummary] = []
    rows: dict[str, list[Row]] = {}
    for run, arm, played in told:
        label = arm.agent if times[arm.agent] == 1 else f"{arm.agent} ({names[run]})"
        rows[label] = played
        arms.append(_summary(label, run, plans[run], arm, played, prices.get(arm.model)))
    chosen = lookup(
        {arm.agent: arm.label for arm in reversed(arms)} | {a: a for a in rows}, baseline, "baseline"
    )
    pairs = paired({arm.label: rows[arm.label] for arm in arms if arm.compares})
    gains, unknown = memory_gains(arms, plans, pairs)
    return Comparison(
        runs=tuple(plans.items()),
        differing=tuple(differing),
        notes=(*_failed(rows), *_apart(arms), *_mixed(arms), *unknown),
        arms=tuple(arms),
        pairs=tuple(pairs),
        gains=tuple(gains),
        front=tuple(_front(arms)),
        baseline=chosen,
    )


def _names(runs: Collection[str]) -> dict[str, str]:
    """What runs are called: the names of their folders; where two of these are alike, whole paths."""
    short = {run: Path(run).resolve().name for run in runs}
    return short if len(set(short.values())) == len(runs) else {run: run for run in runs}


def _told(plans: Mapping[str, Plan]) -> list[tuple[str, Arm, list[Row]]]:
    """(run, arm, its rows) of all arms, floors and ceiling once for runs in which they did the same."""
    told: list[tuple[str, Arm, list[Row]]] = []
    done: list[tuple[Any, ...]] = []
    for run, plan in plans.items():
        played: dict[str, list[Row]] = {arm.agent: [] for arm in plan.arms}
        for row in read_rows(Path(run), plan, Row):
            played[row.agent].append(row)
        for arm in plan.arms:
            rows = sorted(played[arm.agent], key=lambda row: row.index)
            did = arm, plan.common(), [replace(row, seconds=0.0) for row in rows]
            if _role(arm.agent) and did in done:
                continue
            done.append(did)
            told.append((run, arm, rows))
    return told


def _role(agent: str) -> str:
    return "floor" if agent in FLOORS else "ceiling" if agent == CEILING else ""


def _differing(plans: dict[str, Plan]) -> list[str]:
    """What differs between the first run and any other."""
    (first, plan), *others = plans.items()
    names = _names(plans)
    return [
        f"{difference} ({names[first]} / {names[run]})"
        for run, other in others
        for difference in differences(plan.common(), other.common())
    ]


def _summary(
    label: str, run: str, plan: Plan, arm: Arm, rows: Sequence[Row], price: Price | None
) -> ArmSummary:
    reasons = Counter(reason or RIGHT for row in rows for reason in row.failure)
    objectives = sum(reasons.values())
    telling = () if all(row.masked for row in rows) else rows
    return ArmSummary(
        label=label,
        agent=arm.agent,
        model=arm.model,
        run=run,
        role=_role(arm.agent),
        done=len(rows),
        planned=len(plan.questions),
        asks=arm.asks,
        failed=sum(row.stop_reason in FAILED for row in rows),
        masked=sum(row.masked for row in rows),
        env_kwargs=arm.env_kwargs,
        metrics=_intervals(telling) | {"failed": _intervals(rows)["failed"]},
        outcomes={reason: reasons[reason] / objectives for reason in (RIGHT, *Failure) if reasons[reason]},
        prompts=tuple(_prompts(telling)),
        unit=" and ".join(units(rows)),
        spent=spending(telling, price),
        for_an_answer=tokens_for_an_answer(telling),
        several=_several(telling),
    )


def _failed(rows: Mapping[str, Sequence[Row]]) -> list[str]:
    """How many episodes of each arm failed, whose fault that was, and, once, what the first of them says."""
    told: dict[str, tuple[str, list[str]]] = {}
    for label, played in rows.items():
        kinds: dict[str, list[Row]] = {}
        for row in played:
            if row.stop_reason in FAILED:
                fault = "by no fault of the agent" if row.masked else f"by its own fault ({row.stop_reason})"
                kinds.setdefault(fault, []).append(row)
        for fault, failed in kinds.items():
            said = first_line(failed[0].stop_detail) or failed[0].stop_reason
            count = f"{len(failed):,} of {len(played):,} {label}"
            told.setdefault(alike(f"{fault}: {said}"), (f"{fault}: {said}", []))[1].append(count)
    return [f"{', '.join(counts)} episodes failed {said}" for said, counts in told.values()]


def _mixed(arms: Sequence[ArmSummary]) -> list[str]:
    """That not all count tokens in the same unit, if they don't."""
    counted: dict[str, list[str]] = {}
    for arm in arms:
        if arm.unit:
            counted.setdefault(arm.unit, []).append(arm.label)
    if len(counted) < 2:
        return []
    told = "; ".join(f"{unit} for {', '.join(labels)}" for unit, labels in counted.items())
    return [f"tokens differ in their unit: {told}; they are not subtracted, and have a plot for each unit"]


def _apart(arms: Sequence[ArmSummary]) -> list[str]:
    """Which arms take no part in differences and front, and why."""
    told: dict[tuple[str, str, str], list[str]] = {}
    for arm in arms:
        if not arm.complete:
            kind = "is incomplete", "are incomplete", f"{arm.done:,} of {arm.planned:,} episodes"
            told.setdefault(kind, []).append(arm.label)
        elif not arm.compares:
            kind = "did not play", "did not play", f"{arm.failed:,} of {arm.done:,} episodes failed"
            told.setdefault(kind, []).append(arm.label)
    return [
        f"{', '.join(labels)} {one if len(labels) == 1 else several}: {figures}; "
        f"{'it has' if len(labels) == 1 else 'they have'} no part in differences and front"
        for (one, several, figures), labels in told.items()
    ]


def _several(rows: Sequence[Row]) -> Several | None:
    n = len(rows[0].failure) if rows else 1
    if n == 1 or any(len(row.failure) != n for row in rows):
        return None
    em, f1 = mean_intervals(np.array([[n * row.em, n * row.f1] for row in rows]))
    right_RN = np.array([[reason is None for reason in row.failure] for row in rows])
    counts = Counter(row.answered for row in rows)
    return Several(
        em=bounded(em, len(rows), 0, n),
        f1=bounded(f1, len(rows), 0, n),
        positions=tuple(wilson(int(right), len(rows)) for right in right_RN.sum(0)),
        answered=tuple(counts[k] / len(rows) for k in range(n + 1)),
    )


def _intervals(rows: Sequence[Row]) -> dict[str, Interval | None]:
    """Means over the rows where they are defined: Wilson's interval for shares of yes and no, else BCa's."""
    found: dict[str, Interval | None] = {metric.key: None for metric in METRICS}
    columns: dict[int, list[tuple[Metric, list[float]]]] = {}  # of equal length: they share the resamples
    for metric in METRICS:
        values = [value for row in rows if (value := metric.of(row)) is not None]
        if values and metric.share and set(values) <= {0.0, 1.0}:
            found[metric.key] = wilson(round(sum(values)), len(values))
        elif values:
            columns.setdefault(len(values), []).append((metric, values))
    for n, several in columns.items():
        means = mean_intervals(np.column_stack([values for _, values in several]))
        for (metric, _), mean in zip(several, means, strict=True):
            found[metric.key] = bounded(mean, n, 0, 1) if metric.share else mean
    return found


def _prompts(rows: Sequence[Row]) -> list[Point]:
    longest = max((row.rounds for row in rows), default=0)
    points = []
    for i in range(longest):
        tokens = [row.prompt_tokens[i] for row in rows if row.rounds > i]
        low, high = np.quantile(tokens, (0.1, 0.9))
        points.append(Point(i + 1, len(tokens), float(np.mean(tokens)), float(low), float(high)))
    return points


def _front(arms: Sequence[ArmSummary]) -> list[str]:
    able: dict[str, list[tuple[str, float, float]]] = {}
    for arm in arms:
        peak, em = arm.metrics["peak"], arm.metrics["em"]
        if arm.compares and arm.role != "ceiling" and peak and em:
            able.setdefault(arm.unit, []).append((arm.label, peak.value, em.value))
    return [
        points[i][0] for points in able.values() for i in pareto_front([(peak, em) for _, peak, em in points])
    ]
