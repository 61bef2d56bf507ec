"""The estimators by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

from mempo_env.errors import ConfigError, lookup
from mempo_trainers.credit import attribution, memory, outcome, returns, turn
from mempo_trainers.credit.data import Trajectories
from mempo_trainers.credit.result import Credit

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
    "placebo": memory.placebo,
    "spread": memory.spread,
}
"""Every estimator: from trajectories, and options of its own by keyword, to a `Credit`."""


def make(name: str, **options: Any) -> Estimator:
    """The estimator of that name with its options set.

    Raises:
        ConfigError: if there is no such estimator, or it has no such option; names the nearest.
    """
    function = lookup(CREDITS, name, "credit")
    known = dict(list(inspect.signature(function).parameters.items())[1:])
    for option in options:
        if not known:
            raise ConfigError(f"credit {name!r} has no options, got {option!r}")
        lookup(known, option, f"option of credit {name!r}:")
    return partial(function, **options)
