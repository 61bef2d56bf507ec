"""What a policy says of memories: the probability of the right answer, given what the memory holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np

from mempo_trainers.credit.data import Floats, Ints
from mempo_trainers.policies.base import Policy, Rollouts

_MEMORY, _HISTORY, _SEEN, _PRIOR = "memory_logp_RJ", "history_logp_RJ", "seen_logp_RJ", "prior_logp_NJ"
_BASELINE = {"full": (_HISTORY,), "none": (), "previous": (_PRIOR,)}


def needed(credit: str, options: Mapping[str, Any]) -> frozenset[str]:
    """The scores that an estimator computes its advantages from, as fields of `Trajectories`."""
    if ":" in credit:  # of the user's own: all that there are
        return frozenset((_MEMORY, _HISTORY, _SEEN, _PRIOR))
    memory = (_MEMORY, *_BASELINE.get(str(options.get("baseline", "full")), ()))
    gain = (_SEEN, _HISTORY, _PRIOR)
    names = {"mempo": memory, "placebo": memory, "spread": memory, "igpo": gain, "mempo_gain": memory + gain}
    if credit == "attribution" and options.get("progress") == "score":
        return frozenset(gain)
    return frozenset(names.get(credit, ()))


def credits_memory(credit: str) -> bool:
    """Whether an estimator of ours has a term for the memory alone."""
    return ":" not in credit and (credit == "memory_only" or _MEMORY in needed(credit, {}))


def scored(policy: Policy, rollouts: Rollouts, needs: frozenset[str]) -> Rollouts:
    """The rollouts with those of the scores among `needs` that a policy can give; nothing is generated.

    Args:
        policy: Who is asked.
        rollouts: With views to score.
        needs: Names of fields of `Trajectories`.
    """
    data = rollouts.data
    scores: dict[str, Callable[[], Floats]] = {
        "memory_logp_RJ": lambda: _later(policy.score(rollouts.memory_views), data.number_R),
        "history_logp_RJ": lambda: _later(policy.score(rollouts.history_views), data.number_R),
        "seen_logp_RJ": lambda: policy.score(rollouts.seen_views),
        "prior_logp_NJ": lambda: policy.score(rollouts.prior_views),
    }
    found = {name: score() for name, score in scores.items() if name in needs}
    return msgspec.structs.replace(rollouts, data=msgspec.structs.replace(data, **found))


def _later(logp_RJ: Floats, number_R: Ints) -> Floats:
    """Rounds from the second on: what a first round writes, it writes before it has seen anything."""
    return np.where(number_R[:, None] >= 2, logp_RJ, np.nan)
