"""Batches of rollouts cut into groups and put together again; names of arrays say which axis is which."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from functools import reduce
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from mempo_trainers.credit.data import Flags, Ints, Trajectories
from mempo_trainers.policies.base import Responses, Rollouts

_PADDING = {"entry_BK": -1}


def split_groups(rollouts: Rollouts) -> list[Rollouts]:
    """One batch for each question, in order of their numbers."""
    questions = np.unique(rollouts.data.question_N)
    return [take(rollouts, rollouts.data.question_N == question) for question in questions]


def take(rollouts: Rollouts, keep_N: Flags) -> Rollouts:
    """Those rollouts whose flag is set, with their rounds and segments, but not `extra`, which is of all."""
    data = rollouts.data
    keep_R = keep_N[data.rollout_R]
    keep_B = keep_R[data.round_B]
    kept = {"N": keep_N, "R": keep_R, "B": keep_B}
    segments = np.flatnonzero(keep_B)
    rounds = np.flatnonzero(keep_R)
    arrays = {
        name: value[kept[_axis(name)]]
        for name, value in msgspec.structs.asdict(data).items()
        if value is not None and _axis(name) in kept
    }
    arrays["rollout_R"] = (np.cumsum(keep_N) - 1)[arrays["rollout_R"]]
    new_round = np.cumsum(keep_R) - 1
    arrays["round_B"] = new_round[arrays["round_B"]]
    if data.used_UC is not None:
        used = data.used_UC[keep_R[data.used_UC[:, 0]]]
        arrays["used_UC"] = np.stack([new_round[used[:, 0]], used[:, 1]], 1)
    return Rollouts(
        data=Trajectories(**arrays, merged_MC=data.merged_MC),
        contexts=rollouts.contexts[segments],
        responses=rollouts.responses.take(segments),
        memory_views=_some(rollouts.memory_views, rounds),
        history_views=_some(rollouts.history_views, rounds),
        seen_views=_some(rollouts.seen_views, rounds),
        prior_views=_some(rollouts.prior_views, np.flatnonzero(keep_N)),
        success_N=rollouts.success_N[keep_N],
    )


def join(batches: Sequence[Rollouts]) -> Rollouts:
    """One batch of several; equal numbers of questions in different batches become different questions.

    Contexts and views are added with +. Entries of memory get numbers of their own again. `extra` are means,
    weighted by the rollouts that are not masked.
    """
    if len(batches) == 1:
        return batches[0]
    return Rollouts(
        data=_join_data([batch.data for batch in batches]),
        contexts=_add([batch.contexts for batch in batches]),
        responses=_join_responses([batch.responses for batch in batches]),
        memory_views=_add([batch.memory_views for batch in batches]),
        history_views=_add([batch.history_views for batch in batches]),
        seen_views=_add([batch.seen_views for batch in batches]),
        prior_views=_add([batch.prior_views for batch in batches]),
        success_N=np.concatenate([batch.success_N for batch in batches]),
        extra=join_extra(batches),
    )


def join_extra(batches: Sequence[Rollouts]) -> dict[str, float]:
    """The means over all of several batches; NaN where no rollout of any counts."""
    n = np.array([(~batch.data.masked_N).sum() for batch in batches], np.float64)
    live = [batch for batch, size in zip(batches, n, strict=True) if size]
    return {
        name: float(np.average([batch.extra[name] for batch in live], weights=n[n > 0])) if live else math.nan
        for name in batches[0].extra
    }


def _join_data(parts: Sequence[Trajectories]) -> Trajectories:
    shifts = {
        "question_N": [int(part.question_N.max(initial=-1)) + 1 for part in parts],
        "rollout_R": [len(part.question_N) for part in parts],
        "round_B": [len(part.rollout_R) for part in parts],
        "entry_BK": [_entries(part) for part in parts],
    }
    starts = {name: np.cumsum([0, *sizes[:-1]]) for name, sizes in shifts.items()}
    width = max(part.roles_BK.shape[1] for part in parts)
    arrays: dict[str, Any] = {}
    for name in Trajectories.__struct_fields__:
        values = [getattr(part, name) for part in parts]
        if any(value is None for value in values):
            continue
        if name in ("used_UC", "merged_MC"):
            first, second = ("round_B", "entry_BK") if name == "used_UC" else ("entry_BK", "entry_BK")
            offsets = zip(starts[first], starts[second], strict=True)
            values = [value + np.array(offset) for value, offset in zip(values, offsets, strict=True)]
        elif name.endswith("BK"):
            values = [_widen(value, width, _PADDING.get(name, 0)) for value in values]
        if name in starts:
            values = [
                np.where(value >= 0, value + start, value)
                for value, start in zip(values, starts[name], strict=True)
            ]
        arrays[name] = np.concatenate(values)
    return Trajectories(**arrays)


def _entries(part: Trajectories) -> int:
    """One more than the highest number of an entry, which may be one that only merging made."""
    uses = None if part.used_UC is None else part.used_UC[:, 1]
    named = [ids for ids in (part.entry_BK, uses, part.merged_MC) if ids is not None]
    return 1 + max((int(ids.max(initial=-1)) for ids in named), default=-1)


def _join_responses(parts: Sequence[Responses]) -> Responses:
    width = max(part.tokens_BK.shape[1] for part in parts)
    names = Responses.__struct_fields__
    return Responses(*(np.concatenate([_widen(getattr(p, name), width, 0) for p in parts]) for name in names))


def _widen(values_BK: NDArray[Any], width: int, padding: int) -> NDArray[Any]:
    return np.pad(values_BK, ((0, 0), (0, width - values_BK.shape[1])), constant_values=padding)


def _axis(name: str) -> str:
    """The first axis of a field: "rollout_R" has R."""
    return name.rsplit("_", 1)[1][0]


def _some(views: Any, rows: Ints) -> Any:
    return None if views is None else views[rows]


def _add(parts: Sequence[Any]) -> Any:
    return None if parts[0] is None else reduce(operator.add, parts)
