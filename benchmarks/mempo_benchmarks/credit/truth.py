"""True advantages of memory operations, measured by playing on from the same state again and again.

    A(s, a) = mean over M forks of R after (s, a) - mean over K forks of R after (s, a'),  a' ~ pi(. | s)

s is the state before a round, a the whole set of facts that the round keeps; the rest of the round and all
that follows is the policy's. R is `em_mean`, undiscounted. M = K: forks come in pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

import numpy as np
import torch
from msgspec import Struct

from mempo_benchmarks.credit.batch import States
from mempo_env.arrays.vector import SearchQAArrayVectorEnv
from mempo_trainers.credit.data import Floats, Ints
from mempo_trainers.policies.pointer import ArrayContexts, ArrayPolicy

BLOCK = 8_192
"""Pairs that are played together."""

PRIOR = 4
"""So many pairs of average spread are mixed into each state's own before forks are allotted."""

SPLITS = 20
"""Random halvings of the forks that the reliability is averaged over."""


class Truth(Struct, frozen=True, eq=False):
    """Measured advantages of S operations, and the P pairs of forks that they are the means of.

    Attributes:
        advantage_S: A(s, a).
        se_S: Its standard error, from the spread of the pairs' differences.
        forks_S: Pairs in the mean.
        pilot: Pairs of each that were played before, to see where the others should go.
        state_P: The state of each pair.
        taken_P: R after (s, a).
        fresh_P: R after (s, a'), a' drawn anew each time.
    """

    advantage_S: Floats
    se_S: Floats
    forks_S: Ints
    pilot: int
    state_P: Ints
    taken_P: Floats
    fresh_P: Floats

    @property
    def saved(self) -> float:
        """How many times more forks independent random numbers would have taken for the same error.

        The mean over states of sigma_R^2 (1/M + 1/K), over that of the squared standard errors.
        """
        both = [_variance(self.state_P, x_P, len(self.forks_S)) for x_P in (self.taken_P, self.fresh_P)]
        spent = float((self.se_S**2).mean())
        return float((sum(both) / self.forks_S).mean()) / spent if spent else 1.0


def outcomes(
    policy: ArrayPolicy,
    envs: SearchQAArrayVectorEnv,
    contexts: ArrayContexts,
    kept: Sequence[Ints | None],
    chance: np.random.Generator,
) -> Floats:
    """Play P episodes on to their end, once for each of some alternatives; returns R, (alternatives, P).

    Alternatives share random numbers: environment p has the same seed in each, and in every round the policy
    draws the same numbers for row p, coins of the facts, operation, entity and answers alike, whether or not
    an alternative uses them. Rows do not share any.

    Args:
        policy: Who plays.
        envs: P environments, the same for all alternatives; they are left as they are.
        contexts: What the policy sees there.
        kept: For each alternative the facts kept in the coming round, (P, V) of 0 and 1; None: the policy's
            own choice.
        chance: Of all random numbers.
    """
    size, generator = envs.num_envs, torch.Generator()
    seeds = chance.integers(1 << 31, size=size)
    twins = [envs.fork(range(size), seeds.tolist()) for _ in kept]
    seen, given, running = [contexts] * len(kept), list(kept), np.arange(size)
    for _ in count():
        seed, over_P = int(chance.integers(1 << 62)), np.ones(size, bool)
        for i, twin in enumerate(twins):
            generator.manual_seed(seed)
            kept_pV, given[i] = given[i], None
            actions = np.zeros((size, envs.layout.decisions), np.int64)
            actions[running] = policy.choose(seen[i][running], generator, kept_pV)
            observation, _, terminated, truncated, infos = twin.step(actions)
            seen[i] = ArrayContexts(observation, infos["action_mask"])
            over_P &= terminated | truncated
        running = running[~over_P[running]]
        if not len(running):
            break
    return np.stack([twin.state.em_N for twin in twins])


def measure(
    policy: ArrayPolicy, states: Sequence[States], forks: int, seed: int, advance: Callable[[int], None]
) -> Truth:
    """The true advantage of what was kept in each of S states.

    An eighth of the pairs is a pilot with as many for every state; the rest goes to the states by the spread
    of their differences (Neyman), so that the sum of squared errors is least, but no state gets fewer than
    the pilot had. Only the rest is in the mean: where an effect is rare, a pilot that misses it would keep
    its zeros and get few more, and the mean over both would be too near to 0.

    Args:
        policy: Who plays.
        states: By round.
        forks: Pairs a state, on average, those of the pilot too; at least 8.
        seed: Of all random numbers.
        advance: Is told pairs as they are played.
    """
    size = sum(len(group.place_S) for group in states)
    pilot = max(4, forks // 8)
    first = _play(policy, states, np.full(size, pilot), np.random.default_rng([seed, 2]), advance)
    spread_S = _variance(first[0], first[1] - first[2], size)
    spread_S = (pilot * spread_S + PRIOR * spread_S.mean()) / (pilot + PRIOR)
    forks_S = allot(np.sqrt(spread_S), (forks - pilot) * size, pilot)
    chance = np.random.default_rng([seed, 3])
    state_P, taken_P, fresh_P = _play(policy, states, forks_S, chance, advance)
    return Truth(
        advantage_S=np.bincount(state_P, taken_P - fresh_P, size) / forks_S,
        se_S=np.sqrt(_variance(state_P, taken_P - fresh_P, size) / forks_S),
        forks_S=forks_S,
        pilot=pilot,
        state_P=state_P,
        taken_P=taken_P,
        fresh_P=fresh_P,
    )


def allot(spread_S: Floats, total: int, least: int) -> Ints:
    """Share out `total` forks in proportion to the states' spreads, at least `least` for each.

    Where no state has any spread all get as many.
    """
    weight_S = spread_S if spread_S.any() else np.ones(len(spread_S))
    low_S = np.zeros(len(spread_S), bool)
    while True:
        free = max(total - least * int(low_S.sum()), 0)
        share_S = np.where(low_S, least, weight_S * (free / max(float(weight_S[~low_S].sum()), 1e-300)))
        if not (share_S < least).any():
            return share_S.astype(np.int64)
        low_S |= share_S < least


def reliability(truth: Truth, agree: Callable[[Floats, Floats], float], seed: int = 0) -> float:
    """How far another measurement of the same size would agree with this one, at most 1.

        r = 2 r_half / (1 + r_half)          (Spearman-Brown)

    r_half is the mean agreement of two measurements from half the forks of each state, over random halvings.

    Args:
        truth: With at least two pairs of every state.
        agree: Of two measurements of the S advantages, such as their rank correlation.
        seed: Of the halvings.
    """
    chance, size = np.random.default_rng([seed, 4]), len(truth.forks_S)
    start_S = np.cumsum(truth.forks_S) - truth.forks_S
    found = []
    for _ in range(SPLITS):
        order = np.lexsort((chance.random(len(truth.state_P)), truth.state_P))
        state, gain = truth.state_P[order], (truth.taken_P - truth.fresh_P)[order]
        odd = (np.arange(len(order)) - start_S[state]) % 2 == 1
        halves = [
            np.bincount(state[half], gain[half], size) / np.bincount(state[half], minlength=size)
            for half in (odd, ~odd)
        ]
        found.append(agree(*halves))
    half = float(np.mean(found))
    return 2 * half / (1 + half) if half > 0 else half


def _play(
    policy: ArrayPolicy,
    states: Sequence[States],
    forks_S: Ints,
    chance: np.random.Generator,
    advance: Callable[[int], None],
) -> tuple[Ints, Floats, Floats]:
    """So many pairs of each state: their states, R after what was kept, R after what is drawn anew."""
    found: list[tuple[Ints, Floats, Floats]] = []
    for group in states:
        rows_P = np.repeat(np.arange(len(group.place_S)), forks_S[group.place_S])
        for start in range(0, len(rows_P), BLOCK):
            rows = rows_P[start : start + BLOCK]
            kept: list[Ints | None] = [group.kept_SV[rows], None]
            envs = group.envs.fork(rows.tolist())
            taken, fresh = outcomes(policy, envs, group.contexts[rows], kept, chance)
            found.append((group.place_S[rows], taken, fresh))
            advance(len(rows))
    state_P, taken_P, fresh_P = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return state_P, taken_P, fresh_P


def _variance(state_P: Ints, x_P: Floats, size: int) -> Floats:
    """Variance of the values of each state, (S,), ddof 1."""
    n = np.bincount(state_P, minlength=size)
    centred_P = x_P - (np.bincount(state_P, x_P, size) / np.maximum(n, 1))[state_P]
    variance_S: Floats = np.bincount(state_P, centred_P**2, size) / np.maximum(n - 1, 1)
    return variance_S
