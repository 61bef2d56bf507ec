"""What a comparison comes to: three sentences for each set of questions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mempo_benchmarks.chance import BEYOND, p_told
from mempo_benchmarks.figures import figure
from mempo_benchmarks.pairs import Pair
from mempo_benchmarks.results import WITHOUT
from mempo_benchmarks.stats import Interval
from mempo_benchmarks.summary import ArmSummary, Comparison


def conclusions(comparison: Comparison) -> tuple[str, ...]:
    """Who is best, who is cheapest, who gained most; references and those that failed stand aside.

    Nothing is compared across sets of questions: each has sentences of its own, with the names of its runs.
    """
    sets = comparison.by_questions
    told: list[str] = []
    for runs, arms in sets.items():
        able = [arm for arm in arms if arm.compares and not arm.role and arm.metrics["em"]]
        if able:
            of = f"{runs}: " if len(sets) > 1 else ""
            said = (_best(able, comparison), *_cheapest(able, comparison), *_gained(arms, comparison))
            told += [f"{of}{sentence}" for sentence in said]
    return tuple(told) or ("No agent played well enough to be compared.",)


def _best(able: Sequence[ArmSummary], comparison: Comparison) -> str:
    """The best EM, and those that are not worse beyond chance."""
    best = max(able, key=_em)
    if _em(best) <= 0:
        return "No agent answered anything rightly."
    told = f"Best EM: {best.label}, {figure(_em(best), 3)}{_range(best.metrics['em'])}"
    return f"{told}{_beside(best, able, comparison, _p_em)}."


def _cheapest(able: Sequence[ArmSummary], comparison: Comparison) -> list[str]:
    """The fewest tokens for a right answer, among those that count in one unit."""
    told = []
    for unit in dict.fromkeys(arm.unit for arm in able):
        paid = [(arm, arm.for_an_answer) for arm in able if arm.unit == unit and arm.for_an_answer]
        if paid:
            least, cost = min(paid, key=lambda one: one[1].value)
            text = f"{least.label}, {figure(cost.value)}{_range(cost, digits=0)}, in {unit}"
            others = _beside(least, [arm for arm, _ in paid], comparison, lambda pair: pair.p_cost)
            told.append(f"Fewest tokens for a right answer: {text}{others}.")
    return told


def _beside(
    first: ArmSummary, arms: Sequence[ArmSummary], comparison: Comparison, p: Callable[[Pair], float | None]
) -> str:
    """Those that chance may have put behind the first, and those of which nobody knows."""
    alike, unknown = [], []
    for arm in arms:
        pair = comparison.difference(first.label, arm.label)
        if pair is not None and not _sure(p(pair)):
            alike.append(arm.label)
        elif pair is None and arm is not first:
            unknown.append(arm.label)
    told = f"; not told apart from it: {', '.join(alike)}" if alike else ""
    return told + (f"; no pair of episodes left to compare: {', '.join(unknown)}" if unknown else "")


def _gained(arms: Sequence[ArmSummary], comparison: Comparison) -> list[str]:
    """For each `no_memory` the greatest gain over it, who is like that, and how many gained or lost."""
    by_label = {arm.label: arm for arm in arms}
    over: dict[str, list[Pair]] = {}
    for pair in comparison.gains:
        if pair.a in by_label:
            over.setdefault(pair.b, []).append(pair)
    if not over:
        asking = any(arm.model and arm.agent != WITHOUT and arm.compares for arm in arms)
        return [f"What memory gained is not known: add {WITHOUT} to see it."] if asking else []
    told = []
    for without, gains in over.items():
        most = max(gains, key=lambda pair: pair.metrics["em"].value)
        like = _beside(by_label[most.a], [by_label[pair.a] for pair in gains], comparison, _p_em)
        told.append(_most(most, like, without, gains))
    return told


def _most(most: Pair, like: str, without: str, gains: Sequence[Pair]) -> str:
    """A sentence on the gains over one `no_memory`: the greatest, who is like it, how many there are."""
    sure = [pair.metrics["em"].value > 0 for pair in gains if _sure(pair.p["em"])]
    of = f"of {len(gains)} agent{'s' * (len(gains) != 1)}"
    beyond = f"{of} {sum(sure)} gained and {len(sure) - sum(sure)} lost beyond chance."
    gain, p = most.metrics["em"], most.p["em"]
    value = f"{figure(gain.value, 3, '+')} EM{_range(gain, '+')}, p {p_told(p)}"
    if gain.value <= 0:
        return f"No gain seen over {without}: at most {value}; {beyond}"
    return f"Most gained over {without}: {most.a}, {value}{like}; {beyond}"


def _em(arm: ArmSummary) -> float:
    em = arm.metrics["em"]
    return -1.0 if em is None else em.value


def _p_em(pair: Pair) -> float:
    return pair.p["em"]


def _sure(p: float | None) -> bool:
    """Whether a difference is beyond chance."""
    return p is not None and p < BEYOND


def _range(interval: Interval | None, sign: str = "", digits: int = 2) -> str:
    if interval is None or interval.low is None or interval.high is None:
        return ""
    between = " to " if sign else "–"
    return f" ({figure(interval.low, digits, sign)}{between}{figure(interval.high, digits, sign)})"
