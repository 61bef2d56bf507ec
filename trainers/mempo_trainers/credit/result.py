"""What an estimator returns, and how numbers of segments become numbers of tokens."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from mempo_env.errors import ConfigError
from mempo_trainers.credit.data import MEM, NOT_GENERATED, Flags, Floats, Trajectories


class Credit(Struct, frozen=True, kw_only=True, eq=False):
    """Advantages of all tokens, and what the metrics of a step tell about them.

    Statistics are taken in float64; tokens get float32, which is what a loss reads and half the memory.

    Attributes:
        advantages_BK: One a token; 0 for what the policy did not write and in masked rollouts.
        outcome_N: The part that every token of a rollout shares (A_i with its shaping terms); 0 for
            estimators without such a part.
        groups: Questions with at least one rollout that is not masked.
        degenerate_outcome: Those whose outcomes are all equal, or that have one rollout only.
        degenerate_memory: Those whose memory rewards teach nothing: fewer than two, or a std below the floor.
            Estimators without memory rewards leave it, and what follows, NaN.
        memory_std: Mean over the pools of the std of memory rewards.
        memory_correlation: Correlation within pools of the two probabilities whose difference is the memory
            reward. The baseline adds variance instead of taking it away where this is low.
        unwritten: Share of the pooled rounds that wrote no memory, so that no token gets their credit; NaN
            where no round is in a pool.
    """

    advantages_BK: NDArray[np.float32]
    outcome_N: Floats
    groups: int
    degenerate_outcome: int
    degenerate_memory: float = math.nan
    memory_std: float = math.nan
    memory_correlation: float = math.nan
    unwritten: float = math.nan

    def parts(self, trajectories: Trajectories) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """The advantages as a sum: what comes of the outcome (B, K), and all else (B, K)."""
        outcome_BK = paint(trajectories, self.outcome_N[trajectories.rollout_B])
        return outcome_BK, self.advantages_BK - outcome_BK


def of_tokens(what: str, values: Any, trajectories: Trajectories) -> NDArray[np.float32]:
    """Values as an array (B, K) of float32; a ConfigError where they are not one number a token."""
    values_BK, shape = np.asarray(values), trajectories.roles_BK.shape
    if values_BK.shape != shape or not np.issubdtype(values_BK.dtype, np.number):
        raise ConfigError(
            f"{what}: wanted numbers (segments, tokens) = {shape}, got {values_BK.dtype} of {values_BK.shape}"
        )
    return values_BK.astype(np.float32, copy=False)


def paint(trajectories: Trajectories, all_B: Floats, memory_B: Floats | None = None) -> NDArray[np.float32]:
    """Give each token the number of its segment, tokens of memory that of their memory on top.

    Args:
        trajectories: For the roles.
        all_B: For every token that the policy wrote.
        memory_B: Added on tokens with the role `MEM`; None: nothing.

    Returns:
        (B, K), 0 for what the policy did not write and in masked rollouts.
    """
    roles_BK, masked_B = trajectories.roles_BK, trajectories.masked_N[trajectories.rollout_B]
    all_B = np.where(masked_B, 0.0, all_B)
    both_B = all_B if memory_B is None else all_B + np.where(masked_B, 0.0, memory_B)
    new_BK = np.ones(
        roles_BK.shape, bool
    )  # a run of tokens of one role starts here; there are far fewer runs
    np.not_equal(roles_BK[:, 1:], roles_BK[:, :-1], out=new_BK[:, 1:])
    start = np.flatnonzero(new_BK)
    role, row = roles_BK.ravel()[start], start // max(roles_BK.shape[1], 1)
    values = np.where(role == MEM, both_B[row], np.where(role == NOT_GENERATED, 0.0, all_B[row]))
    lengths = np.diff(start, append=roles_BK.size)
    return np.repeat(values.astype(np.float32), lengths).reshape(roles_BK.shape)


def writes(trajectories: Trajectories) -> Flags:
    """1 = the round (R,) has a token that writes memory."""
    has_B = (trajectories.roles_BK == MEM).any(axis=1)
    return np.bincount(trajectories.round_B[has_B], minlength=len(trajectories.rollout_R)) > 0
