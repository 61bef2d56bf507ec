"""Advantages from the outcome alone: a rollout's reward against the other rollouts of its question."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from mempo_env.settings import Share
from mempo_trainers.credit.data import Floats, Trajectories
from mempo_trainers.credit.normalise import EPS, Statistics, standardise, statistics
from mempo_trainers.credit.options import Ddof, Least, Weight, estimator
from mempo_trainers.credit.result import Credit, paint


class Outcome(Struct, frozen=True, eq=False):
    """A_i of each rollout with its shaping terms, and how many groups there are and tell nothing."""

    advantage_N: Floats
    groups: int
    degenerate: int


def group_outcomes(trajectories: Trajectories, ddof: int = 1) -> Statistics:
    """Statistics of R_i over the rollouts of each question, masked ones left out; never over segments."""
    return statistics(trajectories.outcome_N, trajectories.question_N, ~trajectories.masked_N, ddof)


def shaped(trajectories: Trajectories, found: Statistics, advantage_N: Floats) -> Outcome:
    """Add the shaping terms S_i to a normalised outcome; no std divides them."""
    total_N = np.where(trajectories.masked_N, 0.0, advantage_N + trajectories.shaping_N)
    return Outcome(total_N, len(found.tied_G), int(found.tied_G.sum()))


def outcome(trajectories: Trajectories, ddof: int = 1, eps: float = EPS) -> Outcome:
    """A_i = (R_i - mean) / (std + eps) + S_i within the rollouts of a question.

    (R_i - mean) / (std + eps) is exactly 0 where all R_i of the question are exactly equal, and in a group of
    one (verl 0.9.1 gives such a rollout its raw reward).
    """
    found = group_outcomes(trajectories, ddof)
    return shaped(trajectories, found, standardise(found, eps))


def _everywhere(trajectories: Trajectories, found: Outcome) -> Credit:
    """The same for all tokens of a rollout."""
    return Credit(
        advantages_BK=paint(trajectories, found.advantage_N[trajectories.rollout_B]),
        outcome_N=found.advantage_N,
        groups=found.groups,
        degenerate_outcome=found.degenerate,
    )


@estimator()
def grpo(trajectories: Trajectories, *, ddof: Ddof = 1, eps: Least = EPS) -> Credit:
    """Every token of a rollout gets its outcome, normalised within the question's rollouts.

        A_k = A_i = (R_i - mean_j R_j) / (std_j R_j + eps) + S_i,  i, j = 1..G,  every token k of rollout i

    Source: DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models (arXiv
    2402.03300), outcome supervision. `ddof` 1 and `eps` 1e-6 are verl's; 0 and 1e-4 are to be had.
    """
    return _everywhere(trajectories, outcome(trajectories, ddof, eps))


@estimator()
def dr_grpo(trajectories: Trajectories) -> Credit:
    """GRPO without the std: questions that are nearly always or never solved are not blown up.

        A_k = R_i - mean_j R_j + S_i,  i, j = 1..G

    Source: Understanding R1-Zero-Like Training: A Critical Perspective (arXiv 2503.20783). Its other half is
    the loss: aggregate by `seq-mean-token-sum-norm`.
    """
    found = group_outcomes(trajectories)
    return _everywhere(trajectories, shaped(trajectories, found, found.centred_X))


@estimator()
def rloo(trajectories: Trajectories) -> Credit:
    """The outcome against the mean of the question's other rollouts, which makes the baseline independent.

        A_k = R_i - 1 / (G - 1) sum_{j != i} R_j + S_i = G / (G - 1) (R_i - mean_j R_j) + S_i

    Source: Back to Basics: Revisiting REINFORCE Style Optimization for Learning from Human Feedback in LLMs
    (arXiv 2402.14740).
    """
    found = group_outcomes(trajectories)
    alone_N = found.centred_X * found.count_X / np.maximum(found.count_X - 1, 1)
    return _everywhere(trajectories, shaped(trajectories, found, alone_N))


@estimator()
def discounted(
    trajectories: Trajectories, *, gamma: Share = 0.95, ddof: Ddof = 1, eps: Least = EPS
) -> Credit:
    """Early memory gets less of the outcome than late memory.

        A_k = gamma^(T_i - t) A_i on memory tokens of round t = 1..T_i,  A_i elsewhere

    A_i is normalised first and discounted then; the other way round the mean of the group would no longer be
    its baseline. A common heuristic that no paper stands for; the default of `gamma` is ours.
    """
    found = outcome(trajectories, ddof, eps)
    all_B = found.advantage_N[trajectories.rollout_B]
    left_R = trajectories.rounds_N[trajectories.rollout_R] - trajectories.number_R
    memory_B = (gamma**left_R - 1.0)[trajectories.round_B] * all_B
    return _with_memory(trajectories, found, all_B, memory_B)


@estimator()
def memory_only(
    trajectories: Trajectories, *, elsewhere: Weight = 0.1, ddof: Ddof = 1, eps: Least = EPS
) -> Credit:
    """The outcome mostly for memory.

        A_k = w_k A_i,  w_k = 1 on memory tokens, `elsewhere` on all others

    The loss divides by as many tokens as ever: weights of 0.1 make the other tokens small, not the memory
    tokens large. A common heuristic that no paper stands for.
    """
    found = outcome(trajectories, ddof, eps)
    all_B = found.advantage_N[trajectories.rollout_B]
    return _with_memory(trajectories, found, elsewhere * all_B, (1.0 - elsewhere) * all_B)


def _with_memory(trajectories: Trajectories, found: Outcome, all_B: Floats, memory_B: Floats) -> Credit:
    return Credit(
        advantages_BK=paint(trajectories, all_B, memory_B),
        outcome_N=found.advantage_N,
        groups=found.groups,
        degenerate_outcome=found.degenerate,
    )
