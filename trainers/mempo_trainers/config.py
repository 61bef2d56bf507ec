"""The settings of one training run."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, field

from mempo_env.errors import ConfigError, lookup
from mempo_env.settings import MOST, Count, Settings, Share, Size, Whole
from mempo_trainers.credit import make

Aggregation: TypeAlias = Literal[
    "token-mean", "token-sum", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"
]

Option: TypeAlias = str | int | float | bool
"""A value of an estimator's option."""

PPO_CREDITS = ("gae", "mempo", "placebo", "turn_level", "gigpo", "mempo_gain")
"""Estimators whose part beside the outcome can be added to GAE; "gae" alone is plain PPO."""


class Config(Settings, frozen=True):
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
        sampler_gap: Most nats by which log-probs of sampler and trainer may differ on a token, in any step;
            None: `losses.SAMPLER_GAP` in the first step, and later ones are weighed.

    Raises:
        ConfigError: if a value is of another type, or out of range.
    """

    algo: Literal["grpo", "ppo"] = "grpo"
    credit: str = "mempo"
    credit_options: dict[str, Option] = field(default_factory=dict)
    seed: Whole = 0
    steps: Count = 240
    questions: Count = 8
    rollouts: Count = 8
    learning_rate: Annotated[float, Meta(gt=0, le=1e4)] = 0.03
    max_grad_norm: Annotated[float, Meta(gt=0, le=MOST)] = 1.0
    clip_low: Share = 0.2
    clip_high: Size = 0.2
    dual_clip: Annotated[float, Meta(gt=1, le=MOST)] | None = None
    aggregation: Aggregation = "token-mean"
    epochs: Count = 1
    entropy: Size = 0.0
    kl: Size = 0.0
    kl_kind: Literal["k1", "k2", "k3", "low_var_kl"] = "k3"
    kl_tokens: Literal["all", "memory"] = "all"
    value_weight: Size = 0.5
    lambda_round: Share = 0.95
    dynamic_sampling: Whole = 0
    checkpoint_every: Count = 20
    sampler_gap: Annotated[float, Meta(gt=0, le=MOST)] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.credit == "ppo":
            raise ConfigError(
                "credit: 'ppo' is a loop of its own: did you mean algo=ppo, with credit=gae "
                f"(plain PPO), or one of {', '.join(PPO_CREDITS[1:])}?"
            )
        make(self.credit, **self.credit_options)
        if self.algo == "ppo" and ":" not in self.credit:
            lookup(dict.fromkeys(PPO_CREDITS), self.credit, "credit for ppo")
        elif self.algo == "grpo" and self.credit == "gae":
            raise ConfigError("credit 'gae' wanted a critic, which only algo 'ppo' has, got algo 'grpo'")
        if self.algo == "ppo" and self.dynamic_sampling:
            raise ConfigError(f"dynamic_sampling: wanted 0 with algo 'ppo', got {self.dynamic_sampling}")


def read_options(pairs: Sequence[str]) -> dict[str, Option]:
    """Options given as "name=value"; true and false are flags, and what reads as a number is one."""
    options: dict[str, Option] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not (name and equals):
            raise ConfigError(f"{pair!r}: wanted a setting with its value, NAME=VALUE")
        options[name] = _value(text)
    return options


def _value(text: str) -> Option:
    if text in ("true", "false"):
        return text == "true"
    with suppress(ValueError):
        return int(text)
    try:
        number = float(text)
    except ValueError:
        return text
    return int(number) if number.is_integer() and abs(number) < 2**53 else number
