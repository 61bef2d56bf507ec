"""The settings of one training run."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import Any, Literal, get_type_hints

import msgspec
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

MOST = 1e9
"""Of weights and bounds: beyond, products leave what a float32 holds."""

MOST_WHOLE = 2**63 - 1
"""Seeds and counts are written as whole numbers of 64 bits."""

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
        ConfigError: if a value is of another type, or out of range.
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
        for name, kind in _kinds().items():
            _check_kind(name, getattr(self, name), kind)
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
            self._check(name, 1, most=MOST_WHOLE)
        for name in ("seed", "dynamic_sampling"):
            self._check(name, 0, most=MOST_WHOLE)
        for name in ("entropy", "kl", "value_weight", "clip_high"):
            self._check(name, 0)
        for name in ("clip_low", "lambda_round"):
            self._check(name, 0, most=1)
        self._check("learning_rate", 0, above=True, most=MOST_LEARNING)
        self._check("max_grad_norm", 0, above=True)
        if self.dual_clip is not None:
            self._check("dual_clip", 1, above=True)

    def _check(self, name: str, least: float, above: bool = False, most: float = MOST) -> None:
        value = getattr(self, name)
        if not value >= least or (above and value == least):
            wanted = f"{'more than' if above else 'at least'} {least}"
        elif not value <= most:
            wanted = f"at most {most:g}"
        else:
            return
        raise ConfigError(f"{name}: wanted {wanted}, got {_told(value)}")


@cache
def _kinds() -> dict[str, Any]:
    """The type of each setting. Names to choose from are texts here, for `lookup` tells the nearest."""
    return {**get_type_hints(Config), "algo": str}


def _check_kind(name: str, value: Any, kind: Any) -> None:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        wanted = str(error).replace("Expected", "wanted").replace("Number out of", "wanted a number in")
        wanted = wanted.replace(" - at", " at").replace("$", name)
        raise ConfigError(f"{name}: {wanted}; got {_told(value)}") from None


def _told(value: Any) -> str:
    return "one of many digits" if isinstance(value, int) and abs(value) > 2**64 else repr(value)[:100]


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
    with suppress(ValueError):
        return int(text)
    try:
        number = float(text)
    except ValueError:
        return text
    return int(number) if number.is_integer() and abs(number) < 2**53 else number
