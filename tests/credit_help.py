"""Random episodes as plain nested data, packed into arrays in any order and with any padding."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mempo_trainers.credit.data import MEM, Trajectories

NAN = float("nan")


@dataclass
class Token:
    role: int
    logp: float = 0.0
    ref: float = 0.0
    value: float = NAN
    entry: int = -1


@dataclass
class Round:
    segments: list[list[Token]]
    reward: float = 0.0
    memory: list[float] = field(default_factory=list)  # log-probs an objective, NaN = not scored
    history: list[float] = field(default_factory=list)
    seen: list[float] = field(default_factory=list)
    found: int = 0
    recall: float = 0.0
    state: int = 0
    uses: list[int] = field(default_factory=list)


@dataclass
class Rollout:
    question: int
    outcome: float
    rounds: list[Round]
    shaping: float = 0.0
    masked: bool = False
    prior: list[float] = field(default_factory=list)


Address = tuple[int, int, int, int]
"""Rollout, round, segment of the round, token of the segment, all from 0."""


@dataclass
class Packed:
    data: Trajectories
    where: dict[Address, tuple[int, int]]

    def read(self, advantages_BK: np.ndarray) -> dict[Address, float]:
        """The advantage of every token by its address."""
        return {address: float(advantages_BK[place]) for address, place in self.where.items()}


def pack(
    rollouts: list[Rollout],
    merged: list[tuple[int, int]] = (),  # type: ignore[assignment]
    shuffle: np.random.Generator | None = None,
    padding: int = 0,
) -> Packed:
    """The arrays of some rollouts; with a generator, rollouts, rounds and segments in a random order.

    Nothing in the arrays can be written to, so an estimator that changes its input fails.
    """
    rounds = [(n, t) for n, rollout in enumerate(rollouts) for t in range(len(rollout.rounds))]
    segments = [(n, t, s) for n, t in rounds for s in range(len(rollouts[n].rounds[t].segments))]
    order_N = list(range(len(rollouts)))
    if shuffle is not None:
        shuffle.shuffle(order_N)
        shuffle.shuffle(rounds)
        slots = shuffle.permutation(len(segments))
        mixed = [segments[i] for i in slots]
        for key in {(n, t) for n, t, _ in mixed}:  # the segments of a round keep their order
            places = [i for i, (n, t, _) in enumerate(mixed) if (n, t) == key]
            for place, segment in zip(places, sorted(mixed[i] for i in places), strict=True):
                mixed[place] = segment
        segments = mixed
    row_N = {n: i for i, n in enumerate(order_N)}
    row_R = {key: i for i, key in enumerate(rounds)}
    width = padding + max((len(rollouts[n].rounds[t].segments[s]) for n, t, s in segments), default=0)
    grids: dict[str, Any] = {
        "roles_BK": np.zeros((len(segments), width), np.int8),
        "logprobs_BK": np.full((len(segments), width), NAN),
        "ref_logprobs_BK": np.full((len(segments), width), NAN),
        "values_BK": np.full((len(segments), width), NAN),
        "entry_BK": np.full((len(segments), width), -1),
    }
    where: dict[Address, tuple[int, int]] = {}
    for b, (n, t, s) in enumerate(segments):
        for k, token in enumerate(rollouts[n].rounds[t].segments[s]):
            where[n, t, s, k] = (b, k)
            told = (token.role, token.logp, token.ref, token.value, token.entry)
            for grid, number in zip(grids.values(), told, strict=True):
                grid[b, k] = number
    round_ = [rollouts[n].rounds[t] for n, t in rounds]
    uses = [(row_R[n, t], e) for n, t in rounds for e in rollouts[n].rounds[t].uses]
    by_N = [rollouts[n] for n in order_N]
    arrays: dict[str, Any] = {
        "question_N": np.array([r.question for r in by_N], np.int64),
        "outcome_N": np.array([r.outcome for r in by_N], float),
        "shaping_N": np.array([r.shaping for r in by_N], float),
        "masked_N": np.array([r.masked for r in by_N], bool),
        "prior_logp_NJ": np.array([r.prior for r in by_N], float),
        "rollout_R": np.array([row_N[n] for n, _ in rounds], np.int64),
        "number_R": np.array([t + 1 for _, t in rounds], np.int64),
        "round_B": np.array([row_R[n, t] for n, t, _ in segments], np.int64),
        "reward_R": np.array([r.reward for r in round_], float),
        "memory_logp_RJ": np.array([r.memory for r in round_], float),
        "history_logp_RJ": np.array([r.history for r in round_], float),
        "seen_logp_RJ": np.array([r.seen for r in round_], float),
        "found_R": np.array([r.found for r in round_], float),
        "recall_R": np.array([r.recall for r in round_], float),
        "state_R": np.array([r.state for r in round_], np.int64),
        "used_UC": np.array(uses, np.int64).reshape(-1, 2),
        "merged_MC": np.array(merged, np.int64).reshape(-1, 2),
        **grids,
    }
    if any(array.size for name, array in arrays.items() if name.endswith("J")):  # else: of 0 objectives
        arrays = {name: x for name, x in arrays.items() if not (name.endswith("J") and x.size == 0)}
    for array in arrays.values():
        array.setflags(write=False)
    return Packed(Trajectories(**arrays), where)


def episodes(seed: int) -> tuple[list[Rollout], list[tuple[int, int]]]:
    """Random rollouts with all that can happen, and which entries of their memories were merged.

    Groups of one, ties, masked rollouts full of NaN, rounds without tokens, without a memory or without a
    score, several segments a round, observation tokens between generated ones, entries used and merged.
    """
    rng = np.random.default_rng(seed)
    objectives, fresh, merged = int(rng.integers(1, 4)), iter(range(10_000)), []
    rollouts = []
    for question in rng.permutation(int(rng.integers(1, 5))) * 7 + 3:
        for _ in range(int(rng.integers(1, 6))):
            masked = bool(rng.random() < 0.15)
            rollout = Rollout(
                question=int(question),
                outcome=NAN if masked else float(rng.choice([0, 0.25, 1])),
                rounds=[],
                shaping=NAN if masked else float(rng.choice([0, -0.05, 0.03])),
                masked=masked,
                prior=_logps(rng, objectives),
            )
            owned: list[int] = []
            for t in range(int(rng.integers(1, 5))):
                segments = [_tokens(rng, owned, fresh) for _ in range(int(rng.integers(1, 3)))]
                scored = t > 0 and rng.random() < 0.9
                rollout.rounds.append(
                    Round(
                        segments=segments,
                        reward=float(rng.choice([0, 0, -0.05, 1])),
                        memory=_logps(rng, objectives) if scored else [NAN] * objectives,
                        history=_logps(rng, objectives) if t > 0 else [NAN] * objectives,
                        seen=_logps(rng, objectives),
                        found=int(rng.integers(0, 3)),
                        recall=float(rng.integers(0, 5) / 4),
                        state=int(rng.integers(0, 3)),
                        uses=[int(e) for e in owned if rng.random() < 0.4],
                    )
                )
                if (
                    len(owned) > 1 and rng.random() < 0.5
                ):  # a merge is an entry of its own, written by a token
                    entry, sources = next(fresh), rng.choice(owned, 2, replace=False)
                    merged += [(entry, int(source)) for source in sources]
                    segments[0].append(Token(MEM, value=float(rng.normal()), entry=entry))
                    owned.append(entry)
            rollouts.append(rollout)
    return rollouts, merged


def _logps(rng: np.random.Generator, objectives: int) -> list[float]:
    return [float(x) for x in rng.choice([-3.0, -2.0, -1.0, -0.5, -0.1], objectives)]


def _tokens(rng: np.random.Generator, owned: list[int], fresh: Any) -> list[Token]:
    tokens = []
    for role in rng.integers(0, 5, int(rng.integers(0, 6))):
        token = Token(int(role))
        if role:
            token.logp, token.ref, token.value = (float(x) for x in rng.normal(size=3))
        if role == MEM and rng.random() < 0.6:
            token.entry = next(fresh)
            owned.append(token.entry)
        tokens.append(token)
    return tokens
