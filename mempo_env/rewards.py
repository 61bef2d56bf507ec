"""The reward: one pure function a term, weights in a frozen config, raw and weighted values side by side."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Literal, TypeAlias, get_args

import msgspec

from mempo_env.errors import ConfigError, lookup
from mempo_env.settings import Count, Number, Settings
from mempo_env.types import RewardBreakdown, RewardTerms, Score

OutcomeKind: TypeAlias = Literal["em_all", "em_mean", "f1_mean"]


_OUTCOMES: dict[str, Callable[[Score], float]] = {
    "em_all": operator.attrgetter("em_all"),
    "em_mean": operator.attrgetter("em"),
    "f1_mean": operator.attrgetter("f1"),
}


class RewardConfig(Settings, frozen=True):
    """Weights of the reward's terms; a term whose weight is 0 is still computed and logged.

    Attributes:
        outcome: What the final answer earns: "em_all" (1 if every objective is exactly right and the answer
            is well-formed, else 0), "em_mean" or "f1_mean" (means over the objectives).
        outcome_weight: Weight of it.
        invalid_action: Paid for each invalid action.
        duplicate_write: Paid for each write above the bank's similarity threshold.
        context_overflow: Paid once, when the context budget is passed.
        write_cost: Paid for each memory write.
        memory_efficiency: Weight of 1 - memory tokens / `memory_budget` (not below 0), paid once, with the
            last round. At most a fifth of `outcome_weight`: above it a policy learns to remember nothing.
        memory_budget: Tokens of memory at which the efficiency is 0.
    """

    outcome: OutcomeKind = "em_all"
    outcome_weight: Number = 1.0
    invalid_action: Number = 0.0
    duplicate_write: Number = 0.0
    context_overflow: Number = 0.0
    write_cost: Number = 0.0
    memory_efficiency: Number = 0.0
    memory_budget: Count = 1024

    def __post_init__(self) -> None:
        """Refuse combinations that teach something else than to answer."""
        super().__post_init__()
        if self.memory_efficiency > self.outcome_weight / 5:
            raise ConfigError(
                f"memory_efficiency: wanted at most a fifth of outcome_weight ({self.outcome_weight / 5:g}), "
                f"got {self.memory_efficiency:g}; a policy that is paid more learns to remember nothing"
            )


PRESETS: dict[str, RewardConfig] = {
    "mempo": RewardConfig(),
    "bank": RewardConfig(
        outcome="em_mean",
        invalid_action=-0.05,
        duplicate_write=-0.02,
        context_overflow=-0.1,
        memory_efficiency=0.05,
    ),
    **{kind: RewardConfig(outcome=kind) for kind in get_args(OutcomeKind)},
}
"""The paper's reward, the one usually published with a memory bank, and each outcome alone ("em_all" is the
paper's, too)."""


def preset(reward: str | RewardConfig) -> RewardConfig:
    """Return the config of that name, or the config itself."""
    return reward if isinstance(reward, RewardConfig) else lookup(PRESETS, reward, "reward")


def outcome(score: Score, kind: OutcomeKind) -> float:
    """Value of the final answer, in [0, 1]."""
    return _OUTCOMES[kind](score)


def memory_efficiency(memory_tokens: int, budget: int) -> float:
    """1 - memory tokens / budget, in [0, 1]."""
    return max(0.0, 1.0 - memory_tokens / budget)


NOTHING = RewardTerms()
NO_REWARD = RewardBreakdown(NOTHING, NOTHING)


def weigh(raw: RewardTerms, config: RewardConfig) -> RewardBreakdown:
    """Multiply every raw term by its weight; 0 has no sign."""
    if raw == NOTHING:
        return NO_REWARD
    return RewardBreakdown(
        raw,
        RewardTerms(
            outcome=raw.outcome * config.outcome_weight + 0.0,
            invalid_action=raw.invalid_action * config.invalid_action + 0.0,
            duplicate_write=raw.duplicate_write * config.duplicate_write + 0.0,
            context_overflow=raw.context_overflow * config.context_overflow + 0.0,
            write_cost=raw.write_cost * config.write_cost + 0.0,
            memory_efficiency=raw.memory_efficiency * config.memory_efficiency + 0.0,
        ),
    )


def add(left: RewardTerms, right: RewardTerms) -> RewardTerms:
    """Sum term by term."""
    if left is NOTHING or right is NOTHING:
        return right if left is NOTHING else left
    return RewardTerms(*map(operator.add, msgspec.structs.astuple(left), msgspec.structs.astuple(right)))
