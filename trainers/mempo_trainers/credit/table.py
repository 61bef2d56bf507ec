"""The estimators by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from msgspec.structs import replace

from mempo_env.errors import lookup
from mempo_env.imported import imported
from mempo_trainers.credit import attribution, combined, memory, outcome, returns, turn
from mempo_trainers.credit.data import Trajectories
from mempo_trainers.credit.options import check_options
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
            has a value of another kind than its default or out of its range.
    """
    if ":" in name:
        return _own(name, partial(imported(name, "credit"), **options))
    function = lookup(CREDITS, name, "credit")
    check_options(name, function, options)
    return partial(function, **options)


def _own(name: str, function: Callable[[Trajectories], Any]) -> Estimator:
    """A user's function as an estimator: what it returns is checked, tied outcomes are counted."""

    def estimate(trajectories: Trajectories) -> Credit:
        made = function(trajectories)
        if isinstance(made, Credit):
            return made
        advantages_BK = of_tokens(f"credit {name!r}", made, trajectories)
        bare = outcome.grpo(trajectories)
        masked_BK = np.where(trajectories.mask_BK, advantages_BK, np.float32(0))
        return replace(bare, advantages_BK=masked_BK, outcome_N=np.zeros_like(bare.outcome_N))

    return estimate
