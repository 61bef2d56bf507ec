"""What is wrong with how a policy learns."""

from __future__ import annotations

import math

import numpy as np

from mempo_trainers.doctor.credit import DEAD, FIRST_ROUND, denser
from mempo_trainers.doctor.figures import (
    FLAT,
    NOISE,
    SOLVED,
    Finding,
    Rows,
    Settings,
    column,
    configured,
    noise,
    option,
    quarters,
    steps_of,
)

COLLAPSE = 0.2
"""Fall of the mean reward from its best part to the end of a run, in units of a full reward."""

SHARP = 0.05
"""Entropy, as a share of the first step's, below which nothing new is tried."""

CLIPPED = 0.3
"""Share of tokens without gradient because their ratio was clipped: the steps are too long."""

STILL = 0.02
"""Fall of the entropy, as a share of that in the first quarter, that a policy shows which learns anything."""

HEAVY_KL = 1.0
"""Weight of the divergence from which a nat a token costs a standard deviation of the outcome, or more."""

HEAVY_ENTROPY = 0.1
"""Weight of the entropy, ten times what is usual, from which trying pays as much as being right."""


def reward_flat(rows: Rows, settings: Settings) -> Finding | None:
    """What is minimised falls, and nothing comes of it: neither reward nor right answers."""
    loss = column(rows, "loss") - configured(settings, "entropy", 0.0) * column(rows, "entropy")
    loss += configured(settings, "value_weight", 0.0) * column(rows, "value_loss")
    loss += configured(settings, "kl", 0.0) * column(rows, "kl")
    first, last = quarters(loss)
    fell = first.mean() - last.mean()
    if not fell > NOISE * noise(first, last) or rows[-1]["success"] >= SOLVED:
        return None
    for name in ("reward", "em"):
        before, after = quarters(column(rows, name)) if name in rows[0] else (first, first)
        if abs(after.mean() - before.mean()) > max(FLAT, NOISE * noise(before, after)):
            return None
    memory, other = (float(column(rows, f"advantage_{name}").mean()) for name in ("memory", "other"))
    rewards = [f"{part.mean():.3f}" for part in quarters(column(rows, "reward"))]
    only_memory = other < FIRST_ROUND * memory
    return Finding(
        symptom="reward_flat",
        severity="warning",
        evidence=(
            f"loss {first.mean():.4f} to {last.mean():.4f} and reward {' to '.join(rewards)} from the first "
            f"quarter of {steps_of(rows)} to the last; kl weight {configured(settings, 'kl', 0.0):g}; "
            f"mean size of advantages {memory:.3g} on memory, {other:.3g} elsewhere; "
            f"{column(rows, 'memory_tokens').mean():.0%} of what is written is memory"
        ),
        threshold=f"a fall of {NOISE:g} standard errors, a gain in reward of at most {FLAT:g}",
        action=(
            f"only memory is paid for, so make the outcome teach too; {denser(settings)}"
            if only_memory
            else "see whether the reward is that of the answers given: score a few by hand; raise "
            f"{option(settings, 'kl')}"
        ),
    )


def nothing_moves(rows: Rows, settings: Settings) -> Finding | str | None:
    """There are advantages to learn from, and the policy does what it did at the beginning."""
    dead, groups = (float(column(rows, name).sum()) for name in ("dead_groups", "groups"))
    first, last = quarters(column(rows, "entropy"))
    if quarters(column(rows, "success"))[1].mean() >= SOLVED:
        return None
    if not abs(last.mean()) >= (1 - STILL) * abs(first.mean()) or _rises(rows):
        return None
    if not np.isfinite(column(rows, "grad_norm")).any():
        return "it does not, for no gradient is a number: see not_finite"
    if dead >= DEAD * groups:
        return "it has next to nothing to learn from, for groups are dead: see no_advantage"
    entropy, kl = (float(configured(settings, name, 0.0)) for name in ("entropy", "kl"))
    if kl >= HEAVY_KL:
        smaller = f"a smaller {option(settings, 'kl')} than {kl:g}"
        action = f"the divergence holds it where it began: {smaller}, such as 0.01"
    elif entropy >= HEAVY_ENTROPY:
        action = (
            f"it is paid for chance: a smaller {option(settings, 'entropy')} than {entropy:g}, such as 0.01"
        )
    else:
        action = (
            f"a greater {option(settings, 'learning_rate')}; if that is of no use, see whether rewards "
            "depend on what it does"
        )
    told = ("reward", "entropy", *["kl"] * (kl > 0), "policy_kl", "grad_norm")  # without it, no reference
    ends = {name: quarters(column(rows, name)) for name in told}
    return Finding(
        symptom="nothing_moves",
        severity="warning",
        evidence=(
            f"from the first quarter of {steps_of(rows)} to the last: "
            + "; ".join(f"{name} {a.mean():.3g} to {b.mean():.3g}" for name, (a, b) in ends.items())
            + f"; {groups - dead:,.0f} of {groups:,.0f} groups have advantages; learning rate "
            f"{configured(settings, 'learning_rate', math.nan):g}, kl weight {kl:g}, entropy weight "
            f"{entropy:g}"
        ),
        threshold=(
            f"a gain of at most {FLAT:g} or {NOISE:g} standard errors, entropy at least {1 - STILL:.0%} of "
            f"what it was, success below {SOLVED:g}"
        ),
        action=action,
    )


def _rises(rows: Rows) -> bool:
    """Whether the reward gains anything, or what comes before it: searches that find, single answers."""
    told = [quarters(column(rows, name)) for name in ("reward", "em", "recall") if name in rows[0]]
    return any(
        after.mean() - before.mean() > max(FLAT, NOISE * noise(before, after)) for before, after in told
    )


def collapse(rows: Rows, settings: Settings) -> Finding | None:
    """The reward was good, and is lost again."""
    reward = column(rows, "reward")
    size = max(len(reward) // 8, 2)
    means = np.convolve(reward, np.full(size, 1 / size), "valid")
    best = int(means.argmax())
    good, end = slice(best, best + size), slice(len(reward) - size, None)
    fell = means[best] - means[-1]
    if not fell > max(COLLAPSE, NOISE * noise(reward[good], reward[end])):
        return None
    told = {name: column(rows, name) for name in ("entropy", "policy_kl", "clip_share", "grad_norm")}
    then, now = ({name: float(values[part].mean()) for name, values in told.items()} for part in (good, end))
    slower = f"a lower {option(settings, 'learning_rate')}"
    if max(column(rows, "clip_share")) > CLIPPED:
        action = f"the steps are too long: {slower}, fewer {option(settings, 'epochs')}"
    elif now["entropy"] < SHARP * float(column(rows, "entropy")[0]):
        action = f"it stopped trying: {option(settings, 'entropy', '0.01')}, {slower}, an earlier checkpoint"
    else:
        action = f"{slower}, hold it near its start by {option(settings, 'kl', '0.01')}"
    return Finding(
        symptom="collapse",
        severity="error",
        evidence=(
            f"reward {means[best]:.3f} in {steps_of(rows[good])}, {means[-1]:.3f} in {steps_of(rows[end])}; "
            + "; ".join(f"{name} {then[name]:.3g} to {now[name]:.3g}" for name in told)
            + f"; most clipped {column(rows, 'clip_share').max():.0%}"
        ),
        threshold=f"a fall of {COLLAPSE:g} and of {NOISE:g} standard errors",
        action=action,
    )


def entropy_gone(rows: Rows, settings: Settings) -> Finding | None:
    """The policy is sure of what it does before it does it right."""
    entropy = column(rows, "entropy")
    _, last = quarters(entropy)
    if last.mean() >= SHARP * entropy[0] or quarters(column(rows, "success"))[1].mean() >= SOLVED:
        return None
    return Finding(
        symptom="entropy_gone",
        severity="error",
        evidence=(
            f"entropy {entropy[0]:.3g} nats a token in step {rows[0]['step']}, {last.mean():.3g} in the last "
            f"quarter of {steps_of(rows)}, where success is {quarters(column(rows, 'success'))[1].mean():.3f}"
        ),
        threshold=f"{SHARP:.0%} of the first step's, at a success below {SOLVED:g}",
        action=f"{option(settings, 'entropy', '0.01')}, a lower {option(settings, 'learning_rate')}",
    )
