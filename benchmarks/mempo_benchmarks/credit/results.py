"""What a lab measures and what comes of it, as `lab.json` holds it."""

from __future__ import annotations

from msgspec import Struct

from mempo_benchmarks.stats import Interval
from mempo_env.errors import ConfigError

FORMAT = 3
"""1 had the pilot in the means, 2 a single shuffle of the placebo."""

JSON, PAGE, PLOT = "lab.json", "lab.html", "lab.png"
"""What lies in the folder of a lab that is done."""

LEAST = 0.5
"""Reliability of the truth below which nothing is correlated with it."""

FEW = 12
"""Questions below which intervals are too narrow: of those that say 95 %, half hold the value at 2 questions,
four in five at 4, nine in ten at 6 to 10 (questions drawn from a lab of 96)."""

USEFUL = (0.1, 0.8)
"""Mean success between which there is something to measure."""

MOST_SEED = 2**62
"""Seeds up to here, and those that are counted on from them, are whole numbers of 64 bits."""


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
        for name, least in {"questions": 2, "rollouts": 2, "forks": 8}.items():
            if getattr(self, name) < least:
                raise ConfigError(f"{name}: wanted at least {least}, got {getattr(self, name)}")
        check_seed(self.seed)


def check_seed(seed: int) -> None:
    """ConfigError for a seed that is out of range."""
    if not 0 <= seed <= MOST_SEED:
        raise ConfigError(f"seed: wanted 0 to {MOST_SEED}, got {seed}")


class Row(Struct, frozen=True, kw_only=True):
    """An estimator against the truth; what could not be measured is None.

    Attributes:
        name: Of the row.
        about: What it is.
        rank: Rank correlation with the truth over all operations.
        within: The same within each question, averaged.
        gain: By how much `rank` is above that of `grpo`.
        spread: Standard deviation of `rank` over the shuffles of a control that is shuffled several times, of
            which it has the mean; None for the others.
        corrected: `rank` divided by the root of the truth's reliability: what it would be without the truth's
            own error, if that were all that stood between.
        wrong: Share of operations of known sign that get the other one; a coin has 0.5.
        noise: Share of its variance that is chance; see `measures.noise`.
        bias: By round the mean of its scaled value minus the truth.
        kept: Mean scaled advantage of the tokens that kept a gold fact,
        dropped: of those that dropped one,
        gold: and the difference.
        values: Its value of each operation, not scaled; of a control that of the first shuffle.
    """

    name: str
    about: str
    rank: Interval | None
    within: Interval | None
    gain: Interval | None
    spread: float | None = None
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
        mark: A digest of the format, the plan, the run's settings and its checkpoint.
        trained: How the policy was trained.
        em: Mean share of the objectives that the batch answered rightly: the mean of R.
        success: Share of rollouts with all of them right.
        operations: Memory operations measured, S.
        pairs: Pairs of forks, each of two episodes played to their end.
        fork_range: Least and most pairs that an operation got after the pilot.
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
