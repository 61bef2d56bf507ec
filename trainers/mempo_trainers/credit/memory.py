"""Advantages for memory: what a memory tells about the answer, against what the whole history tells."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from msgspec import Struct

from mempo_env.errors import ConfigError, lookup
from mempo_env.files import digest
from mempo_env.settings import check
from mempo_trainers.credit.data import Flags, Floats, Ints, Trajectories
from mempo_trainers.credit.normalise import EPS, FLOOR, joint, standardise, statistics
from mempo_trainers.credit.options import Baseline, Ddof, Least, Objectives, Pool, Seed, Weight, estimator
from mempo_trainers.credit.outcome import Outcome, outcome, shaped
from mempo_trainers.credit.result import Credit, paint, writes
from mempo_trainers.credit.rounds import previous


class Memory(Struct, frozen=True, eq=False):
    """Memory rewards and what is made of them; 0 in rounds outside the pool.

    Attributes:
        pooled_R: 1 = in the pool: round 2 or later, scored, not masked.
        pool_R: The number of its pool.
        reward_R: r_{i,t}.
        advantage_R: weight A^mem_{i,t}.
        degenerate: Questions without a pool that teaches something.
        std: Mean of the pools' stds.
        correlation: Within pools, of the two terms of the reward; 0 where there is one only.
        outcome: A_i.
    """

    pooled_R: Flags
    pool_R: Ints
    reward_R: Floats
    advantage_R: Floats
    degenerate: int
    std: float
    correlation: float
    outcome: Outcome


def _mean(values_RJ: Floats, counted_RJ: Flags) -> Floats:
    ones_J = np.ones(values_RJ.shape[1])  # a product is faster than a sum along a short axis
    mean_R: Floats = np.where(counted_RJ, values_RJ, 0.0) @ ones_J / np.maximum(counted_RJ @ ones_J, 1)
    return mean_R


OBJECTIVES: Mapping[str, Callable[[Floats, Flags], Floats]] = {
    "arithmetic": lambda logp_RJ, counted_RJ: _mean(np.exp(np.where(counted_RJ, logp_RJ, 0.0)), counted_RJ),
    "geometric": lambda logp_RJ, counted_RJ: np.exp(_mean(logp_RJ, counted_RJ)),
    "log": _mean,
}
"""The means over objectives; see `options.Objectives`."""


def memory_rewards(
    trajectories: Trajectories, objectives: Objectives = "arithmetic", baseline: Baseline = "full"
) -> tuple[Floats, Floats, Flags]:
    """P(Z | q, mem_t) and its baseline (R,), (R,), and which rounds have both and are a memory's (R,).

        P(Z | c) = exp( mean_l log pi(z_l | c, z_<l) )
        r_{i,t}  = P(Z | q, mem_t) - P(Z | q, s_<t),  t = 2..T_i

    Several objectives are scored alone and averaged as `objectives` says; an objective with NaN on either
    side counts on neither. Rounds that are masked or not scored at all have none. Under "log" no score of a
    pooled round may be -inf: ConfigError.
    """
    average = lookup(OBJECTIVES, objectives, "mean over objectives")
    check("baseline", baseline, Baseline)
    (memory_RJ,) = trajectories.need("memory_logp_RJ")
    base_RJ = np.zeros_like(memory_RJ)
    if baseline == "full":
        (base_RJ,) = trajectories.need("history_logp_RJ")
    elif baseline == "previous":
        (prior_NJ,) = trajectories.need("prior_logp_NJ")
        before = [previous(trajectories, x_R, x_N) for x_R, x_N in zip(memory_RJ.T, prior_NJ.T, strict=True)]
        second_R1 = (trajectories.number_R == 2)[:, None]
        base_RJ = np.where(second_R1, prior_NJ[trajectories.rollout_R], np.stack(before, axis=1))
    counted_RJ = ~(np.isnan(memory_RJ) | np.isnan(base_RJ))
    scored_R = counted_RJ.any(axis=1) & (trajectories.number_R >= 2)
    scored_R &= ~trajectories.masked_N[trajectories.rollout_R]
    base_R = np.zeros(len(scored_R)) if baseline == "none" else average(base_RJ, counted_RJ)
    memory_R = average(memory_RJ, counted_RJ)
    check_finite(scored_R, memory_R, base_R)
    return memory_R, base_R, scored_R


def check_finite(scored_R: Flags, *means_R: Floats) -> None:
    """ConfigError where a scored round has no finite mean: a probability of 0 has no log."""
    for mean_R in means_R:
        wrong = np.flatnonzero(scored_R & ~np.isfinite(mean_R))
        if wrong.size:
            raise ConfigError(
                f"objectives 'log': wanted finite log-probs, got a score of {mean_R[wrong[0]]} in row "
                f"{wrong[0]} of the rounds: 'arithmetic' and 'geometric' take probabilities of 0"
            )


def memory_term(
    trajectories: Trajectories,
    *,
    objectives: Objectives = "arithmetic",
    baseline: Baseline = "full",
    weight: Weight = 1.0,
    pool: Pool = "all",
    only_successful: bool = False,
    ddof: Ddof = 1,
    eps: Least = EPS,
    floor: Least = FLOOR,
) -> Memory:
    """A^mem_{i,t} = (r_{i,t} - mean) / (std + eps) over a pool of rounds, and A_i; see `mempo`.

    Args:
        trajectories: With `memory_logp_RJ`, and what the baseline needs.
        objectives: "arithmetic", "geometric" or "log", see `Objectives`.
        baseline: "full", "none" or "previous" (most of a memory's worth is inherited), see `Baseline`.
        weight: Of A^mem.
        pool: "all" or "round"; the first weighs long rollouts by their rounds.
        only_successful: Pool rollouts with an outcome above 0 only, as InfoMem does (arXiv 2606.03329); what
            "successful" means for a partial outcome is our reading.
        ddof: 1 or 0.
        eps: Added to stds.
        floor: A pool with a smaller std gives 0: 1e-4 in float32, in bfloat16 five times the noise of P.
    """
    check("pool", pool, Pool)
    memory_R, base_R, pooled_R = memory_rewards(trajectories, objectives, baseline)
    if only_successful:
        pooled_R &= (trajectories.outcome_N > 0)[trajectories.rollout_R]
    question_R = trajectories.question_N[trajectories.rollout_R]
    pool_R = question_R if pool == "all" else joint(question_R, trajectories.number_R)
    reward_R = np.subtract(memory_R, base_R, out=np.zeros_like(memory_R), where=pooled_R)
    found = statistics(reward_R, pool_R, pooled_R, ddof)
    alive_R = pooled_R & (found.std_X > 0) & (found.std_X >= floor)  # alone, or all equal: a std of 0
    questions = len(np.unique(trajectories.question_N[~trajectories.masked_N]))
    return Memory(
        pooled_R=pooled_R,
        pool_R=pool_R,
        reward_R=reward_R,
        advantage_R=weight * standardise(found, eps, floor),
        degenerate=questions - len(np.unique(question_R[alive_R])),
        std=float(found.std_G.mean()) if found.std_G.size else 0.0,
        correlation=_correlation(
            statistics(memory_R, pool_R, pooled_R).centred_X, statistics(base_R, pool_R, pooled_R).centred_X
        ),
        outcome=outcome(trajectories, ddof, eps),
    )


@estimator(options_of=memory_term)
def mempo(trajectories: Trajectories, **options: Any) -> Credit:
    """The outcome for all tokens, and for memory what it tells about the answer.

        r_{i,t}  = P(Z | q, mem_t) - P(Z | q, s_<t),  t = 2..T_i
        A^mem    = (r - mean) / (std + eps)  over all (i, t) of the question
        A_k      = A_i + 1[role(k) = mem, round t] weight A^mem_{i,t}

    Source: MemPO: Self-Memory Policy Optimization for Long-Horizon Agents (arXiv 2603.00680) for P, r, the
    pool and the tokens. Our reading: `ddof` 1 and `eps` (verl's), the arithmetic mean over objectives, the
    floor, the tags as part of the memory, `weight` 1. A round without a write is scored with the memory in
    force and stays in the pool, but has no token to credit; a memory written in round 1 gets the outcome.

    Args:
        trajectories: With `memory_logp_RJ`, and what the baseline needs.
        options: Those of `memory_term`, by keyword.
    """
    term = memory_term(trajectories, **options)
    return _credit(trajectories, term, term.advantage_R)


@estimator(options_of=memory_term)
def placebo(trajectories: Trajectories, *, seed: Seed = 0, **options: Any) -> Credit:
    """A control for `mempo`: the same numbers, shuffled over the rounds of each pool.

        A_k = A_i + 1[role(k) = mem, round t] weight A^mem_{sigma(i,t)},  sigma a permutation of the pool

    What still learns under it does not learn from what a memory holds. The permutation is drawn from the seed
    and the rewards themselves: the same batch is always shuffled alike, every other batch otherwise.
    """
    term = memory_term(trajectories, **options)
    generator = np.random.default_rng([int(seed), int(digest(term.reward_R.tobytes()), 16)])
    rows = np.flatnonzero(term.pooled_R)
    there = rows[np.argsort(term.pool_R[rows], kind="stable")]
    here = rows[np.lexsort((generator.random(len(rows)), term.pool_R[rows]))]
    shuffled_R = np.zeros_like(term.advantage_R)
    shuffled_R[there] = term.advantage_R[here]
    return _credit(trajectories, term, shuffled_R)


@estimator()
def spread(
    trajectories: Trajectories,
    *,
    objectives: Objectives = "arithmetic",
    baseline: Baseline = "full",
    weight: Weight = 1.0,
    ddof: Ddof = 1,
    eps: Least = EPS,
    floor: Least = FLOOR,
) -> Credit:
    """A control for `mempo`: the same memory rewards, paid to the whole trajectory.

        R'_i = R_i + weight mean_{t = 2..T_i} r_{i,t},  A_k = (R'_i - mean_j R'_j) / (std_j R'_j + eps) + S_i

    A rollout without memory rewards keeps R_i. Where std_j R' is below the floor, A is S_i: rewards that
    differ by float noise teach nothing.
    """
    term = memory_term(trajectories, objectives=objectives, baseline=baseline, ddof=ddof, floor=floor)
    rollout_R, rollouts = trajectories.rollout_R, len(trajectories.question_N)
    sum_N = np.bincount(rollout_R, term.reward_R, rollouts)
    mean_N = sum_N / np.maximum(np.bincount(rollout_R, term.pooled_R, rollouts), 1)
    both_N = trajectories.outcome_N + weight * mean_N
    found = statistics(both_N, trajectories.question_N, ~trajectories.masked_N, ddof)
    total = shaped(trajectories, found, standardise(found, eps, floor))
    return Credit(
        advantages_BK=paint(trajectories, total.advantage_N[trajectories.rollout_B]),
        outcome_N=total.advantage_N,
        groups=total.groups,
        degenerate_outcome=term.outcome.degenerate,
        degenerate_memory=term.degenerate,
        memory_std=term.std,
        memory_correlation=term.correlation,
    )


def _credit(trajectories: Trajectories, term: Memory, memory_R: Floats) -> Credit:
    found = term.outcome
    unwritten_R = ~writes(trajectories)[term.pooled_R]
    return Credit(
        advantages_BK=paint(
            trajectories, found.advantage_N[trajectories.rollout_B], memory_R[trajectories.round_B]
        ),
        outcome_N=found.advantage_N,
        groups=found.groups,
        degenerate_outcome=found.degenerate,
        degenerate_memory=term.degenerate,
        memory_std=term.std,
        memory_correlation=term.correlation,
        unwritten=float(unwritten_R.mean()) if unwritten_R.size else np.nan,
    )


def _correlation(a: Floats, b: Floats) -> float:
    """Of two sets of deviations, in [-1, 1]; 0 where one of them does not vary."""
    size = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / size if size else 0.0
