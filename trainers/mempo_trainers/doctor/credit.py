"""What is wrong with advantages and log-probs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from mempo_agents.table import keeps_memory
from mempo_env.errors import ConfigError
from mempo_trainers.doctor.figures import (
    SOLVED,
    UNREAD,
    Finding,
    Rows,
    Settings,
    by_set,
    column,
    configured,
    invalid_share,
    numbers,
    option,
    steps_of,
)
from mempo_trainers.losses import SAMPLER_GAP

DEAD = 0.8
"""Share of groups without any advantage. Half is healthy still: where one rollout in ten succeeds, 43 % of
groups of 8 are all equal."""

ALIKE = 0.05
"""Edit distance within groups below which sampling explores nothing."""

FIRST_ROUND = 0.01
"""Size of the advantages in first rounds, as a share of those in later ones."""

PAYS_MEMORY = frozenset({"mempo", "mempo_gain", "spread", "attribution"})
"""Estimators that pay for memory already,"""

MEANS = frozenset({"em_mean", "f1_mean", "bank"})
"""and rewards that pay for each answer."""

FIRST_KL = 1e-5
"""Nats a token in the first step: the reference is the policy itself, and float noise squares to less."""

NO_NUMBERS = "advantages are no numbers in any step: see not_finite"

_ENDS = (("min", min), ("max", max))


def no_advantage(rows: Rows, settings: Settings) -> Finding | str | None:
    """Nearly all groups are without any advantage although the task is not solved."""
    if not numbers(rows):
        return NO_NUMBERS
    rows = [row for row in numbers(rows) if row["success"] < SOLVED]
    groups = sum(row["groups"] for row in rows)
    dead = sum(row["dead_groups"] for row in rows)
    if dead < DEAD * groups or not groups:
        return None
    outcome, memory = (sum(row[f"degenerate_{name}"] for row in rows) for name in ("groups", "memory"))
    told = "" if math.isnan(memory) else f", memory in {memory:,}"
    alike = float(column(rows, "edit_distance").mean())
    alone = configured(settings, "rollouts", None) == 1
    if alone and outcome == groups:
        action = (
            "a group of one rollout has nothing that its outcome is compared with: "
            f"{option(settings, 'rollouts', '8')}, or a critic "
            f"({option(settings, 'algo', 'ppo')} {option(settings, 'credit', 'gae')})"
        )
    elif invalid_share(rows) >= UNREAD:
        action = "hardly a round can be read, so all are worth the same: see invalid_rounds"
    elif alike < ALIKE:
        action = f"all rollouts of a group are alike: raise {option(settings, 'entropy')}"
        action += "" if by_set(settings) else ", sample at a higher temperature"
    elif pays_memory(settings) and not any(row.get("memory_tokens", 1) for row in rows):
        action = (
            "no memory is written, and what memories are worth is paid to their tokens alone: start from a "
            "policy that writes some"
        )
    elif math.isnan(memory) or memory < dead:
        action = denser(settings)
    else:
        action = (
            "neither outcome nor memory differs within groups: see whether searches find anything (recall)"
        )
    normalised = [f"{pick(row[f'outcome_advantage_{end}'] for row in rows):.3g}" for end, pick in _ENDS]
    return Finding(
        symptom="no_advantage",
        severity="error",
        evidence=(
            f"{dead:,} of {groups:,} groups dead in {len(rows)} unsolved steps from {steps_of(rows)}; "
            f"outcome degenerate in {outcome:,}{told}; reward "
            f"{min(row['reward_min'] for row in rows):.3g} to {max(row['reward_max'] for row in rows):.3g}, "
            f"normalised {' to '.join(normalised)}; "
            + ("one rollout in each group" if alone else f"edit distance within groups {alike:.2f}")
        ),
        threshold=f"{DEAD:.0%} of groups",
        action=action,
    )


def pays_memory(settings: Settings) -> bool:
    """Whether the run's credit has a term for memory."""
    return configured(settings, "credit", "mempo") in PAYS_MEMORY | {"placebo"}


def denser(settings: Settings) -> str:
    """What else would make rollouts differ: settings of the run's own command that are not so already."""
    task = settings.get("task")
    task = {**task, **task.get("environment", {})} if isinstance(task, dict) else {}
    several = task.get("objectives", 2) != 1
    kept = True
    with suppress(ConfigError):  # an agent of one's own, whose module is elsewhere
        kept = "agent" not in task or keeps_memory(task["agent"], task)
    paid = configured(settings, "credit", "") in PAYS_MEMORY
    told = [option(settings, "credit", "mempo")] * (kept and not paid)
    told += [option(settings, "reward", "em_mean")] * (several and task.get("reward") not in MEANS)
    told += [f"fewer {option(settings, 'objectives')}"] * several
    if not told:
        return "no setting makes the signal denser: start from a policy that is right now and then"
    return f"give a denser signal: {_joined(told)}"


def _joined(told: Sequence[str]) -> str:
    *most, last = told
    return f"{', '.join(most)}, or {last}" if len(most) > 1 else " or ".join(told)


def first_round(rows: Rows, settings: Settings) -> Finding | str | None:
    """The outcome teaches something, but nothing of it reaches the first round."""
    if not numbers(rows):
        return NO_NUMBERS
    rows = numbers(rows)
    told = [row for row in rows if row["degenerate_groups"] < row["groups"] and row["rounds"] > 1]
    if not told:
        return "no step has outcomes that differ within a group, in rollouts of two rounds or more"
    first, later = (float(column(told, f"advantage_{name}").mean()) for name in ("first", "later"))
    if first >= FIRST_ROUND * later or not later:
        return None
    return Finding(
        symptom="first_round",
        severity="error",
        evidence=(
            f"mean size of advantages {first:.3g} in first rounds, {later:.3g} in later ones, over the "
            f"{len(told)} of {steps_of(rows)} whose outcomes differ"
        ),
        threshold=f"{FIRST_ROUND:.0%} of those in later rounds",
        action="carry returns over the observations between rounds; gamma and lambda of 1 inside a round",
    )


def memory_term(rows: Rows, settings: Settings) -> Finding | str | None:
    """The memory term is dead in every group of every step, while the outcome teaches something."""
    if all(math.isnan(row["degenerate_memory"]) for row in rows):
        return "the estimator tells of no rewards of memories"
    rows = [row for row in rows if row["success"] < SOLVED]
    groups, alive = (sum(row["groups"] for row in rows), sum(_outcome_alive(row) for row in rows))
    if not alive or any(row["degenerate_memory"] < row["groups"] for row in rows):
        return None
    return Finding(
        symptom="memory_term",
        severity="warning",
        evidence=(
            f"rewards of memories teach nothing in {groups:,} of {groups:,} groups of {len(rows)} unsolved "
            f"steps from {steps_of(rows)}, outcomes something in {alive:,}; memory_std "
            f"{column(rows, 'memory_std').max():.3g} at most"
        ),
        threshold="every group of every step",
        action=(
            "see whether episodes have a second round (max_rounds), whether memories of a group differ, and "
            "the option floor; or do without the term: "
            f"{option(settings, 'credit', 'grpo')}"
        ),
    )


def _outcome_alive(row: Mapping[str, Any]) -> int:
    return int(row["groups"] - row["degenerate_groups"])


def first_kl(rows: Rows, settings: Settings) -> Finding | str | None:
    """The reference is not the policy that the run began with."""
    if configured(settings, "kl", None) == 0:
        return "no reference is kept (kl 0)"
    kl = abs(column(rows[:1], "kl")[0])
    if kl <= FIRST_KL:
        return None
    return Finding(
        symptom="first_kl",
        severity="error",
        evidence=f"KL to the reference is {kl:.3g} nats a token in {steps_of(rows[:1])}, before any update",
        threshold=f"{FIRST_KL:g} nats",
        action="load the reference from the checkpoint that the run starts from; begin anew",
    )


def sampler_gap(rows: Rows, settings: Settings) -> Finding | None:
    """Those who wrote the tokens and those who learn from them disagree about how probable they were."""
    gap = column(rows, "sampler_gap")
    wrong, known = np.flatnonzero(~(gap <= SAMPLER_GAP)), gap[np.isfinite(gap)]
    if not len(wrong):
        return None
    apart = f"up to {known.max():.3g} nats apart" if len(known) else "not to be compared"
    broken = len(gap) - len(known)
    return Finding(
        symptom="sampler_gap",
        severity="error",
        evidence=(
            f"log-probs of sampler and trainer {apart}, in {len(wrong)} of "
            f"{len(rows)} steps, first in step {rows[wrong[0]]['step']}"
            + f"; no numbers in {broken:,}"
            * (broken > 0)
        ),
        threshold=f"{SAMPLER_GAP:g} nats on one token",
        action="show both the same text at the same temperature, with the same weights; no top-p, no top-k",
    )


def not_finite(rows: Rows, settings: Settings) -> Finding | None:
    """Losses or gradients that are no numbers, whose updates were left out, or advantages that are none."""
    known = numbers(rows)
    wild = [row for row in rows if row not in known]
    bad = [
        row
        for row in rows
        if row["skipped_updates"] or not math.isfinite(row["loss"] + row["grad_norm"]) or row in wild
    ]
    if not bad:
        return None
    credit, told = "", ""
    action = f"lower {option(settings, 'learning_rate')}; look for log-probs of -inf"
    if wild:
        credit = bad[0].get("credit", "the estimator")
        told = f"; advantages of {credit} are no numbers in {len(wild)} of them, from {steps_of(wild[:1])}"
    if bad[0] in wild:
        action = f"look at what {credit} computes, and at the rewards and log-probs that it reads"
    skipped = int(sum(row["skipped_updates"] for row in bad))
    return Finding(
        symptom="not_finite",
        severity="error",
        evidence=(
            f"{skipped:,} updates left out in {len(bad)} of {len(rows)} steps, from {steps_of(bad[:1])}{told}"
        ),
        threshold="none",
        action=action,
    )
