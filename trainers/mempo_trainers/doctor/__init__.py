"""What is wrong with a training run, read off its settings and the rows of its metrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

from msgspec import Struct

from mempo_trainers.doctor import credit, learning, memory
from mempo_trainers.doctor.figures import SUMS, Finding, Rows, Settings, aggregation, configured

__all__ = ["SYMPTOMS", "Diagnosis", "Finding", "Symptom", "diagnose", "reproduces"]

Check: TypeAlias = Callable[[Rows, Settings], "Finding | str | None"]
"""What it found; or why these rows cannot tell, in words; or None: nothing."""


class Symptom(Struct, frozen=True):
    """What is looked for.

    Attributes:
        check: Finds it, in rows that have what it needs.
        healthy: What is true where it is not found.
        needs: Fields of the metrics, all of them numbers.
        steps: Rows without which it says nothing.
        a_token: It needs entropy and divergence in nats a token; some aggregations log sums.
        ruled_out: A field of metrics that are of runs in which it cannot be, and why, in words.
    """

    check: Check
    healthy: str
    needs: str
    steps: int = 1
    a_token: bool = False
    ruled_out: tuple[str, str] | None = None


class Diagnosis(Struct, frozen=True):
    """What was found, and in how much of a run.

    Attributes:
        findings: What is wrong.
        fine: What is not: symptom, in words.
        unchecked: What could not be checked: symptom, why.
        steps: Rows of metrics that were looked at.
        planned: Steps of the run when it is finished; None: its settings do not say.
    """

    findings: tuple[Finding, ...]
    fine: dict[str, str]
    unchecked: dict[str, str]
    steps: int
    planned: int | None

    @property
    def checked(self) -> int:
        """How many symptoms were looked for."""
        return len(self.findings) + len(self.fine)

    @property
    def unfinished(self) -> bool:
        """Whether steps are left."""
        return self.planned is not None and self.steps < self.planned


def diagnose(rows: Rows, settings: Settings) -> Diagnosis:
    """Look for every symptom.

    Args:
        rows: Of the metrics, one a step; a number that was not finite is None.
        settings: Of the run.
    """
    rows = [{name: math.nan if x is None else x for name, x in row.items()} for row in rows]
    findings: list[Finding] = []
    fine, unchecked = {}, {}
    for name, symptom in SYMPTOMS.items():
        missing = [field for field in symptom.needs.split() if not _measured(rows, field)]
        if missing and "sft" in settings:
            unchecked[name] = "a run of sft has no rollouts"
        elif symptom.ruled_out and _measured(rows, symptom.ruled_out[0]):
            fine[name] = symptom.ruled_out[1]
        elif missing:
            unchecked[name] = f"{', '.join(missing)} not in the metrics"
        elif symptom.a_token and (sums := aggregation(settings)) in SUMS:
            unchecked[name] = f"entropy and kl are no means over tokens under aggregation {sums}"
        elif len(rows) < symptom.steps:
            unchecked[name] = f"needs {symptom.steps} steps, found {len(rows)}"
        elif (found := symptom.check(rows, settings)) is None:
            fine[name] = symptom.healthy
        elif isinstance(found, str):
            unchecked[name] = found
        else:
            findings.append(found)
    planned = configured(settings, "steps", None)
    return Diagnosis(
        tuple(findings), fine, unchecked, len(rows), planned if isinstance(planned, int) else None
    )


def _measured(rows: Rows, field: str) -> bool:
    return all(isinstance(row.get(field), (int, float)) for row in rows)


TRENDS = 8
"""Rows without which a first and a last quarter say nothing."""

SYMPTOMS: Mapping[str, Symptom] = {
    "invalid_rounds": Symptom(memory.invalid_rounds, "what is written can be read", "invalid"),
    "no_advantage": Symptom(
        credit.no_advantage,
        "advantages are alive wherever the task is not solved",
        "groups dead_groups degenerate_groups degenerate_memory edit_distance success "
        "reward_min reward_max outcome_advantage_min outcome_advantage_max",
    ),
    "reward_flat": Symptom(
        learning.reward_flat,
        "the reward does not lie flat under a falling loss",
        "loss entropy value_loss kl reward success advantage_memory advantage_other memory_tokens",
        TRENDS,
    ),
    "nothing_moves": Symptom(
        learning.nothing_moves,
        "the policy changes, or has nothing left to learn",
        "reward success entropy policy_kl grad_norm kl groups dead_groups",
        24,
    ),
    "memory_term": Symptom(
        credit.memory_term,
        "where memory is paid for, rewards of memories differ",
        "groups degenerate_groups degenerate_memory memory_std success",
        4,
    ),
    "memory_empty": Symptom(memory.memory_empty, "memories hold something", "memory_empty", 4),
    "memory_grows": Symptom(
        memory.memory_grows, "memory grows to some use only", "memory_length success", TRENDS
    ),
    "retrieval_slow": Symptom(
        memory.retrieval_slow, "the environment is as fast as it was", "environment_seconds", TRENDS
    ),
    "first_kl": Symptom(
        credit.first_kl, "the reference is the policy that the run began with", "kl", a_token=True
    ),
    "sampler_gap": Symptom(credit.sampler_gap, "sampler and trainer agree", "sampler_gap"),
    "collapse": Symptom(
        learning.collapse,
        "nothing learned was lost again",
        "reward entropy policy_kl clip_share grad_norm",
        TRENDS,
    ),
    "entropy_gone": Symptom(
        learning.entropy_gone, "it tries other things still, or is done", "entropy success", TRENDS, True
    ),
    "first_round": Symptom(
        credit.first_round,
        "credit reaches the first round",
        "advantage_first advantage_later degenerate_groups groups rounds",
    ),
    "guessed": Symptom(
        memory.guessed,
        "memories name no answer that was not shown",
        "guessed rollouts",
        ruled_out=("memory_facts", "memories of the array face hold facts that were shown, nothing else"),
    ),
    "not_finite": Symptom(
        credit.not_finite, "all advantages, losses and gradients are finite", "skipped_updates loss grad_norm"
    ),
}
"""By name, in the order in which they are told."""


def reproduces(rows: Rows, others: Rows) -> Finding | None:
    """Two runs of the same settings and seed differ: the first step and the metrics in which they do.

    Fields named after seconds are left out. A run that is shorter is compared as far as it goes.
    """
    for row, other in zip(rows, others, strict=False):
        names = [name for name in {**row, **other} if "seconds" not in name]
        differ = [name for name in names if row.get(name) != other.get(name)]
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
