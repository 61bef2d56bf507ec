"""One policy measured: the truth about its memory operations, and what the estimators say of them."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import msgspec
import numpy as np

from mempo_benchmarks.credit import measures
from mempo_benchmarks.credit.batch import Batch, play_batch, sample_segments, states_of
from mempo_benchmarks.credit.contrast import Contrast, contrast, gold_facts
from mempo_benchmarks.credit.estimators import (
    Advantages,
    advantages,
    operations,
    replicas,
    rows,
    shuffles,
    with_critic,
)
from mempo_benchmarks.credit.measures import Sample
from mempo_benchmarks.credit.results import LEAST, Plan, Row, Stage
from mempo_benchmarks.credit.truth import measure, reliability
from mempo_benchmarks.stats import Interval
from mempo_env.progress import progress
from mempo_trainers.credit.data import Floats, Ints
from mempo_trainers.policies.pointer import ArrayPolicy
from mempo_trainers.toy import Toy

CONTROL = "placebo"
"""The row that is drawn several times."""

STATES = 12
"""Memory operations that are measured of each question."""

REPLICAS, COPIES = 2, 8
"""Operations of each question whose group is drawn anew, and how often."""

CONTRAST = 16
"""Pairs of forks for each gold fact of the planned contrast."""

CRITIC = 64
"""Questions of the batch that the critic is fitted to."""


def measure_stage(plan: Plan, task: Toy, policy: ArrayPolicy, name: str, mark: str, trained: str) -> Stage:
    """Measure one policy, under `em_mean` whatever it was trained by."""
    start, seed = time.monotonic(), plan.seed
    task = msgspec.structs.replace(task, reward="em_mean")
    batch = play_batch(task, policy, plan.questions, plan.rollouts, seed)
    segments_S = sample_segments(batch, STATES, seed)
    states = states_of(batch, segments_S)
    critic = with_critic(policy, play_batch(task, policy, CRITIC, plan.rollouts, seed + 1), seed)
    said = advantages(critic, batch.rollouts)
    shuffled = shuffles(policy, batch.rollouts)
    gold = sum(int(gold_facts(group).sum()) for group in states)
    total = plan.forks * len(segments_S) + CONTRAST * gold
    with progress(f"lab, {name}", total, unit="pairs") as advance:
        truth = measure(policy, states, plan.forks, seed, advance)
        facts = contrast(policy, states, CONTRAST, seed, advance)
    data = batch.rollouts.data
    sample = Sample(
        question_S=data.question_N[data.rollout_B[segments_S]],
        round_S=data.number_R[data.round_B[segments_S]],
        truth_S=truth.advantage_S,
        se_S=truth.se_S,
        values={
            **operations(batch.rollouts, said, segments_S),
            CONTROL: np.stack(list(operations(batch.rollouts, shuffled, segments_S).values()), axis=1),
        },
    )
    rounds = np.unique(sample.round_S).tolist()
    sure = tuple(reliability(truth, agree) for agree in measures.agreement(sample).values())
    effect, golds = _golds(sample, facts, said, shuffled, segments_S)
    chance = _noise(plan, task, policy, critic, batch, sample, segments_S)
    return Stage(
        name=name,
        mark=mark,
        trained=trained,
        em=batch.rollouts.extra["em"],
        success=float(batch.rollouts.success_N.mean()),
        operations=len(segments_S),
        pairs=int((truth.forks_S + truth.pilot).sum()) + CONTRAST * gold,
        fork_range=(int(truth.forks_S.min()), int(truth.forks_S.max())),
        signal=sample.signal,
        se=math.sqrt(float((truth.se_S**2).mean())),
        saved=truth.saved,
        reliability=(sure[0], sure[1]),
        known=int(measures.known_sign(sample).sum()),
        rounds=rounds,
        gold_facts=gold,
        gold_kept=float(facts.kept_C.mean()) if gold else 0.0,
        gold=_some(effect),
        rows=_rows(sample, sure, rounds, chance, golds),
        question=sample.question_S.tolist(),
        round=sample.round_S.tolist(),
        truth=sample.truth_S.tolist(),
        error=sample.se_S.tolist(),
        seconds=time.monotonic() - start,
    )


def _golds(
    sample: Sample, facts: Contrast, said: Advantages, shuffled: Advantages, segments_S: Ints
) -> tuple[Interval, list[tuple[float, float, Interval]]]:
    """The true effect of keeping gold facts, and what each row says where one was kept and dropped."""
    place, slot = segments_S[facts.place_C], facts.slot_C
    drawn = [
        found for name in sample.values for found in (shuffled.values() if name == CONTROL else [said[name]])
    ]
    tokens_CX = np.stack([a_BK[place, slot].astype(np.float64) for a_BK in drawn], axis=1)
    tokens_CM = sample.by_row(measures.scales(sample) * tokens_CX)
    tokens: dict[str, Floats] = dict(zip(sample.values, tokens_CM.T, strict=True))
    return measures.effects(sample.question_S[facts.place_C], facts.kept_C, facts.effect_C, tokens)


def _rows(
    sample: Sample,
    sure: Sequence[float],
    rounds: Sequence[int],
    chance: Sequence[Interval | None],
    golds: Sequence[tuple[float, float, Interval]],
) -> list[Row]:
    """A row for each estimator; correlations only where the truth is reliable enough."""
    rank, gain = measures.rank_correlations(sample)
    scaled = sample.signal > 0  # else there is nothing to bring the rows to
    columns = zip(
        rows().items(),
        rank,
        gain,
        measures.rank_correlations_within(sample),
        measures.sign_errors(sample),
        chance,
        measures.bias_by_round(sample, rounds),
        golds,
        measures.rank_spreads(sample),
        strict=True,
    )
    return [
        Row(
            name=name,
            about=row.about,
            rank=_some(r) if sure[0] >= LEAST else None,
            gain=_some(g) if sure[0] >= LEAST and name != measures.REFERENCE else None,
            within=_some(w) if sure[1] >= LEAST else None,
            spread=spread if sure[0] >= LEAST else None,
            corrected=r.value / math.sqrt(sure[0]) if sure[0] >= LEAST else None,
            wrong=_some(wrong),
            noise=None if noise is None else _some(noise),
            bias=[_some(each) if scaled else None for each in bias],
            kept=_finite(kept) if scaled else None,
            dropped=_finite(dropped) if scaled else None,
            gold=_some(difference) if scaled else None,
            values=sample.values[name].reshape(len(sample.truth_S), -1)[:, 0].tolist(),
        )
        for (name, row), r, g, w, wrong, noise, bias, (kept, dropped, difference), spread in columns
    ]


def _noise(
    plan: Plan,
    task: Toy,
    policy: ArrayPolicy,
    critic: ArrayPolicy,
    batch: Batch,
    sample: Sample,
    segments_S: Ints,
) -> list[Interval | None]:
    """The noise of each row; None where a noisy retriever forbids to play an episode again."""
    if task.retriever_noise:
        return [None] * len(sample.values)
    chance = np.random.default_rng([plan.seed, 7])
    drawn = [
        chance.permutation(np.flatnonzero(sample.question_S == question))[:REPLICAS]
        for question in np.unique(sample.question_S)
    ]
    some = np.concatenate(drawn)
    found = replicas(policy, critic, batch, segments_S[some], COPIES, plan.seed)
    return list(measures.noise(sample.question_S[some], found))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _some(interval: Interval) -> Interval | None:
    return interval if math.isfinite(interval.value) else None
