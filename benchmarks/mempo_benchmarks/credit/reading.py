"""A short reading of a lab in words, made from its numbers, and what they do not show."""

from __future__ import annotations

from collections.abc import Sequence

from mempo_benchmarks.credit.measures import REFERENCE
from mempo_benchmarks.credit.results import FEW, LEAST, USEFUL, Lab, Row, Stage
from mempo_benchmarks.figures import figure, percent
from mempo_benchmarks.stats import Interval

LIMITS = (
    "What it does not show: how fast a policy learns. A correlation is of single operations; an estimator "
    "that is mostly noise still learns, for the noise averages out over batches, and one that is right "
    "about memory says nothing about what to search for.",
    "The truth is that of these policies on this toy task, for memory operations alone. What the toy "
    "policy says of a memory nearly tells whether the answer is in it; a language model's P(Z) need not "
    "be that sharp.",
    "The estimators saw em_mean as the outcome, like the truth. The policies are the runs' own, and the "
    "differences between many rows are not corrected for their number.",
)
"""What holds whatever the numbers are."""


def number(value: float, digits: int = 2, sign: str = "") -> str:
    """A number with a true minus, and no sign before 0."""
    text = figure(value, digits, sign)
    return text.replace("-", "−") if set(text) & set("123456789") else text.lstrip("+")


def span(interval: Interval, digits: int = 2, sign: str = "") -> str:
    """A value with its bounds in brackets."""
    value = number(interval.value, digits, sign)
    if interval.low is None or interval.high is None:
        return value
    return f"{value} ({number(interval.low, digits, sign)} to {number(interval.high, digits, sign)})"


def reading(lab: Lab) -> list[tuple[str, list[str]]]:
    """Headings with their sentences: one for each stage, and the limits."""
    parts = [(_title(stage), [text for text in _stage(stage) if text]) for stage in lab.stages]
    return [*parts, ("What to make of it", list(LIMITS))]


def _title(stage: Stage) -> str:
    return f"{stage.name}: {percent(stage.em)} of the objectives right"


def _stage(stage: Stage) -> list[str]:
    return [
        _few(stage),
        _useful(stage),
        _sure(stage),
        *_ranks(stage),
        _signs(stage),
        _chance(stage),
        _gold(stage),
    ]


def _few(stage: Stage) -> str:
    asked = len(set(stage.question))
    if asked >= FEW:
        return ""
    return (
        f"The operations are of {asked} questions: below {FEW} the intervals are too narrow, and the "
        "reliability is known to a tenth at best. Read nothing into them; take more --questions."
    )


def _useful(stage: Stage) -> str:
    low, high = USEFUL
    if low <= stage.em <= high:
        return ""
    return (
        f"The policy is outside of {low:.0%} to {high:.0%}, where operations differ most: take another "
        "step of the run."
    )


def _sure(stage: Stage) -> str:
    r = stage.reliability[0]
    text = (
        f"The truth rests on {stage.pairs:,} pairs of forks; its ranks have a reliability of {number(r)}"
        f" ({number(stage.reliability[1])} within questions)."
    )
    return (
        text if r >= LEAST else f"{text} That is below {LEAST}: no correlation is shown, take more --forks."
    )


def _ranks(stage: Stage) -> list[str]:
    known = [(row, row.rank) for row in stage.rows if row.rank is not None]
    if not known:
        return []
    best, rank = max(known, key=lambda pair: pair[1].value)
    base = _row(stage, REFERENCE).rank
    texts = [f"{best.name} agrees best with the truth: rank correlation {span(rank)}"]
    if base is not None and best.name != REFERENCE:
        texts[0] += f"; {REFERENCE} has {span(base)}"
    above, below = ([row.name for row in stage.rows if _beyond(row.gain, side)] for side in (1, -1))
    told = [
        f"{'above' if side == 'above' else 'below'} {REFERENCE} with an interval that leaves 0 out: "
        f"{_list(names)}"
        for side, names in (("above", above), ("below", below))
        if names
    ]
    texts[0] += ". " + (
        _first(". ".join(_first(t) for t in told))
        if told
        else f"No interval of a difference to {REFERENCE} leaves 0 out"
    )
    texts[0] += "."
    return [*texts, _control(stage)]


def _control(stage: Stage) -> str:
    control = _row(stage, "placebo")
    placebo, memory = control.rank, _row(stage, "mempo").rank
    if placebo is None or memory is None or placebo.high is None or memory.low is None:
        return ""
    told = "the intervals overlap, so mempo is not set apart"
    if _above(memory, placebo):
        told = "what a memory holds is what counts"
    elif _above(placebo, memory):
        told = "they agree better than mempo, so what a memory holds is not what counts"
    spread = (
        "" if control.spread is None else f" as the mean of shuffles whose sd is {number(control.spread)}"
    )
    return f"The same memory rewards shuffled over rounds (placebo) have {span(placebo)}{spread}: {told}."


def _signs(stage: Stage) -> str:
    wrong = [(row.name, row.wrong) for row in stage.rows if row.wrong is not None]
    if not wrong:
        return "Of no operation the sign is known."
    name, least = min(wrong, key=lambda pair: pair[1].value)
    base = dict(wrong).get(REFERENCE)
    text = f"Of the {stage.known} operations whose sign is known, {name} gets {span(least)} wrong"
    return f"{text}, {REFERENCE} {span(base)}; a coin 0.5." if base else f"{text}; a coin 0.5."


def _chance(stage: Stage) -> str:
    base, memory = _row(stage, REFERENCE).noise, _row(stage, "mempo").noise
    if base is None or memory is None:
        return ""
    return (
        f"When the rest of the group is drawn anew, {percent(base.value)} of the variance of {REFERENCE} is "
        f"chance, and {percent(memory.value)} of that of mempo."
    )


def _gold(stage: Stage) -> str:
    if stage.gold is None:
        return "No gold fact was in view that could be kept and dropped."
    text = (
        f"Keeping a gold fact instead of dropping it is truly worth {span(stage.gold, 3, '+')} of R; the "
        f"policy kept {percent(stage.gold_kept)} of {stage.gold_facts}."
    )
    found = [
        f"{name} {span(gold, 3, '+')}" for name in (REFERENCE, "mempo") if (gold := _row(stage, name).gold)
    ]
    return (
        f"{text} The difference that estimators make, on the same scale: {', '.join(found)}."
        if found
        else text
    )


def _row(stage: Stage, name: str) -> Row:
    return next(row for row in stage.rows if row.name == name)


def _beyond(interval: Interval | None, side: int) -> bool:
    """The whole interval lies on one side of 0."""
    if interval is None or interval.low is None or interval.high is None:
        return False
    return interval.low > 0 if side > 0 else interval.high < 0


def _above(one: Interval, other: Interval) -> bool:
    """The whole of an interval lies above another."""
    return one.low is not None and other.high is not None and one.low > other.high


def _list(names: Sequence[str]) -> str:
    return ", ".join(names)


def _first(text: str) -> str:
    return text[:1].upper() + text[1:]
