"""Advantages of a large batch: our estimators beside verl's GRPO, on the same arrays."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np

from mempo_benchmarks.speed.parts import interleave
from mempo_benchmarks.speed.peers import PeerError, System, order
from mempo_benchmarks.speed.report import Part

PLAYER = "mempo_benchmarks.speed.players.play_credit"
ESTIMATORS = ("grpo", "mempo", "igpo", "gae", "attribution")
QUESTIONS, ROLLOUTS, ROUNDS, TOKENS = 64, 8, 8, 1_024
"""4,096 segments: a segment a round."""

_PASSES = 9


def write_batch(path: Path, rounds: int, tokens: int, seed: int = 0) -> None:
    """Write all that the estimators read, as an npz file: fields of `Trajectories`, a segment a round."""
    rng = np.random.default_rng(seed)
    count = QUESTIONS * ROLLOUTS
    segments = count * rounds
    end_B1 = rng.integers(tokens // 4, tokens + 1, (segments, 1))
    place_K = np.arange(tokens)
    roles_BK = np.select([place_K < end_B1 // 3, place_K < end_B1 // 2, place_K < end_B1], [1, 2, 3], 0)
    np.savez(
        path,
        question_N=np.repeat(np.arange(QUESTIONS), ROLLOUTS),
        outcome_N=rng.integers(0, 2, count).astype(float),
        shaping_N=np.zeros(count),
        masked_N=np.zeros(count, bool),
        rollout_R=np.repeat(np.arange(count), rounds),
        number_R=np.tile(np.arange(1, rounds + 1), count),
        round_B=np.arange(segments),
        roles_BK=roles_BK.astype(np.int8),
        reward_R=rng.normal(size=segments),
        recall_R=rng.uniform(size=segments),
        values_BK=rng.normal(size=(segments, tokens)),
        entry_BK=np.where(place_K == 0, np.arange(segments)[:, None], -1),
        used_UC=np.stack([np.arange(segments), rng.integers(0, segments, segments)], axis=1),
        memory_logp_RJ=rng.uniform(-3, 0, (segments, 4)),
        history_logp_RJ=rng.uniform(-3, 0, (segments, 4)),
        seen_logp_RJ=rng.uniform(-3, 0, (segments, 4)),
    )


def advantages(repetitions: int, systems: Sequence[System]) -> Part:
    """Time each estimator of ours, and each of verl's where it is installed.

    Args:
        repetitions: Of every run, in turn.
        systems: Ours, then verl or nothing.

    Raises:
        PeerError: if the two do not give the same advantages where they must.
    """
    mine, *peers = systems
    mine = msgspec.structs.replace(mine, player=PLAYER)
    with tempfile.TemporaryDirectory() as scratch:
        alone, batch = Path(scratch) / "alone.npz", Path(scratch) / "batch.npz"
        write_batch(alone, 1, 8)
        write_batch(batch, ROUNDS, TOKENS)
        for peer in peers:
            _agree(mine, peer, alone)
        runs = {_name(mine, name): _timed(mine, name, batch) for name in ESTIMATORS}
        for peer in peers:
            runs |= {_name(peer, name): _timed(peer, name, batch) for name in ("grpo", "grpo_vectorized")}
        seconds = interleave(runs, repetitions)
    title = f"Advantages of {QUESTIONS * ROLLOUTS * ROUNDS:,} segments of {TOKENS:,} tokens: a batch"
    return Part(title, seconds, (_name(mine, "grpo"), _name(mine, "mempo")), "10 times verl's `grpo`")


def _name(system: System, estimator: str) -> str:
    return f"{system.name}, `{estimator}`"


def _timed(system: System, estimator: str, batch: Path) -> Callable[[], list[float]]:
    def run() -> list[float]:
        warm = {"file": str(batch), "estimator": estimator}
        told = order(system, "advantages", file=str(batch), estimator=estimator, passes=_PASSES, warm=warm)
        return list(told["seconds"])

    return run


def _agree(mine: System, peer: System, alone: Path) -> None:
    """Refuse to go on unless rollouts of one segment get the same from both."""
    ours, theirs = (order(one, "first_tokens", file=str(alone), estimator="grpo") for one in (mine, peer))
    if not np.allclose(ours, theirs, rtol=1e-5, atol=1e-6):
        raise PeerError(f"{peer.name}: its advantages are not ours, on rollouts of one segment")
