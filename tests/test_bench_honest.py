"""Intervals that are not too narrow, and pairs of the same questions, in reports."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from episodes import multi, right, wrong
from mempo_benchmarks.conclusion import conclusions
from mempo_benchmarks.results import Arm
from mempo_benchmarks.stats import Interval, bounded, mean_interval
from mempo_benchmarks.summary import compare
from runs import write_run


def test_the_bound_is_clopper_and_pearsons() -> None:
    """0.025 ** (1 / 6) = 0.5407, the exact lower bound at 6 of 6 (Clopper and Pearson 1934, 95 %)."""
    all_one = bounded(Interval(1.0, 1.0, 1.0), 6, -1, 1)
    assert all_one == Interval(1.0, pytest.approx(2 * 0.5407 - 1, abs=1e-4), pytest.approx(1.0))
    none = bounded(Interval(0.0, 0.0, 0.0), 6, -1, 1)
    assert none == Interval(0.0, pytest.approx(-0.4593, abs=1e-4), pytest.approx(0.4593, abs=1e-4))


def test_an_interval_with_a_spread_stays_as_it_is() -> None:
    for interval in (Interval(0.5, 0.1, 0.9), Interval(0.5, None, None)):
        assert bounded(interval, 3, 0, 1) is interval


def test_equal_pairs_cover_the_truth_as_often_as_they_say() -> None:
    """A point interval held the truth in a third of 2,000 draws of 8 pairs, one in 20 of which is lost."""
    rng = np.random.default_rng(3)
    truth = 0.95 - 0.05
    draws = rng.choice([1.0, -1.0], size=(2_000, 8), p=[0.95, 0.05])
    intervals = [bounded(mean_interval(draw, resamples=200), 8, -1, 1) for draw in draws]
    assert np.mean([i.low <= truth <= i.high for i in intervals]) >= 0.93  # type: ignore[operator]


@pytest.mark.parametrize(("episodes", "sure"), [(2, False), (5, False), (6, True), (20, True)])
def test_few_equal_pairs_are_not_beyond_chance(tmp_path: Path, episodes: int, sure: bool) -> None:
    """As the sign test has it: 2 ** -5 * 2 > 0.05, but not 2 ** -6 * 2. Two episodes were enough."""
    played = {"random": [wrong()], "no_memory": [wrong()], "mempo": [right()]}
    arms = tuple(Arm(name, f"{name}-1", {}, "e0", "m", "m-1") for name in played)
    write_run(tmp_path / "run", {name: one * episodes for name, one in played.items()}, arms=arms)
    comparison = compare([tmp_path / "run"])
    (gain,) = (pair.metrics["em"] for pair in comparison.gains if pair.a == "mempo")
    assert gain.value == 1 and (gain.low > 0) is sure  # type: ignore[operator]
    assert f"of 2 agents {int(sure)} gained" in " ".join(conclusions(comparison))


def test_sums_over_the_questions_have_an_interval_where_all_are_equal(tmp_path: Path) -> None:
    write_run(tmp_path / "run", {"random": [multi()] * 5})
    (arm,) = compare([tmp_path / "run"]).arms
    assert arm.several is not None
    em = arm.several.em
    assert 0 <= em.low <= em.value <= em.high <= 2 and em.high - em.low > 0.5  # type: ignore[operator]


def test_questions_of_two_data_sets_are_no_pairs_whatever_their_ids(tmp_path: Path) -> None:
    """Sets that number their questions have the same ids for different ones: they were subtracted."""
    for data in ("d0", "d1"):
        write_run(tmp_path / data, {"random": [wrong()] * 8, f"mempo{data}": [right()] * 8}, data=data)
    comparison = compare([tmp_path / "d0", tmp_path / "d1"], "random", allow_different=True)
    pairs = [(pair.a, pair.b) for pair in comparison.pairs]
    assert pairs == [("random (d0)", "mempod0"), ("random (d1)", "mempod1")]
    assert [line[:20] for line in conclusions(comparison)] == [
        "d0: Best EM: mempod0",
        "d0: Fewest tokens fo",
        "d1: Best EM: mempod1",
        "d1: Fewest tokens fo",
    ]


def test_a_run_that_is_named_in_two_ways_is_one(tmp_path: Path) -> None:
    write_run(tmp_path / "run", {"random": [wrong()] * 3})
    (tmp_path / "link").symlink_to(tmp_path / "run")
    runs = [tmp_path / "run", tmp_path / "run" / ".." / "run", tmp_path / "link"]
    comparison = compare(runs)
    assert [arm.label for arm in comparison.arms] == ["random"]
    assert comparison.runs[0][0] == str(tmp_path / "run")
