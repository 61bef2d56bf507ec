"""The settings of one training run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from mempo_env.errors import ConfigError, lookup
from mempo_trainers.credit import make

_CHOICES = {
    "algo": ("grpo", "ppo"),
    "aggregation": (
        *("token-mean", "token-sum", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"),
    ),
    "kl_kind": ("k1", "k2", "k3", "low_var_kl"),
    "kl_tokens": ("all", "memory"),
}

MOST_LEARNING = 1e4
"""No optimiser is of use beyond; far beyond, a step no longer fits into a float."""

PPO_CREDITS = ("gae", "mempo", "placebo", "turn_level", "gigpo", "mempo_gain")
"""Estimators whose part beside the outcome can be added to GAE; "gae" alone is plain PPO."""


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the loops do, whatever the policy; the defaults are those of the toy experiments.

    Attributes:
        algo: "grpo" (advantages from groups, no critic) or "ppo" (a critic, GAE).
        credit: Name of the estimator, see `mempo_trainers.credit`.
        credit_options: Keyword arguments of the estimator.
        seed: Of everything drawn at random.
        steps: Updates of the policy.
        questions: Different questions (or sets of objectives) drawn a step, each a group of its own; those
            drawn to replace dead groups may be among them again.
        rollouts: Rollouts of each question a step, G.
        learning_rate: Of Adam.
        max_grad_norm: Gradients are clipped to this norm.
        clip_low: The ratio's gradient ends below 1 - clip_low,
        clip_high: and above 1 + clip_high.
        dual_clip: Bound on the loss of negative advantages, above 1; None: none.
        aggregation: How token losses become one number, see `losses.aggregate`.
        epochs: Passes over the rollouts of a step, an update each.
        entropy: Weight of the entropy bonus.
        kl: Weight of the divergence from the starting policy; 0: no reference is kept.
        kl_kind: Its estimator.
        kl_tokens: The tokens that pay for it: "all" or "memory".
        value_weight: Weight of the critic's loss (ppo).
        lambda_round: GAE's lambda at the border of two rounds (ppo).
        dynamic_sampling: Most times a step may generate anew to replace groups without any advantage (grpo).
        checkpoint_every: Steps between checkpoints.

    Raises:
        ConfigError: if a value is out of range.
    """

    algo: Literal["grpo", "ppo"] = "grpo"
    credit: str = "mempo"
    credit_options: dict[str, str | float | bool] = {}
    seed: int = 0
    steps: int = 240
    questions: int = 8
    rollouts: int = 8
    learning_rate: float = 0.03
    max_grad_norm: float = 1.0
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None
    aggregation: str = "token-mean"
    epochs: int = 1
    entropy: float = 0.0
    kl: float = 0.0
    kl_kind: str = "k3"
    kl_tokens: str = "all"
    value_weight: float = 0.5
    lambda_round: float = 0.95
    dynamic_sampling: int = 0
    checkpoint_every: int = 20

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            lookup(dict.fromkeys(choices), getattr(self, name), name)
        make(self.credit, **self.credit_options)
        if self.algo == "ppo":
            lookup(dict.fromkeys(PPO_CREDITS), self.credit, "credit for ppo")
        elif self.credit == "gae":
            raise ConfigError("credit 'gae' wanted a critic, which only algo 'ppo' has, got algo 'grpo'")
        if self.algo == "ppo" and self.dynamic_sampling:
            raise ConfigError(f"dynamic_sampling: wanted 0 with algo 'ppo', got {self.dynamic_sampling}")
        for name in ("steps", "questions", "rollouts", "epochs", "checkpoint_every"):
            self._check(name, 1)
        for name in ("seed", "dynamic_sampling", "entropy", "kl", "value_weight", "clip_low", "clip_high"):
            self._check(name, 0)
        for name in ("learning_rate", "max_grad_norm"):
            self._check(name, 0, above=True)
        if self.learning_rate > MOST_LEARNING:
            raise ConfigError(f"learning_rate: wanted at most {MOST_LEARNING:g}, got {self.learning_rate:g}")
        if self.dual_clip is not None:
            self._check("dual_clip", 1, above=True)
        if not 0 <= self.lambda_round <= 1:
            raise ConfigError(f"lambda_round: wanted 0 to 1, got {self.lambda_round}")

    def _check(self, name: str, least: float, above: bool = False) -> None:
        value = getattr(self, name)
        if not math.isfinite(value) or value < least or (above and value == least):
            raise ConfigError(f"{name}: wanted {'more than' if above else 'at least'} {least}, got {value}")


def read_options(pairs: Sequence[str]) -> dict[str, str | float | bool]:
    """Options given as "name=value"; true and false are flags, and what reads as a number is one."""
    options: dict[str, str | float | bool] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not (name and equals):
            raise ConfigError(f"option: wanted NAME=VALUE, got {pair!r}")
        options[name] = _value(text)
    return options


def _value(text: str) -> str | float | bool:
    if text in ("true", "false"):
        return text == "true"
    try:
        number = float(text)
    except ValueError:
        return text
    return int(number) if number.is_integer() else number
