"""Credit for both halves of a round: for memory what it tells, for a search what is found from it on."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from mempo_env.settings import Share
from mempo_trainers.credit.data import CALL, Flags, Floats, Ints, Trajectories
from mempo_trainers.credit.memory import memory_term, mempo
from mempo_trainers.credit.normalise import EPS, FLOOR
from mempo_trainers.credit.options import Least, Weight, estimator
from mempo_trainers.credit.result import Credit
from mempo_trainers.credit.rounds import last, to_go
from mempo_trainers.credit.turn import gains


@estimator(options_of=memory_term)
def mempo_gain(
    trajectories: Trajectories,
    *,
    gain: Weight = 1.0,
    gamma: Share = 1.0,
    eps: Least = EPS,
    floor: Least = FLOOR,
    **options: Any,
) -> Credit:
    """`mempo` for memory and answers, and for a search the information that it and its successors bring.

        g_{i,t} = mean_j [ log P(Z_j | q, s_<=t) - log P(Z_j | q, s_<t) ],  t = 1..T_i - 1, in nats
        G_{i,t} = sum_{s >= t} gamma^(s - t) g_{i,s}
        A_k     = A_i + 1[role(k) = mem, round t] weight A^mem_{i,t}
                      + 1[role(k) = call, round t < T_i] gain G_{i,t} / (sqrt(mean G^2) + eps)

    The mean is over all (i, t < T_i) of the question.

    A memory term teaches what to keep and leaves what to search for to the outcome, which says nothing before
    the first success. The gain is that of IGPO (arXiv 2510.14967) in nats, paid to calls alone. It is scaled
    but not centred: to learn nothing has the natural worth 0, and centred gains teach to stop searching as
    soon as the best articles are found. The sum over later rounds reaches a search that answers nothing by
    itself but names the next one. The combination is ours; docs/experiments.md shows it beside its controls.

    Args:
        trajectories: With the scores that `mempo` needs, and `seen_logp_RJ`.
        gain: Of the scaled gain.
        gamma: Discount a round.
        eps: Added to stds.
        floor: A pool whose spread is below it gives 0.
        options: The others of `mempo`.
    """
    term = mempo(trajectories, eps=eps, floor=floor, **options)
    gain_R = gains(trajectories, "log")
    searched_R = ~np.isnan(gain_R) & ~last(trajectories) & ~trajectories.masked_N[trajectories.rollout_R]
    return_R = to_go(trajectories, np.where(searched_R, gain_R, 0.0), gamma)
    scaled_R = _scaled(return_R, trajectories.question_N[trajectories.rollout_R], searched_R, eps, floor)
    call_B = (gain * scaled_R)[trajectories.round_B].astype(np.float32)
    call_BK = (trajectories.roles_BK == CALL) & trajectories.mask_BK
    return msgspec.structs.replace(term, advantages_BK=term.advantages_BK + call_BK * call_B[:, None])


def _scaled(values_R: Floats, group_R: Ints, keep_R: Flags, eps: float, floor: float) -> Floats:
    """Values over the root mean square of their group; 0 where left out or where that is below the floor."""
    _, which_R = np.unique(group_R, return_inverse=True)
    kept_R = np.where(keep_R, values_R, 0.0)
    size_G = np.sqrt(np.bincount(which_R, kept_R**2) / np.maximum(np.bincount(which_R, keep_R), 1))
    scaled_R: Floats = np.where(size_G[which_R] < floor, 0.0, kept_R / (size_G[which_R] + eps))
    return scaled_R
