"""What a comparison comes to, in three sentences."""

from __future__ import annotations

from collections.abc import Sequence

from mempo_benchmarks.results import WITHOUT
from mempo_benchmarks.stats import Interval
from mempo_benchmarks.summary import ArmSummary, Comparison


def conclusions(comparison: Comparison) -> tuple[str, ...]:
    """Who is best, who is cheapest, what memory gained; references and those that failed stand aside."""
    able = [arm for arm in comparison.arms if arm.compares and not arm.role and arm.metrics["em"]]
    if not able:
        return ("No agent played well enough to be compared.",)
    return (_best(able, comparison), *_cheapest(able), *_gained(able, comparison))


def _best(able: Sequence[ArmSummary], comparison: Comparison) -> str:
    """The best EM, and those whose paired difference to it has 0 in its interval."""
    best = max(able, key=_em)
    if _em(best) <= 0:
        return "No agent answered anything rightly."
    alike, apart = [], []
    for arm in able:
        pair = comparison.difference(best.label, arm.label)
        if pair is not None and not _sure(pair.metrics["em"]):
            alike.append(arm.label)
        elif pair is None and arm is not best:
            apart.append(arm.label)
    told = f"Best EM: {best.label}, {_em(best):.3f}{_range(best.metrics['em'])}"
    told += f"; not told apart from it: {', '.join(alike)}" if alike else ""
    return told + (f"; of other questions: {', '.join(apart)}" if apart else "") + "."


def _cheapest(able: Sequence[ArmSummary]) -> list[str]:
    """The fewest tokens for a right answer, among those that count in one unit."""
    told = []
    for unit in dict.fromkeys(arm.unit for arm in able):
        paid = {arm.label: cost for arm in able if arm.unit == unit and (cost := _tokens(arm)) is not None}
        if paid:
            label = min(paid, key=lambda label: paid[label])
            told.append(f"Fewest tokens for a right answer: {label}, {paid[label]:,.0f} ({unit}).")
    return told


def _gained(able: Sequence[ArmSummary], comparison: Comparison) -> list[str]:
    """The greatest memory-isolated gain, and how many agents gained or lost."""
    gains = {pair.a: pair.metrics["em"] for pair in comparison.gains}
    if not gains:
        asking = any(arm.model and arm.agent != WITHOUT for arm in able)
        return [f"What memory gained is not known: add {WITHOUT} to see it."] if asking else []
    most = max(gains, key=lambda label: gains[label].value)
    sure = [gain.value > 0 for gain in gains.values() if _sure(gain)]
    of = f"of {len(gains)} agent{'s' * (len(gains) != 1)}"
    beyond = f"{of} {sum(sure)} gained and {len(sure) - sum(sure)} lost beyond chance."
    if gains[most].value <= 0:
        return [f"Memory gained nothing over {WITHOUT}: {beyond}"]
    gain = f"{gains[most].value:+z.3f} EM over {WITHOUT}{_range(gains[most], '+')}"
    return [f"Most gained by memory: {most}, {gain}; {beyond}"]


def _em(arm: ArmSummary) -> float:
    em = arm.metrics["em"]
    return -1.0 if em is None else em.value


def _tokens(arm: ArmSummary) -> float | None:
    """Prompt and output tokens of all episodes for each right answer; None if none was right."""
    parts = [arm.spent[key].right for key in ("prompt", "output") if key in arm.spent]
    known = [part.value for part in parts if part is not None]
    return sum(known) if known else None


def _sure(difference: Interval) -> bool:
    """Whether the interval leaves 0 out."""
    low, high = difference.low, difference.high
    return low is not None and high is not None and (low > 0 or high < 0)


def _range(interval: Interval | None, sign: str = "") -> str:
    if interval is None or interval.low is None or interval.high is None:
        return ""
    between = " to " if sign else "–"
    return f" ({interval.low:{sign}z.2f}{between}{interval.high:{sign}z.2f})"
