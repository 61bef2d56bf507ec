"""What an estimator returns, and how numbers of segments become numbers of tokens."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

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
        degenerate_memory: Those whose memory rewards teach nothing: fewer than two, or a std below the floor;
            0 for estimators without memory rewards.
        memory_std: Mean over the pools of the std of memory rewards.
        memory_correlation: Correlation within pools of the two probabilities whose difference is the memory
            reward. The baseline adds variance instead of taking it away where this is low.
        unwritten: Share of the pooled rounds that wrote no memory, so that no token gets their credit.
    """

    advantages_BK: NDArray[np.float32]
    outcome_N: Floats
    groups: int
    degenerate_outcome: int
    degenerate_memory: int = 0
    memory_std: float = 0.0
    memory_correlation: float = 0.0
    unwritten: float = 0.0

    def parts(self, trajectories: Trajectories) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """The advantages as a sum: what comes of the outcome (B, K), and all else (B, K)."""
        outcome_BK = paint(trajectories, self.outcome_N[trajectories.rollout_B])
        return outcome_BK, self.advantages_BK - outcome_BK


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
    out_BK = np.zeros(roles_BK.shape, np.float32)
    all_B1 = np.where(masked_B, 0.0, all_B)[:, None]
    np.copyto(out_BK, all_B1.astype(np.float32), where=roles_BK != NOT_GENERATED)
    if memory_B is not None:
        both_B1 = all_B1 + np.where(masked_B, 0.0, memory_B)[:, None]
        np.copyto(out_BK, both_B1.astype(np.float32), where=roles_BK == MEM)
    return out_BK


def writes(trajectories: Trajectories) -> Flags:
    """1 = the round (R,) has a token that writes memory."""
    has_B = (trajectories.roles_BK == MEM).any(axis=1)
    return np.bincount(trajectories.round_B[has_B], minlength=len(trajectories.rollout_R)) > 0
