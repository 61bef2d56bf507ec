"""Credit for single entries of a memory, by the progress of the rounds that used them."""

from __future__ import annotations

import numpy as np

from mempo_env.errors import DataError
from mempo_trainers.credit.data import Floats, Ints, Trajectories
from mempo_trainers.credit.normalise import EPS, FLOOR, standardise, statistics
from mempo_trainers.credit.options import Ddof, Least, Progress, Weight, estimator
from mempo_trainers.credit.outcome import outcome
from mempo_trainers.credit.result import Credit, paint
from mempo_trainers.credit.rounds import previous
from mempo_trainers.credit.turn import gains


@estimator()
def attribution(
    trajectories: Trajectories,
    *,
    progress: Progress = "recall",
    cost: Weight = 0.1,
    weight: Weight = 1.0,
    ddof: Ddof = 1,
    eps: Least = EPS,
    floor: Least = FLOOR,
) -> Credit:
    """Who wrote an entry is paid for the progress of the rounds that used it.

        c_e = sum_{t in U_e} (phi_t - phi_t-1) / |E_t|,  c_e = -cost if no round used it
        A_k = A_i + 1[k writes e] weight (c_e - mean) / (std + eps)  over the entries of the question

    U_e are the rounds that used entry e, E_t the entries used in round t, phi_0 = 0. A merged entry passes
    its credit on to its sources in equal parts, and so on down to what was written; the merge itself has
    none.

    Easily got wrong: crediting the whole time from write to last use pays every entry that is alive for the
    same progress.

    A rule of ours, in the spirit of the hindsight credit of Mem-T: Densifying Rewards for Long-Horizon Memory
    Agents (arXiv 2601.23014). Needs `entry_BK`, `used_UC` and the progress; `merged_MC` where entries merge.
    """
    entry_BK, used_UC = trajectories.need("entry_BK", "used_UC")
    used_UC = used_UC[~trajectories.masked_N[trajectories.rollout_R[used_UC[:, 0]]]]
    none = np.empty((0, 2), np.int64)
    merged_MC = none if trajectories.merged_MC is None else trajectories.merged_MC
    rows, columns = np.nonzero((entry_BK >= 0) & trajectories.mask_BK)
    ids = np.unique(np.concatenate([entry_BK[rows, columns], used_UC[:, 1], merged_MC.ravel()]))
    earned_E2 = _earned(_progress(trajectories, progress), np.unique(used_UC, axis=0), ids)
    credit_E, uses_E = _pass_on(earned_E2, np.searchsorted(ids, np.unique(merged_MC, axis=0))).T
    written, where, back = np.unique(entry_BK[rows, columns], return_index=True, return_inverse=True)
    place = np.searchsorted(ids, written)
    credit_W = np.where(uses_E[place] > 0, credit_E[place], -cost)
    question_W = trajectories.question_N[trajectories.rollout_B[rows[where]]]
    found_W = statistics(credit_W, question_W, ~np.isin(written, merged_MC[:, 0]), ddof)
    found = outcome(trajectories, ddof, eps)
    advantages_BK = paint(trajectories, found.advantage_N[trajectories.rollout_B])
    advantages_BK[rows, columns] += weight * standardise(found_W, eps, floor)[back]
    return Credit(
        advantages_BK=advantages_BK,
        outcome_N=found.advantage_N,
        groups=found.groups,
        degenerate_outcome=found.degenerate,
    )


def _progress(trajectories: Trajectories, progress: Progress) -> Floats:
    """phi_t - phi_t-1 of each round, (R,); 0 where it was not measured, and in masked rollouts."""
    if progress == "score":
        gain_R = gains(trajectories, "arithmetic")
    else:
        (recall_R,) = trajectories.need("recall_R")
        gain_R = recall_R - previous(trajectories, recall_R, np.zeros(len(trajectories.question_N)))
    unknown_R = np.isnan(gain_R) | trajectories.masked_N[trajectories.rollout_R]
    return np.where(unknown_R, 0.0, gain_R)


def _earned(gain_R: Floats, used_UC: Ints, ids_E: Ints) -> Floats:
    """Each entry's share of the progress of the rounds that used it, and how many did, (E, 2)."""
    round_U, entry_U = used_UC[:, 0], np.searchsorted(ids_E, used_UC[:, 1])
    share_R = gain_R / np.maximum(np.bincount(round_U, minlength=len(gain_R)), 1)
    credit_E = np.bincount(entry_U, share_R[round_U], len(ids_E))
    return np.stack([credit_E, np.bincount(entry_U, minlength=len(ids_E))], axis=1)


def _pass_on(earned_E2: Floats, merged_MC: Ints) -> Floats:
    """Split what merged entries earned over their sources until only entries that were written hold any."""
    entry_M, source_M = merged_MC.T
    parts_M1 = 1.0 / np.bincount(entry_M, minlength=len(earned_E2))[entry_M][:, None]
    for _ in range(len(merged_MC) + 1):
        if not earned_E2[entry_M, 1].any():
            return earned_E2
        passed_M2 = earned_E2[entry_M] * parts_M1
        earned_E2 = earned_E2.copy()
        earned_E2[entry_M] = 0.0
        np.add.at(earned_E2, source_M, passed_M2)
    raise DataError("merged_MC: wanted entries made of older entries, got entries that are their own sources")
