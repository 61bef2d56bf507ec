"""The row of metrics that a step leaves."""

from __future__ import annotations

import numpy as np

from mempo_trainers.config import Config
from mempo_trainers.credit.data import MEM
from mempo_trainers.credit.result import Credit
from mempo_trainers.likeness import edit_distance
from mempo_trainers.policies.base import Rollouts


def row(rollouts: Rollouts, credit: Credit, config: Config) -> dict[str, float | int | str]:
    """What a step's rollouts and their advantages come to.

    Means are over rollouts, but for mean sizes of advantages: `advantage_first` and `advantage_later`, of
    tokens in first rounds that others follow and in later ones, tell whether credit reaches the beginning;
    `advantage_memory` and `advantage_other` are those of tokens that write memory and of all others.
    """
    data = rollouts.data
    first_B = (data.number_R == 1)[data.round_B]
    begun_B = first_B & (data.rounds_N > 1)[data.rollout_B]
    size_BK, mask_BK, memory_BK = np.abs(credit.advantages_BK), data.mask_BK, data.roles_BK == MEM
    rewards_N = data.outcome_N + data.shaping_N
    return {
        "rollouts": len(data.outcome_N),
        "reward": float(rewards_N.mean()),
        "reward_min": float(rewards_N.min()),
        "reward_max": float(rewards_N.max()),
        "success": float(rollouts.success_N.mean()),
        "credit": config.credit,
        "groups": credit.groups,
        "degenerate_groups": credit.degenerate_outcome,
        "degenerate_memory": credit.degenerate_memory,
        "dead_groups": _dead(rollouts, credit),
        "memory_std": credit.memory_std,
        "memory_correlation": credit.memory_correlation,
        "unwritten": credit.unwritten,
        "masked": float(data.masked_N.mean()),
        "advantage_first": _mean(size_BK, mask_BK & begun_B[:, None]),
        "advantage_later": _mean(size_BK, mask_BK & ~first_B[:, None]),
        "advantage_memory": _mean(size_BK, mask_BK & memory_BK),
        "advantage_other": _mean(size_BK, mask_BK & ~memory_BK),
        "outcome_advantage_min": float(credit.outcome_N.min()),
        "outcome_advantage_max": float(credit.outcome_N.max()),
        "edit_distance": edit_distance(rollouts),
        "memory_tokens": _mean(memory_BK, mask_BK),
        **rollouts.extra,
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
