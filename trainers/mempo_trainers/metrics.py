"""The row of metrics that a step leaves."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mempo_trainers.batching import join_extra
from mempo_trainers.config import Config
from mempo_trainers.credit.data import MEM
from mempo_trainers.credit.result import Credit
from mempo_trainers.likeness import edit_distance
from mempo_trainers.policies.base import Rollouts


def row(rollouts: Rollouts, credit: Credit, config: Config) -> dict[str, float | int | str]:
    """What a step's rollouts and their advantages come to; NaN where there is nothing to take a mean of.

    Masked rollouts are in no number but their share, `masked`. Means are over rollouts, but for mean sizes of
    advantages: `advantage_first` and `advantage_later`, of tokens in first rounds that others follow and in
    later ones, tell whether credit reaches the beginning; `advantage_memory` and `advantage_other` are those
    of tokens that write memory and of all others.
    """
    data, live_N = rollouts.data, ~rollouts.data.masked_N
    first_B = (data.number_R == 1)[data.round_B]
    begun_B = first_B & (data.rounds_N > 1)[data.rollout_B]
    size_BK, mask_BK, memory_BK = np.abs(credit.advantages_BK), data.mask_BK, data.roles_BK == MEM
    outcome_N = credit.outcome_N[live_N]
    return {
        "rollouts": int(live_N.sum()),
        **measured([rollouts]),
        "completion_tokens": int(data.mask_BK.sum()),
        "credit": config.credit,
        "groups": credit.groups,
        "degenerate_groups": credit.degenerate_outcome,
        "degenerate_memory": credit.degenerate_memory,
        "dead_groups": _dead(rollouts, credit),
        "memory_std": credit.memory_std,
        "memory_correlation": credit.memory_correlation,
        "unwritten": credit.unwritten,
        "advantage_first": _mean(size_BK, mask_BK & begun_B[:, None]),
        "advantage_later": _mean(size_BK, mask_BK & ~first_B[:, None]),
        "advantage_memory": _mean(size_BK, mask_BK & memory_BK),
        "advantage_other": _mean(size_BK, mask_BK & ~memory_BK),
        "outcome_advantage_min": float(outcome_N.min()) if len(outcome_N) else math.nan,
        "outcome_advantage_max": float(outcome_N.max()) if len(outcome_N) else math.nan,
        "edit_distance": edit_distance(rollouts),
        "memory_tokens": _mean(memory_BK, mask_BK),
    }


def measured(batches: Sequence[Rollouts]) -> dict[str, float]:
    """Reward, success and `extra` of all rollouts of some batches; NaN where all of them are masked."""
    live = [~batch.data.masked_N for batch in batches]
    reward_n, success_n = (
        np.concatenate([values_N[live_N] for values_N, live_N in zip(all_N, live, strict=True)])
        for all_N in (
            [batch.data.outcome_N + batch.data.shaping_N for batch in batches],
            [batch.success_N.astype(np.float64) for batch in batches],
        )
    )
    some = len(reward_n) > 0
    return {
        "reward": float(reward_n.mean()) if some else math.nan,
        "reward_min": float(reward_n.min()) if some else math.nan,
        "reward_max": float(reward_n.max()) if some else math.nan,
        "success": float(success_n.mean()) if some else math.nan,
        "masked": 1 - float(np.concatenate(live).mean()),
        **join_extra(batches),
    }


def _dead(rollouts: Rollouts, credit: Credit) -> int:
    """Groups in which every advantage is zero."""
    data = rollouts.data
    alive_N = np.zeros(len(data.outcome_N), bool)
    np.logical_or.at(alive_N, data.rollout_B, (credit.advantages_BK != 0).any(1))
    groups = np.unique(data.question_N[~data.masked_N])
    return int(len(groups) - len(np.unique(data.question_N[alive_N])))


def _mean(values: np.ndarray, mask: np.ndarray) -> float:
    return float(values[mask].mean()) if mask.any() else 0.0
