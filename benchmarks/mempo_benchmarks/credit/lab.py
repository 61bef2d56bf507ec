"""The credit lab: a run's policy is stopped at memory operations, and estimators are held against the truth."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct

from mempo_benchmarks.credit import measures
from mempo_benchmarks.credit.batch import Batch, play_batch, sample_segments, states_of
from mempo_benchmarks.credit.contrast import contrast, gold_facts
from mempo_benchmarks.credit.estimators import advantages, operations, replicas, rows, with_critic
from mempo_benchmarks.credit.measures import Sample
from mempo_benchmarks.credit.truth import measure, reliability
from mempo_benchmarks.stats import Interval
from mempo_env.errors import ConfigError, ResultsError
from mempo_env.files import BAD_JSON, atomic_file, digest, file_digest
from mempo_env.progress import progress
from mempo_trainers.config import Config
from mempo_trainers.policies.pointer import ArrayPolicy
from mempo_trainers.run import CHECKPOINT, SETTINGS
from mempo_trainers.toy import Toy, restore, train

FORMAT = 1

STAGES = {"early": 22, "middle": 32, "late": 42}
"""Steps of the runs that the lab trains itself."""

STATES = 12
"""Memory operations that are measured of each question."""

REPLICAS, COPIES = 2, 8
"""Operations of each question whose group is drawn anew, and how often."""

CONTRAST = 16
"""Pairs of forks for each gold fact of the planned contrast."""

CRITIC = 64
"""Questions of the batch that the critic is fitted to."""

LEAST = 0.5
"""Reliability of the truth below which nothing is correlated with it."""

USEFUL = (0.1, 0.8)
"""Mean success between which there is something to measure."""


class Plan(Struct, frozen=True, kw_only=True):
    """How much is measured.

    Attributes:
        questions: Groups of the batch.
        rollouts: Rollouts of each group.
        forks: Pairs of forks for each operation, on average.
        seed: Of everything drawn at random.
    """

    questions: int = 24
    rollouts: int = 8
    forks: int = 192
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in {"questions": 2, "rollouts": 2, "forks": 8, "seed": 0}.items():
            if getattr(self, name) < least:
                raise ConfigError(f"{name}: wanted at least {least}, got {getattr(self, name)}")


class Row(Struct, frozen=True, kw_only=True):
    """An estimator against the truth; what could not be measured is None.

    Attributes:
        name: Of the row.
        about: What it is.
        rank: Rank correlation with the truth over all operations.
        within: The same within each question, averaged.
        gain: By how much `rank` is above that of `grpo`.
        corrected: `rank` divided by the root of the truth's reliability: what it would be without the truth's
            own error, if that were all that stood between.
        wrong: Share of operations of known sign that get the other one; a coin has 0.5.
        noise: Share of its variance that is chance; see `measures.noise`.
        bias: By round the mean of its scaled value minus the truth.
        kept: Mean scaled advantage of the tokens that kept a gold fact,
        dropped: of those that dropped one,
        gold: and the difference.
        values: Its value of each operation, not scaled.
    """

    name: str
    about: str
    rank: Interval | None
    within: Interval | None
    gain: Interval | None
    corrected: float | None
    wrong: Interval | None
    noise: Interval | None
    bias: list[Interval | None]
    kept: float | None
    dropped: float | None
    gold: Interval | None
    values: list[float]


class Stage(Struct, frozen=True, kw_only=True):
    """A policy measured: what was spent, how sure the truth is, and a row for each estimator.

    Attributes:
        name: Early, middle, late, or the folder of the run.
        mark: A digest of the plan, the run's settings and its checkpoint.
        trained: How the policy was trained.
        em: Mean share of the objectives that the batch answered rightly: the mean of R.
        success: Share of rollouts with all of them right.
        operations: Memory operations measured, S.
        pairs: Pairs of forks, each of two episodes played to their end.
        fork_range: Least and most pairs that an operation got.
        signal: Standard deviation of the true advantages, the measurement's error taken off.
        se: Root mean square of their standard errors.
        saved: How many times more forks it would have taken without common random numbers.
        reliability: Of the truth's ranks over all operations, and within questions.
        known: Operations whose sign is known.
        rounds: The rounds that occur among the operations.
        gold_facts: Gold facts in view that could be kept and dropped,
        gold_kept: the share that was kept,
        gold: and the mean effect of keeping one.
        rows: The estimators.
        question: The question of each operation,
        round: its round,
        truth: its advantage,
        error: and that one's standard error.
        seconds: Wall time.
    """

    name: str
    mark: str
    trained: str
    em: float
    success: float
    operations: int
    pairs: int
    fork_range: tuple[int, int]
    signal: float
    se: float
    saved: float
    reliability: tuple[float, float]
    known: int
    rounds: list[int]
    gold_facts: int
    gold_kept: float
    gold: Interval | None
    rows: list[Row]
    question: list[int]
    round: list[int]
    truth: list[float]
    error: list[float]
    seconds: float


class Lab(Struct, frozen=True, kw_only=True):
    """All stages of a lab, as `lab.json` holds them."""

    format: int
    plan: Plan
    stages: list[Stage]


def run_lab(plan: Plan, runs: Sequence[Path], out: Path) -> Lab:
    """Measure some runs, or three that are trained here; goes on where an earlier call was killed.

    A stage that is done lies in `out`/stages; trained runs in `out`/runs.

    Raises:
        ResultsError: if a folder holds no toy run, or `out` holds stages of another plan or another run.
    """
    stages = []
    for name, folder in (named(runs) if runs else _trained(plan, out)).items():
        task, config, policy = restore(folder)
        mark = digest(msgspec.json.encode(plan), *(file_digest(folder / n) for n in (SETTINGS, CHECKPOINT)))
        file = out / "stages" / f"{name}.json"
        stage = _read(file, mark)
        if stage is None:
            stage = measure_stage(plan, task, policy, name, mark, _told(task, config))
            with atomic_file(file) as to:
                to.write(msgspec.json.encode(stage))
        stages.append(stage)
    lab = Lab(format=FORMAT, plan=plan, stages=stages)
    with atomic_file(out / "lab.json") as to:
        to.write(msgspec.json.encode(lab))
    return lab


def measure_stage(plan: Plan, task: Toy, policy: ArrayPolicy, name: str, mark: str, trained: str) -> Stage:
    """Measure one policy."""
    start, seed = time.monotonic(), plan.seed
    batch = play_batch(task, policy, plan.questions, plan.rollouts, seed)
    segments_S = sample_segments(batch, STATES, seed)
    states = states_of(batch, segments_S)
    critic = with_critic(policy, play_batch(task, policy, CRITIC, plan.rollouts, seed + 1), seed)
    said = advantages(critic, batch.rollouts)
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
        values=operations(batch.rollouts, said, segments_S),
    )
    rounds = np.unique(sample.round_S).tolist()
    sure = tuple(reliability(truth, agree) for agree in measures.agreement(sample).values())
    scale_M = dict(zip(sample.values, measures.scales(sample).tolist(), strict=True))
    tokens = {
        row: scale_M[row] * said[row][segments_S[facts.place_C], facts.slot_C].astype(np.float64)
        for row in sample.values
    }
    effect, golds = measures.effects(sample.question_S[facts.place_C], facts.kept_C, facts.effect_C, tokens)
    return Stage(
        name=name,
        mark=mark,
        trained=trained,
        em=batch.rollouts.extra["em"],
        success=float(batch.rollouts.success_N.mean()),
        operations=len(segments_S),
        pairs=int(truth.forks_S.sum()) + CONTRAST * gold,
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
        rows=_rows(
            sample, sure, rounds, _noise(plan, task, policy, critic, batch, sample, segments_S), golds
        ),
        question=sample.question_S.tolist(),
        round=sample.round_S.tolist(),
        truth=sample.truth_S.tolist(),
        error=sample.se_S.tolist(),
        seconds=time.monotonic() - start,
    )


def named(runs: Sequence[Path]) -> dict[str, Path]:
    """Runs by the names of their folders; by their paths where two have one name."""
    names = [run.resolve().name for run in runs]
    if len(set(names)) < len(names):
        names = [str(run).replace("/", "-") for run in runs]
    if len(set(names)) < len(names):
        raise ConfigError(f"--run: wanted different runs, got {', '.join(map(str, runs))}")
    return dict(zip(names, runs, strict=True))


def _rows(
    sample: Sample,
    sure: Sequence[float],
    rounds: Sequence[int],
    chance: Sequence[Interval | None],
    golds: Sequence[tuple[float, float, Interval]],
) -> list[Row]:
    """A row for each estimator; correlations only where the truth is reliable enough."""
    rank, gain = measures.rank_correlations(sample)
    columns = zip(
        rows().items(),
        rank,
        gain,
        measures.rank_correlations_within(sample),
        measures.sign_errors(sample),
        chance,
        measures.bias_by_round(sample, rounds),
        golds,
        strict=True,
    )
    return [
        Row(
            name=name,
            about=row.about,
            rank=_some(r) if sure[0] >= LEAST else None,
            gain=_some(g) if sure[0] >= LEAST and name != measures.REFERENCE else None,
            within=_some(w) if sure[1] >= LEAST else None,
            corrected=r.value / math.sqrt(sure[0]) if sure[0] >= LEAST else None,
            wrong=_some(wrong),
            noise=None if noise is None else _some(noise),
            bias=[_some(each) for each in bias],
            kept=_finite(kept),
            dropped=_finite(dropped),
            gold=_some(difference),
            values=sample.values[name].tolist(),
        )
        for (name, row), r, g, w, wrong, noise, bias, (kept, dropped, difference) in columns
    ]


def _noise(
    plan: Plan,
    task: Toy,
    policy: ArrayPolicy,
    critic: ArrayPolicy,
    batch: Batch,
    sample: Sample,
    segments_S: np.ndarray,
) -> list[Interval | None]:
    """The noise of each row; None where a noisy retriever forbids to play an episode again."""
    if task.noise:
        return [None] * len(sample.values)
    chance = np.random.default_rng([plan.seed, 7])
    drawn = [
        chance.permutation(np.flatnonzero(sample.question_S == question))[:REPLICAS]
        for question in np.unique(sample.question_S)
    ]
    some = np.concatenate(drawn)
    found = replicas(policy, critic, batch, segments_S[some], COPIES, plan.seed)
    return list(measures.noise(sample.question_S[some], found))


def _trained(plan: Plan, out: Path) -> dict[str, Path]:
    """The toy task trained by the outcome alone, stopped at three steps: no estimator is at home there."""
    folders = {}
    for name, steps in STAGES.items():
        folders[name] = out / "runs" / name
        config = Config(credit="grpo", learning_rate=0.01, steps=steps, seed=plan.seed)
        if not (folders[name] / "result.json").exists():
            train(Toy(reward="em_mean"), config, folders[name])
    return folders


def _told(task: Toy, config: Config) -> str:
    return (
        f"{config.steps} steps of {config.algo}, {config.credit} credit, {task.reward}, "
        f"{task.objectives} objectives of {task.hops} hop{'s' * (task.hops > 1)}, seed {config.seed}"
    )


def _read(file: Path, mark: str) -> Stage | None:
    """A stage that is done, None if there is none."""
    if not file.exists():
        return None
    try:
        stage = msgspec.json.decode(file.read_bytes(), type=Stage)
    except BAD_JSON as error:
        raise ResultsError(f"{file}: {error}; was it edited by hand? remove it to measure anew") from None
    if stage.mark != mark:
        raise ResultsError(
            f"{file}: wanted a stage of this run measured with these settings, got one of others; repeat the "
            "command that made it, or choose another --out"
        )
    return stage


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _some(interval: Interval) -> Interval | None:
    return interval if math.isfinite(interval.value) else None
