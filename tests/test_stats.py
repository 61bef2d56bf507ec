"""Intervals: against scipy, against hand-made numbers, and by how often they cover the truth."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mempo_benchmarks.stats import (
    Interval,
    _counts,
    mean_interval,
    mean_intervals,
    paired_differences,
    pareto_front,
    runs_interval,
    runs_intervals,
    wilson,
)
from mempo_env.errors import ResultsError

SAMPLES = {
    "binary": np.array([0, 1, 1, 0, 1, 1, 1, 0, 0, 1] * 6, dtype=float),
    "rare": np.array([0.0] * 57 + [1.0] * 3),
    "skewed": np.random.default_rng(5).exponential(100.0, 80),
    "thirds": np.random.default_rng(6).integers(0, 4, 50) / 3,
}


@pytest.mark.parametrize("successes, n", [(0, 10), (1, 10), (5, 10), (10, 10), (263, 400), (0, 1), (1, 1)])
@pytest.mark.parametrize("level", [0.9, 0.95])
def test_wilson_is_scipys(successes: int, n: int, level: float) -> None:
    scipy_stats = pytest.importorskip("scipy.stats", reason="scipy, of mempo[dev], is not installed")
    reference = scipy_stats.binomtest(successes, n).proportion_ci(level, method="wilson")
    assert wilson(successes, n, level) == Interval(
        successes / n, pytest.approx(reference.low, abs=1e-12), pytest.approx(reference.high, abs=1e-12)
    )


def test_wilson_by_hand() -> None:
    # 8 of 10 at z = 1.959964: centre 0.8 + 0.192073 = 0.992073, half sqrt(3.841459 (0.016 + 0.0096036)) =
    # 0.313618, divided by 1.384146.
    assert wilson(8, 10) == Interval(
        0.8, pytest.approx(0.490162, abs=1e-5), pytest.approx(0.943318, abs=1e-5)
    )


@pytest.mark.parametrize("successes, n", [(-1, 5), (6, 5), (0, 0)])
def test_wilson_refuses_what_is_no_share(successes: int, n: int) -> None:
    with pytest.raises(ValueError, match="wanted successes"):
        wilson(successes, n)


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("level", [0.8, 0.95])
def test_bca_is_scipys_up_to_chance(name: str, level: float) -> None:
    scipy_stats = pytest.importorskip("scipy.stats", reason="scipy, of mempo[dev], is not installed")
    values = SAMPLES[name]
    ours = mean_interval(values, level, resamples=40_000, seed=1)
    reference = scipy_stats.bootstrap(
        (values,),
        np.mean,
        confidence_level=level,
        n_resamples=40_000,
        method="BCa",
        vectorized=True,
        rng=np.random.default_rng(2),
    )
    error = float(reference.standard_error)
    assert ours.value == pytest.approx(values.mean())
    # Bootstrap means of a discrete sample lie on a grid: a bound may fall on the next point of it.
    grid = np.diff(np.unique(values)).min() / len(values) if name != "skewed" else 0.0
    assert ours.low == pytest.approx(reference.confidence_interval.low, abs=0.05 * error + grid)
    assert ours.high == pytest.approx(reference.confidence_interval.high, abs=0.05 * error + grid)


def test_a_skewed_sample_has_a_skewed_interval() -> None:
    interval = mean_interval(SAMPLES["skewed"])
    assert interval.low is not None and interval.high is not None
    assert interval.high - interval.value > 1.1 * (interval.value - interval.low)


@pytest.mark.parametrize(
    "draw, truth",
    [
        (lambda rng, n: rng.exponential(1.0, n), 1.0),
        (lambda rng, n: rng.binomial(4, 0.3, n) / 4, 0.3),
        (lambda rng, n: rng.normal(-2.0, 3.0, n), -2.0),
    ],
    ids=["exponential", "four objectives", "normal"],
)
def test_the_interval_covers_the_truth_as_often_as_it_says(draw, truth) -> None:  # type: ignore[no-untyped-def]
    # 500 experiments of 60 questions: 95 % +- 3 standard errors of 1 % is [0.92, 0.98]; the bootstrap of a
    # mean of 60 is known to fall short by one or two per cent.
    rng = np.random.default_rng(11)
    samples_NM = np.stack([draw(rng, 60) for _ in range(500)], axis=1)
    covered = [
        interval.low <= truth <= interval.high  # type: ignore[operator]
        for interval in mean_intervals(samples_NM, resamples=2_000)
    ]
    assert 0.90 <= np.mean(covered) <= 0.98


def test_wilson_covers_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(12)
    for share in (0.02, 0.3, 0.95):
        intervals = [wilson(int(k), 60) for k in rng.binomial(60, share, 2_000)]
        covered = np.mean([i.low <= share <= i.high for i in intervals])  # type: ignore[operator]
        assert 0.92 <= covered <= 0.99


def test_students_interval_by_hand() -> None:
    # 12.7062 and 4.3027, the 0.975 quantiles at 1 and 2 degrees of freedom; s is 0.02 sqrt(2), 0.1.
    assert runs_interval([0.40, 0.44]) == Interval(
        pytest.approx(0.42), pytest.approx(0.42 - 12.7062 * 0.02), pytest.approx(0.42 + 12.7062 * 0.02)
    )
    half = 4.3027 * 0.1 / np.sqrt(3)
    assert runs_interval([0.4, 0.5, 0.6]) == Interval(
        pytest.approx(0.5), pytest.approx(0.5 - half, abs=1e-4), pytest.approx(0.5 + half, abs=1e-4)
    )
    assert runs_interval([0.40, 0.44], 0.3, 0.5) == Interval(pytest.approx(0.42), 0.3, 0.5)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6, 11, 12, 31, 200])
def test_students_interval_is_scipys(n: int) -> None:
    scipy_stats = pytest.importorskip("scipy.stats", reason="scipy, of mempo[dev], is not installed")
    x_N = np.random.default_rng(n).normal(3.0, 2.0, n)
    found = runs_interval(x_N)
    reference = scipy_stats.ttest_1samp(x_N, 0.0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((reference.low, reference.high), rel=1e-9)


@pytest.mark.parametrize("n", [2, 3, 5])
def test_intervals_of_few_runs_cover_the_mean_as_often_as_they_say(n: int) -> None:
    """The bootstrap's did in 51, 72 and 84 %. Of 2,000 draws, 95 % and four standard errors of 0.5 %."""
    draws = np.random.default_rng(9).normal(2.0, 1.0, (n, 2_000))
    covered = [each.low <= 2.0 <= each.high for each in runs_intervals(draws)]  # type: ignore[operator]
    assert 0.93 <= np.mean(covered) <= 0.97


@pytest.mark.parametrize("values", [[0.7], [0.1] * 7, [0.1 + 0.2, 0.3], [0.0, 0.0]])
def test_runs_without_a_spread_have_no_interval(values: list[float]) -> None:
    assert runs_interval(values, 0, 1) == Interval(pytest.approx(values[0]), None, None)


@pytest.mark.parametrize("values", [[], [1.0, float("nan")]])
def test_no_mean_of_no_runs(values: list[float]) -> None:
    with pytest.raises(ValueError, match="finite values"):
        runs_interval(values)


def test_one_observation_has_no_interval() -> None:
    assert mean_interval([0.25]) == Interval(0.25, None, None)


def test_equal_observations_have_no_spread() -> None:
    assert mean_interval([0.1] * 7) == Interval(pytest.approx(0.1), pytest.approx(0.1), pytest.approx(0.1))


@pytest.mark.parametrize("values", [[], [1.0, float("nan")], [float("inf")]])
def test_no_mean_of_nothing(values: list[float]) -> None:
    with pytest.raises(ValueError, match="finite values"):
        mean_interval(values)


def test_the_seed_decides_and_columns_do_not_disturb_each_other() -> None:
    x = SAMPLES["skewed"]
    together = mean_intervals(np.stack([x, x[::-1] * 2, x + 1], axis=1), seed=3)
    assert together[0] == mean_interval(x, seed=3)
    assert mean_interval(x, seed=3) != mean_interval(x, seed=4)
    assert together[2].low == pytest.approx(together[0].low + 1)  # type: ignore[operator]


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = mean_interval(SAMPLES["skewed"], resamples=3_000)
    _counts.cache_clear()
    monkeypatch.setattr("mempo_benchmarks.stats._BLOCK", 1_000)
    blocks = mean_interval(SAMPLES["skewed"], resamples=3_000)
    _counts.cache_clear()
    assert (blocks.low, blocks.high) == (pytest.approx(whole.low), pytest.approx(whole.high))


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=30),
    st.floats(-1e3, 1e3),
)
@settings(max_examples=60, deadline=None)
def test_bounds_are_ordered_within_the_data_and_move_with_it(values: list[float], shift: float) -> None:
    interval = mean_interval(values, resamples=300)
    assert interval.low is not None and interval.high is not None
    assert min(values) <= interval.low <= interval.high <= max(values)
    moved = mean_interval([v + shift for v in values], resamples=300)
    slack = 1e-9 * max(1.0, abs(shift), *(abs(v) for v in values))
    assert moved.value == pytest.approx(interval.value + shift, abs=slack)


def test_a_paired_difference_is_that_of_the_pairs() -> None:
    rng = np.random.default_rng(8)
    hard = rng.normal(0, 10, 100)
    a = {f"q{i}": [float(hard[i] + 1 + rng.normal(0, 0.1)), 1.0] for i in range(100)}
    b = {f"q{i}": [float(hard[i]), 0.5] for i in reversed(range(100))}
    noisy, constant = paired_differences(a, b)
    assert noisy.value == pytest.approx(1, abs=0.05)
    # Unpaired, the spread of the questions (10) would give a half width of about 2.8.
    assert noisy.high - noisy.low < 0.1  # type: ignore[operator]
    assert constant == Interval(0.5, 0.5, 0.5)
    assert paired_differences(b, a)[0].value == pytest.approx(-noisy.value)


def test_a_paired_difference_refuses_what_has_no_partner() -> None:
    with pytest.raises(ResultsError, match=r"got 2 and 1; 1 have no partner, 'q2' among them"):
        paired_differences({"q1": [1.0], "q2": [0.0]}, {"q1": [1.0]})
    with pytest.raises(ResultsError, match="same questions"):
        paired_differences({}, {})


def test_the_front_holds_what_nothing_beats() -> None:
    #         dominated   cheap      good        equal twice            dearer and no better
    points = [(5.0, 0.2), (1.0, 0.1), (9.0, 0.9), (4.0, 0.5), (4.0, 0.5), (9.5, 0.9)]
    assert pareto_front(points) == [1, 3, 4, 2]
    assert pareto_front([]) == []


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=12))
def test_the_front_is_its_definition(points: list[tuple[int, int]]) -> None:
    def beaten(p: tuple[int, int]) -> bool:
        return any(q[0] <= p[0] and q[1] >= p[1] and q != p for q in points)

    assert sorted(pareto_front(points)) == [i for i, p in enumerate(points) if not beaten(p)]
