"""Advantages from rewards along the episode: returns to go, and generalised advantages of a critic."""

from __future__ import annotations

import numpy as np

from mempo_env.settings import Share
from mempo_trainers.credit.data import Flags, Floats, Trajectories
from mempo_trainers.credit.normalise import whiten
from mempo_trainers.credit.options import Weight, estimator
from mempo_trainers.credit.outcome import outcome
from mempo_trainers.credit.result import Credit, paint
from mempo_trainers.credit.rounds import pick, table, to_go


@estimator()
def reinforce_pp(trajectories: Trajectories, *, beta: Weight = 0.0) -> Credit:
    """What follows a token in the whole episode, whitened over all tokens of the batch.

        G_k = sum_{l >= k} (r_l - beta k1_l),  k1_l = log pi(l) - log pi_ref(l)
        A_k = (G_k - mean) / sqrt(var + 1e-8)

    k, l run over the *generated* tokens of all rounds of a rollout; a round's reward lies on its last token.
    With `beta` there is to be no KL in the loss; without it (0) no log-probs are needed.

    Easily got wrong: a sum that starts anew at observation tokens leaves all rounds but the last without the
    outcome.

    Source: REINFORCE++: Stabilizing Critic-Free Policy Optimization with Global Advantage Normalization
    (arXiv 2501.03262). The discount is 1, the default of `beta` is ours.
    """
    (reward_R,) = trajectories.need("reward_R")
    total = outcome(trajectories)
    return_B = to_go(trajectories, reward_R)[trajectories.round_B]
    if beta:
        mask_BK = trajectories.mask_BK
        advantages_BK = np.zeros(mask_BK.shape, np.float32)
        advantages_BK[mask_BK] = whiten((return_B[:, None] - beta * _k1_to_go(trajectories))[mask_BK])
    else:
        advantages_BK = paint(trajectories, whiten(return_B, trajectories.mask_BK.sum(axis=1)))
    return Credit(
        advantages_BK=advantages_BK,
        outcome_N=np.zeros(len(trajectories.question_N)),
        groups=total.groups,
        degenerate_outcome=total.degenerate,
    )


def _k1_to_go(trajectories: Trajectories) -> Floats:
    """sum_{l >= k} k1_l over a rollout's generated tokens, (B, K)."""
    logprobs_BK, ref_BK = trajectories.need("logprobs_BK", "ref_logprobs_BK")
    k1_BK = np.where(trajectories.mask_BK, logprobs_BK - ref_BK, 0.0)
    inside_BK = np.cumsum(k1_BK[:, ::-1], axis=1)[:, ::-1]
    sum_B = k1_BK.sum(axis=1)
    order = np.lexsort((trajectories.number_R[trajectories.round_B], trajectories.rollout_B))
    upto = np.cumsum(sum_B[order])
    end = np.searchsorted(trajectories.rollout_B[order], trajectories.rollout_B[order], side="right") - 1
    later_B = np.empty_like(sum_B)
    later_B[order] = upto[end] - upto
    return inside_BK + later_B[:, None]  # type: ignore[no-any-return]


@estimator()
def gae(trajectories: Trajectories, *, gamma_round: Share = 1.0, lambda_round: Share = 0.95) -> Credit:
    """Generalised advantages of a critic, discounted from round to round and not from token to token.

        delta_k = r_k + gamma_k V_k+1 - V_k
        A_k     = delta_k + gamma_k lambda_k A_k+1

    k runs over the generated tokens of all rounds of a rollout; gamma_k = lambda_k = 1 inside a round,
    `gamma_round` and `lambda_round` at a round's last token, on which its reward lies. V after a round's last
    token is that of the next round's first generated token, read in the next round's own context; after the
    episode V = 0 (rounds left are observed, so running out of them is an end like any other).

    Inside a round the sum telescopes to A_k = target_t - V_k with

        target_t = r_t + gamma ((1 - lambda) V_t+1,first + lambda target_t+1)

    so a critic's target is A + V = target_t. Not whitened.

    Source: High-Dimensional Continuous Control Using Generalized Advantage Estimation (arXiv 1506.02438).
    """
    reward_R, values_BK = trajectories.need("reward_R", "values_BK")
    reward_NT = table(trajectories, reward_R)
    mask_BK = trajectories.mask_BK
    value_NT = table(trajectories, _first(trajectories, values_BK, mask_BK), np.nan)
    target_NT, after_N = np.empty_like(reward_NT), np.zeros(len(reward_NT))
    for t in range(reward_NT.shape[1] - 1, -1, -1):
        target_NT[:, t] = reward_NT[:, t] + after_N
        border_N = gamma_round * ((1 - lambda_round) * value_NT[:, t] + lambda_round * target_NT[:, t])
        after_N = np.where(np.isnan(value_NT[:, t]), target_NT[:, t], border_N)  # no token, no border
    target_B = pick(trajectories, target_NT)[trajectories.round_B]
    total = outcome(trajectories)
    advantages_BK = np.zeros(mask_BK.shape, np.float32)
    np.subtract(target_B[:, None], values_BK, out=advantages_BK, where=mask_BK, casting="same_kind")
    return Credit(
        advantages_BK=advantages_BK,
        outcome_N=np.zeros(len(trajectories.question_N)),
        groups=total.groups,
        degenerate_outcome=total.degenerate,
    )


def _first(trajectories: Trajectories, values_BK: Floats, mask_BK: Flags) -> Floats:
    """The critic's value before the first token that a round generated, (R,); NaN where it generated none."""
    written = np.flatnonzero(mask_BK.any(axis=1))
    rounds, first = np.unique(trajectories.round_B[written], return_index=True)
    rows = written[first]
    out_R = np.full(len(trajectories.rollout_R), np.nan)
    if not rows.size:  # there may be no columns
        return out_R
    out_R[rounds] = values_BK[rows, mask_BK[rows].argmax(axis=1)]
    return out_R
