"""What is wrong with what is written, with memories and searches."""

from __future__ import annotations

import math

import numpy as np

from mempo_trainers.doctor.figures import (
    FLAT,
    NOISE,
    UNREAD,
    Finding,
    Rows,
    Settings,
    by_set,
    column,
    invalid_share,
    noise,
    option,
    quarters,
    steps_of,
)

EMPTY = 0.9
"""Share of memories that hold nothing, from the second round on: there all that was found is lost."""

GROWTH = 2.0
"""Times that memory grew from the first quarter of a run to the last."""

GUESSED = 0.02
"""Memories, for each rollout, that name an answer which was shown nowhere."""

SLOWER = 2.0
"""Times that the environment became slower from the first quarter of a run to the last,"""

WAIT = 0.05
"""and the seconds a round from which on somebody waits for it."""


def invalid_rounds(rows: Rows, settings: Settings) -> Finding | str | None:
    """What is written can mostly not be read: nothing is searched, kept or answered by it."""
    share = invalid_share(rows)
    if math.isnan(share):
        return "no round was played in some of the last steps"
    if share < UNREAD:
        return None
    told = ""
    if "output_tokens" in rows[0]:
        told = f"; {quarters(column(rows, 'output_tokens'))[1].mean():,.0f} tokens are written in a call then"
        most = settings["policy"].get("max_new") if by_set(settings) else None
        told += f", at most {most:,}" if most else ""
    action = "start from a policy that knows the form of an action, and look at what it does"
    if by_set(settings):
        action = (
            "look at episodes with mempo view; where texts are cut off, a larger "
            f"{option(settings, 'max_new')}; where tags are missing, more steps of mempo train sft first"
        )
    return Finding(
        symptom="invalid_rounds",
        severity="error",
        evidence=f"{share:.0%} of rounds are invalid in the last quarter of {steps_of(rows)}{told}",
        threshold=f"{UNREAD:.0%} of rounds",
        action=action,
    )


def memory_empty(rows: Rows, settings: Settings) -> Finding | str | None:
    """Memories hold nothing: only their tags are written."""
    _, last = quarters(column(rows, "memory_empty"))
    if not last.mean() > EMPTY:
        return None
    if invalid_share(rows) >= UNREAD:
        return "they hold nothing, for hardly a round can be read: see invalid_rounds"
    return Finding(
        symptom="memory_empty",
        severity="warning",
        evidence=f"{last.mean():.0%} of memories are empty in the last quarter of {steps_of(rows)}",
        threshold=f"{EMPTY:.0%} of memories after the first round",
        action="lower the price of memory (memory_efficiency, write_cost), start from a policy that writes",
    )


def memory_grows(rows: Rows, settings: Settings) -> Finding | None:
    """Memory becomes longer and longer, to no use."""
    sizes, success = column(rows, "memory_length"), column(rows, "success")
    first, last = quarters(sizes)
    before, after = quarters(sizes[len(sizes) // 2 :])
    still = after.mean() - before.mean() > NOISE * noise(before, after)
    useful = quarters(success)[1].mean() - quarters(success)[0].mean() > FLAT
    if last.mean() < GROWTH * first.mean() or not still or useful:
        return None
    return Finding(
        symptom="memory_grows",
        severity="warning",
        evidence=(
            f"memory_length {first.mean():.1f} to {last.mean():.1f} from the first quarter of "
            f"{steps_of(rows)} to the last, still rising; success {quarters(success)[0].mean():.3f} to "
            f"{quarters(success)[1].mean():.3f}"
        ),
        threshold=f"{GROWTH:g} times, without more success",
        action="set max_memory_tokens, or pay for room: memory_efficiency up to a fifth of the outcome",
    )


def guessed(rows: Rows, settings: Settings) -> Finding | None:
    """Memories name answers that no retrieved passage holds: the memory term can be won so."""
    each = column(rows, "guessed")
    worst = int(each.argmax())
    if quarters(each)[1].mean() <= GUESSED:
        return None
    total = round(float((each * column(rows, "rollouts")).sum()))
    return Finding(
        symptom="guessed",
        severity="warning",
        evidence=(
            f"{total:,} memories name an answer that was not shown; a rollout has "
            f"{quarters(each)[1].mean():.3f} of them in the last quarter of {steps_of(rows)}, "
            f"{each[worst]:.3f} in step {rows[worst]['step']}"
        ),
        threshold=f"{GUESSED:g} a rollout",
        action="a smaller weight of the memory term, questions that nobody knows by heart",
    )


def retrieval_slow(rows: Rows, settings: Settings) -> Finding | None:
    """The environment, searches included, takes longer and longer."""
    first, last = quarters(column(rows, "environment_seconds"))
    slow, fast = float(np.quantile(last, 0.25)), float(np.quantile(first, 0.75))
    if slow < SLOWER * fast or slow < WAIT:
        return None
    return Finding(
        symptom="retrieval_slow",
        severity="warning",
        evidence=(
            f"a round of all rollouts waits {np.median(first):.3f} s for searches in the first quarter "
            f"of {steps_of(rows)}, {np.median(last):.3f} s in the last"
        ),
        threshold=f"{SLOWER:g} times slower (quartile against quartile), from {WAIT:g} s on",
        action="look at the retriever's own log and memory; serve the index from a process of its own",
    )
