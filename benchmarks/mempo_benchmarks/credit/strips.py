"""One rollout with the advantages of all its decisions: what `mempo credit show` shows, whoever played it.

An array policy decides on facts, searches and answers; a language model on tokens. Both fill the same struct.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike

from mempo_env.errors import ConfigError, lookup
from mempo_trainers.credit.data import Flags, Floats

ROUNDING = 1e-6
"""Share of an estimator's greatest advantage that float32 rounds by: what is no larger counts as 0."""


class Decision(Struct, frozen=True):
    """A token, or a choice.

    Attributes:
        text: In words.
        role: "mem", "think", "call" or "answer".
        round: From 1.
    """

    text: str
    role: str
    round: int


class Strips(Struct, frozen=True):
    """Decisions in their order and what each estimator says of them.

    Attributes:
        title: Which rollout of what.
        questions: The questions that it answers.
        facts: What else one must know, by name: its reward, those of its group.
        decisions: K of them.
        rows: For each estimator K advantages.
        about: For some of them what they are.

    Raises:
        ConfigError: if there are no decisions, or a row has not a finite number for each.
    """

    title: str
    questions: tuple[str, ...]
    facts: Mapping[str, str]
    decisions: tuple[Decision, ...]
    rows: Mapping[str, tuple[float, ...]]
    about: Mapping[str, str] = {}

    def __post_init__(self) -> None:
        if not self.decisions:
            raise ConfigError(f"{self.title}: wanted at least one decision, got none")
        for name, values in self.rows.items():
            if len(values) != len(self.decisions):
                wanted = f"an advantage for each of {len(self.decisions)} decisions"
                raise ConfigError(f"{name}: wanted {wanted}, got {len(values)}")
            wild = next((k for k, value in enumerate(values) if not math.isfinite(value)), None)
            if wild is not None:
                raise ConfigError(
                    f"{name}: wanted finite advantages, got {values[wild]} for decision {wild + 1}; look for "
                    "log-probs of -inf and weights that are not finite"
                )


def against(strips: Strips, reference: str) -> dict[str, Flags]:
    """For each estimator the decisions (K,) to which it gives the sign that the reference does not.

    An advantage of 0 takes no side, nor does one that is rounding.
    """
    base_K = np.sign(settled(lookup(strips.rows, reference, "estimator")))
    return {name: np.sign(settled(values)) * base_K < 0 for name, values in strips.rows.items()}


def silent(strips: Strips, reference: str) -> str:
    """Why nothing can be held against a reference that says 0 of every decision; empty if it does not."""
    if any(strips.rows[reference]):
        return ""
    told = f"{reference} takes no side in this rollout: it gives 0 to every decision"
    others = [name for name, values in strips.rows.items() if any(values)]
    if not others:
        return f"{told}, as all others do"
    return f"{told}, as where all rollouts of a group are paid alike; take another --reference: {others[0]}"


def settled(values: ArrayLike) -> Floats:
    """Advantages of one estimator, with 0 for those that are nothing but rounding, see `ROUNDING`."""
    values = np.asarray(values, np.float64)
    least = ROUNDING * np.abs(values).max(initial=0.0)
    return np.where(np.abs(values) > least, values, 0.0)


def sizes(values: tuple[float, ...]) -> list[float]:
    """Advantages divided by the greatest size among them, in [-1, 1]; 0 for rounding."""
    settled_K = settled(values)
    sizes: list[float] = (settled_K / (np.abs(settled_K).max(initial=0.0) or 1.0)).tolist()
    return sizes
