"""Advantages of turns: each round is compared with rounds that are like it."""

from __future__ import annotations

import numpy as np

from mempo_env.settings import Share
from mempo_trainers.credit.data import Floats, Trajectories
from mempo_trainers.credit.memory import OBJECTIVES, check_finite
from mempo_trainers.credit.normalise import EPS, FLOOR, joint, standardise, statistics
from mempo_trainers.credit.options import Ddof, Least, Objectives, Weight, estimator
from mempo_trainers.credit.outcome import outcome
from mempo_trainers.credit.result import Credit, paint
from mempo_trainers.credit.rounds import last, to_go


@estimator()
def turn_level(
    trajectories: Trajectories,
    *,
    weight: Weight = 1.0,
    ddof: Ddof = 1,
    eps: Least = EPS,
    floor: Least = FLOOR,
) -> Credit:
    """A search that finds new gold facts is better than the same round of the other rollouts.

        A_k = A_i + weight (u_{i,t} - mean) / (std + eps),  t < T_i, over the rollouts j with T_j > t
        A_k = A_i in the last round

    u_{i,t} counts the gold facts that round t retrieved first (`found_R`).

    Source: Reinforcing Multi-Turn Reasoning in LLM Agents via Turn-Level Credit Assignment (arXiv
    2505.11821), MT-GRPO, whose two turns are here any number; lambda is `weight`.
    """
    (found_R,) = trajectories.need("found_R")
    group_R = joint(trajectories.question_N[trajectories.rollout_R], trajectories.number_R)
    keep_R = ~last(trajectories) & ~trajectories.masked_N[trajectories.rollout_R]
    turn_R = standardise(statistics(found_R, group_R, keep_R, ddof), eps, floor)
    return _credit(trajectories, weight * turn_R, ddof, eps)


@estimator()
def gigpo(
    trajectories: Trajectories,
    *,
    gamma: Share = 0.95,
    weight: Weight = 1.0,
    ddof: Ddof = 1,
    eps: Least = EPS,
    floor: Least = FLOOR,
) -> Credit:
    """What followed a round, against what followed the rounds in which the same was observed.

        G_{i,t} = sum_{s >= t} gamma^(s - t) r_{i,s}
        A_k     = A_i + weight (G_{i,t} - mean) / (std + eps)  over the rounds of the question with the same
                  observation; 0 in a group of one

    `state_R` must not depend on the number of rounds left, or every group is a group of one.

    Source: Group-in-Group Policy Optimization for LLM Agent Training (arXiv 2505.10978); omega is `weight`.
    """
    reward_R, state_R = trajectories.need("reward_R", "state_R")
    group_R = joint(trajectories.question_N[trajectories.rollout_R], state_R)
    keep_R = ~trajectories.masked_N[trajectories.rollout_R]
    return_R = to_go(trajectories, reward_R, gamma)
    step_R = standardise(statistics(return_R, group_R, keep_R, ddof), eps, floor)
    return _credit(trajectories, weight * step_R, ddof, eps)


@estimator()
def igpo(
    trajectories: Trajectories,
    *,
    objectives: Objectives = "arithmetic",
    gamma: Share = 1.0,
    ddof: Ddof = 1,
    eps: Least = EPS,
    floor: Least = FLOOR,
) -> Credit:
    """A round is worth what it adds to the probability of the answer, the last one what it earns.

        r_{i,t} = P(Z | q, s_<=t) - P(Z | q, s_<t) for t < T_i,  r_{i,T_i} = R_i
        A_k     = sum_{s >= t} gamma^(s - t) z_{i,s} + S_i
        z       = (r - mean) / (std + eps)  over all (i, t) of the question

    The whole history is scored, so memory is credited only for what it leads to. A round t < T_i that was not
    scored is left out of the pool and adds nothing.

    Source: Information Gain-based Policy Optimization: A Simple and Effective Approach for Multi-Turn LLM
    Agents (arXiv 2510.14967). The mean over objectives and the default of `gamma` are ours.
    """
    gain_R = gains(trajectories, objectives)
    last_R, rollout_R = last(trajectories), trajectories.rollout_R
    reward_R = np.where(last_R, trajectories.outcome_N[rollout_R], gain_R)
    keep_R = ~np.isnan(reward_R) & ~trajectories.masked_N[rollout_R]
    found = statistics(reward_R, trajectories.question_N[rollout_R], keep_R, ddof)
    sum_R = to_go(trajectories, standardise(found, eps, floor), gamma)
    shaping_N = np.where(trajectories.masked_N, 0.0, trajectories.shaping_N)
    total = outcome(trajectories)
    return Credit(
        advantages_BK=paint(trajectories, (sum_R + shaping_N[rollout_R])[trajectories.round_B]),
        outcome_N=shaping_N,
        groups=total.groups,
        degenerate_outcome=total.degenerate,
    )


def gains(trajectories: Trajectories, objectives: Objectives) -> Floats:
    """P(Z | q, s_<=t) - P(Z | q, s_<t) of each round, (R,).

    An objective with NaN on either side counts on neither; a round without any, or masked, has NaN. Nothing
    comes before round 1, so P(Z | q) stands there where the history was not scored. Under "log" no score of
    the others may be -inf: ConfigError.
    """
    seen_RJ, history_RJ = trajectories.need("seen_logp_RJ", "history_logp_RJ")
    if trajectories.prior_logp_NJ is not None:
        bare_RJ = np.isnan(history_RJ) & (trajectories.number_R == 1)[:, None]
        history_RJ = np.where(bare_RJ, trajectories.prior_logp_NJ[trajectories.rollout_R], history_RJ)
    average = OBJECTIVES[objectives]
    counted_RJ = ~(np.isnan(seen_RJ) | np.isnan(history_RJ))
    seen_R, history_R = average(seen_RJ, counted_RJ), average(history_RJ, counted_RJ)
    scored_R = counted_RJ.any(axis=1) & ~trajectories.masked_N[trajectories.rollout_R]
    check_finite(scored_R, seen_R, history_R)
    gain_R: Floats = np.subtract(seen_R, history_R, out=np.full(len(scored_R), np.nan), where=scored_R)
    return gain_R


def _credit(trajectories: Trajectories, turn_R: Floats, ddof: int, eps: float) -> Credit:
    """A_i, and on all tokens of a round what the round earned beside it."""
    found = outcome(trajectories, ddof, eps)
    turn_B = turn_R[trajectories.round_B]
    return Credit(
        advantages_BK=paint(trajectories, found.advantage_N[trajectories.rollout_B] + turn_B),
        outcome_N=found.advantage_N,
        groups=found.groups,
        degenerate_outcome=found.degenerate,
    )
