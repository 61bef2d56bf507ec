"""What is wrong with a training run, read off its settings and the rows of its metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from msgspec import Struct

from mempo_trainers.doctor import credit, learning, memory
from mempo_trainers.doctor.figures import Finding, Rows, Settings

__all__ = ["SYMPTOMS", "Diagnosis", "Finding", "Symptom", "diagnose", "reproduces"]

Check: TypeAlias = Callable[[Rows, Settings], "Finding | None"]


class Symptom(Struct, frozen=True):
    """What is looked for.

    Attributes:
        check: Finds it, in rows that have what it needs.
        healthy: What is true where it is not found.
        needs: Fields of the metrics.
        steps: Rows without which it says nothing.
    """

    check: Check
    healthy: str
    needs: tuple[str, ...]
    steps: int = 1


class Diagnosis(Struct, frozen=True):
    """What was found, what is fine (symptom: in words), and what could not be checked (symptom: why)."""

    findings: tuple[Finding, ...]
    fine: dict[str, str]
    unchecked: dict[str, str]


def diagnose(rows: Rows, settings: Settings) -> Diagnosis:
    """Look for every symptom.

    Args:
        rows: Of the metrics, one a step; a number that was not finite is None.
        settings: Of the run.
    """
    findings: list[Finding] = []
    fine, unchecked = {}, {}
    for name, symptom in SYMPTOMS.items():
        missing = [field for field in symptom.needs if field not in rows[0]]
        if missing:
            unchecked[name] = f"{', '.join(missing)} not in the metrics"
        elif len(rows) < symptom.steps:
            unchecked[name] = f"needs {symptom.steps} steps, found {len(rows)}"
        elif (found := symptom.check(rows, settings)) is not None:
            findings.append(found)
        else:
            fine[name] = symptom.healthy
    return Diagnosis(tuple(findings), fine, unchecked)


TRENDS = 8
"""Rows without which a first and a last quarter say nothing."""

SYMPTOMS: Mapping[str, Symptom] = {
    "no_advantage": Symptom(
        credit.no_advantage,
        "advantages are alive wherever the task is not solved",
        ("groups", "dead_groups", "degenerate_groups", "degenerate_memory", "edit_distance", "success"),
    ),
    "reward_flat": Symptom(
        learning.reward_flat,
        "the reward does not lie flat under a falling loss",
        ("loss", "reward", "success", "kl", "value_loss", "advantage_memory", "memory_tokens"),
        TRENDS,
    ),
    "memory_empty": Symptom(memory.memory_empty, "memories hold something", ("memory_empty",), 4),
    "memory_grows": Symptom(
        memory.memory_grows, "memory grows to some use only", ("success", "rounds"), TRENDS
    ),
    "retrieval_slow": Symptom(
        memory.retrieval_slow, "the environment is as fast as it was", ("environment_seconds",), TRENDS
    ),
    "first_kl": Symptom(credit.first_kl, "the reference is the policy that the run began with", ("kl",)),
    "sampler_gap": Symptom(credit.sampler_gap, "sampler and trainer agree", ("sampler_gap",)),
    "collapse": Symptom(
        learning.collapse,
        "nothing learned was lost again",
        ("reward", "entropy", "policy_kl", "clip_share"),
        TRENDS,
    ),
    "entropy_gone": Symptom(
        learning.entropy_gone, "it tries other things still, or is done", ("entropy",), TRENDS
    ),
    "first_round": Symptom(
        credit.first_round, "credit reaches the first round", ("advantage_first", "advantage_later", "rounds")
    ),
    "guessed": Symptom(memory.guessed, "memories name no answer that was not shown", ("guessed",)),
    "not_finite": Symptom(credit.not_finite, "all losses and gradients are finite", ("skipped_updates",)),
}
"""By name, in the order in which they are told."""


def reproduces(rows: Rows, others: Rows) -> Finding | None:
    """Two runs of the same settings and seed differ: the first step and the metrics in which they do.

    Fields named after seconds are left out. A run that is shorter is compared as far as it goes.
    """
    for row, other in zip(rows, others, strict=False):
        differ = [
            name for name in {**row, **other} if "seconds" not in name and row.get(name) != other.get(name)
        ]
        if differ:
            told = "; ".join(f"{name} {row.get(name)} / {other.get(name)}" for name in differ[:4])
            return Finding(
                symptom="not_reproduced",
                severity="error",
                evidence=f"first different in step {row['step']}: {told} ({len(differ)} fields differ)",
                threshold="equal bit for bit",
                action="draw from generators seeded by (seed, step) alone; same versions, same threads",
            )
    return None
