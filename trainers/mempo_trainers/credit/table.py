"""The estimators by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from msgspec.structs import replace

from mempo_env.errors import ConfigError, lookup
from mempo_env.imported import imported
from mempo_trainers.credit import attribution, combined, memory, outcome, returns, turn
from mempo_trainers.credit.data import Trajectories, refuse
from mempo_trainers.credit.options import check_call, check_options
from mempo_trainers.credit.result import Credit, of_tokens

Estimator: TypeAlias = Callable[[Trajectories], Credit]

CREDITS: Mapping[str, Callable[..., Credit]] = {
    "grpo": outcome.grpo,
    "mempo": memory.mempo,
    "dr_grpo": outcome.dr_grpo,
    "rloo": outcome.rloo,
    "reinforce_pp": returns.reinforce_pp,
    "discounted": outcome.discounted,
    "memory_only": outcome.memory_only,
    "attribution": attribution.attribution,
    "turn_level": turn.turn_level,
    "gigpo": turn.gigpo,
    "igpo": turn.igpo,
    "gae": returns.gae,
    "mempo_gain": combined.mempo_gain,
    "placebo": memory.placebo,
    "spread": memory.spread,
}
"""Every estimator: from trajectories, and options of its own by keyword, to a `Credit`."""


def make(name: str, **options: Any) -> Estimator:
    """The estimator of that name with its options set.

    Args:
        name: A name in `CREDITS`; or "module:function" for one of your own, from trajectories (and options by
            keyword) to advantages (B, K) or a `Credit`. The module is looked for in the working folder too.
        options: By keyword.

    Raises:
        ConfigError: if there is no such estimator or it has no such option (names the nearest), or an option
            has a value of another kind than its default or out of its range; from the estimator, if one of
            your own returns other than one finite number a token.
    """
    if ":" in name:
        own = imported(name, "credit")
        check_call(name, own, options)
        return _own(name, partial(own, **options))
    function = lookup(CREDITS, name, "credit")
    check_options(name, function, options)
    return partial(function, **options)


def _own(name: str, function: Callable[[Trajectories], Any]) -> Estimator:
    """A user's function as an estimator: what it returns is checked, tied outcomes are counted."""
    what = f"credit {name!r}"

    def estimate(trajectories: Trajectories) -> Credit:
        made = function(trajectories)
        if isinstance(made, Credit):
            found, advantages = made, made.advantages_BK
            _check_outcome(what, made.outcome_N, trajectories)
        else:
            found, advantages = outcome.grpo(trajectories), made
            found = replace(found, outcome_N=np.zeros_like(found.outcome_N))
        with np.errstate(over="ignore"):  # refused below
            advantages_BK = of_tokens(what, advantages, trajectories)
        mask_BK = trajectories.mask_BK
        wrong_BK = mask_BK & ~np.isfinite(advantages_BK)
        refuse(what, advantages_BK, wrong_BK, "finite advantages (segments, tokens) of what the policy wrote")
        return replace(found, advantages_BK=np.where(mask_BK, advantages_BK, np.float32(0)))

    return estimate


def _check_outcome(what: str, outcome_N: Any, trajectories: Trajectories) -> None:
    """Refuse what is not one finite number a rollout, or one that is masked."""
    shape = trajectories.masked_N.shape
    if np.shape(outcome_N) != shape:
        raise ConfigError(
            f"{what}: wanted outcome_N of {shape}, a number a rollout, got {np.shape(outcome_N)}"
        )
    wrong_N = ~trajectories.masked_N & ~np.isfinite(outcome_N)
    refuse(f"{what}: outcome_N", np.asarray(outcome_N), wrong_N, "finite numbers (rollouts)")
