"""One rollout with the advantages of all its decisions: what `mempo credit show` shows, whoever played it.

An array policy decides on facts, searches and answers; a language model on tokens. Both fill the same struct.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from mempo_env.errors import ConfigError, lookup
from mempo_trainers.credit.data import Flags


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

    An advantage of 0 takes no side.
    """
    base_K = np.sign(lookup(strips.rows, reference, "estimator"))
    return {name: np.sign(values) * base_K < 0 for name, values in strips.rows.items()}


def sizes(values: tuple[float, ...]) -> list[float]:
    """Advantages divided by the greatest size among them, in [-1, 1]."""
    most = max((abs(value) for value in values), default=0.0)
    return [value / most if most else 0.0 for value in values]
