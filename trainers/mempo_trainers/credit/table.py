"""The estimators by name."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

from mempo_env.errors import ConfigError, lookup
from mempo_trainers.credit import attribution, combined, memory, outcome, returns, turn
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
    "mempo_gain": combined.mempo_gain,
    "placebo": memory.placebo,
    "spread": memory.spread,
}
"""Every estimator: from trajectories, and options of its own by keyword, to a `Credit`."""


_CHOICES: Mapping[str, Mapping[str, Any]] = {
    "objectives": memory.OBJECTIVES,
    "baseline": memory.BASELINES,
    "pool": memory.POOLS,
    "progress": attribution.PROGRESS,
}


def make(name: str, **options: Any) -> Estimator:
    """The estimator of that name with its options set.

    Raises:
        ConfigError: if there is no such estimator or it has no such option (names the nearest), or an option
            has a value of another kind than its default.
    """
    function = lookup(CREDITS, name, "credit")
    known = dict(list(inspect.signature(function).parameters.items())[1:])
    for option, value in options.items():
        if not known:
            raise ConfigError(f"credit {name!r} has no options, got {option!r}")
        _check(option, value, lookup(known, option, f"option of credit {name!r}:").default)
    return partial(function, **options)


def _check(option: str, value: Any, default: Any) -> None:
    if option in _CHOICES:
        lookup(_CHOICES[option], value, option)
        return
    flag = isinstance(default, bool)
    number = isinstance(value, int | float) and math.isfinite(value)
    if isinstance(value, bool) != flag or not (flag or number):
        raise ConfigError(f"{option}: wanted {'a flag' if flag else 'a finite number'}, got {value!r}")
