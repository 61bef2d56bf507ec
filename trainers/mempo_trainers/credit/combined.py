"""Credit for both halves of a round: for memory what it tells, for a search what it finds."""

from __future__ import annotations

import msgspec
import numpy as np

from mempo_trainers.credit.data import CALL, Trajectories
from mempo_trainers.credit.memory import mempo
from mempo_trainers.credit.normalise import EPS, FLOOR, standardise, statistics
from mempo_trainers.credit.result import Credit
from mempo_trainers.credit.rounds import last
from mempo_trainers.credit.turn import gains


def mempo_gain(
    trajectories: Trajectories,
    *,
    objectives: str = "arithmetic",
    baseline: str = "full",
    weight: float = 1.0,
    gain: float = 1.0,
    ddof: int = 1,
    eps: float = EPS,
    floor: float = FLOOR,
) -> Credit:
    """`mempo` for memory and answers, and for a search what it adds to the probability of the answer.

        g_{i,t} = P(Z | q, s_<=t) - P(Z | q, s_<t),  t = 1..T_i - 1
        A_k     = A_i + 1[role(k) = mem, round t] weight A^mem_{i,t}
                      + 1[role(k) = call, round t] gain (g_{i,t} - mean) / (std + eps)  over all (i, t < T_i)

    A memory term teaches what to keep and leaves what to search for to the outcome, which says nothing before
    the first success. The gain of IGPO (arXiv 2510.14967), paid to the call that caused it alone and not
    summed over later rounds, fills that gap. The combination is ours; docs/experiments.md shows it beside its
    controls.

    Args:
        trajectories: With the scores that `mempo` needs, and `seen_logp_RJ`.
        objectives: As for `mempo`.
        baseline: As for `mempo`.
        weight: Of A^mem.
        gain: Of the normalised gain.
        ddof: 1 or 0.
        eps: Added to stds.
        floor: A pool with a smaller std gives 0.
    """
    term = mempo(
        trajectories,
        objectives=objectives,
        baseline=baseline,
        weight=weight,
        ddof=ddof,
        eps=eps,
        floor=floor,
    )
    gain_R = gains(trajectories, objectives)
    searched_R = ~np.isnan(gain_R) & ~last(trajectories) & ~trajectories.masked_N[trajectories.rollout_R]
    question_R = trajectories.question_N[trajectories.rollout_R]
    found = statistics(gain_R, question_R, searched_R, ddof)
    call_B = (gain * standardise(found, eps, floor))[trajectories.round_B].astype(np.float32)
    call_BK = (trajectories.roles_BK == CALL) & trajectories.mask_BK
    return msgspec.structs.replace(term, advantages_BK=term.advantages_BK + call_BK * call_B[:, None])
