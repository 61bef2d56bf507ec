"""The sign-flip test: against scipy, McNemar and its definition, and by how often it is wrong."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mempo_benchmarks.chance import BEYOND, FLIPS, p_told, sign_flips

Floats = NDArray[np.float64]


def one(*differences: float) -> float:
    return sign_flips([[d] for d in differences])[0]


def decided(won: int, lost: int, tied: int) -> list[float]:
    return [1.0] * won + [-1.0] * lost + [0.0] * tied


def test_by_hand() -> None:
    # The eight sums of +-1 +-2 +-4 are -7, -5, ..., 7: two are as far out as 7, six as 3, four as 5.
    assert one(1, 2, 4) == 0.25 and one(1, -2, 4) == 0.75 and one(-1, 2, 4) == 0.5
    assert one(0, 0) == 1.0 and one(5) == 1.0
    # Of n pairs with l lost: 2 * sum of C(n, k) for k up to l, over 2 ** n.
    assert one(*decided(3, 1, 0)) == 0.625 and one(*decided(6, 1, 0)) == one(*decided(4, 0, 0)) == 0.125


@pytest.mark.parametrize("won, lost", [(1, 0), (3, 0), (5, 0), (6, 0), (6, 1), (7, 1), (40, 20), (600, 640)])
@pytest.mark.parametrize("tied", [0, 300])
def test_of_won_and_lost_it_is_mcnemars(won: int, lost: int, tied: int) -> None:
    scipy_stats = pytest.importorskip("scipy.stats", reason="scipy, of mempo[dev], is not installed")
    reference = scipy_stats.binomtest(won, won + lost).pvalue
    assert one(*decided(won, lost, tied)) == pytest.approx(reference, rel=1e-9)


@given(st.lists(st.one_of(st.integers(-3, 3), st.floats(-5, 5)), min_size=1, max_size=9))
@settings(max_examples=60, deadline=None)
def test_it_is_the_share_of_all_choices_of_signs(differences: list[float]) -> None:
    sums = [abs(np.dot(signs, differences)) for signs in product((1, -1), repeat=len(differences))]
    tie = 1e-9 * sum(map(abs, differences))
    assert one(*differences) == pytest.approx(np.mean([s >= abs(sum(differences)) - tie for s in sums]))


def test_many_different_differences_are_drawn_near_the_truth_and_the_same_each_time() -> None:
    scipy_stats = pytest.importorskip("scipy.stats", reason="scipy, of mempo[dev], is not installed")
    d_NM = np.random.default_rng(4).normal([0.0, 0.3, 0.6], 1.0, (40, 3))
    found = sign_flips(d_NM)
    assert found == sign_flips(d_NM) != sign_flips(d_NM, seed=1)
    for p, d_N in zip(found, d_NM.T, strict=True):
        reference = scipy_stats.permutation_test(
            (d_N,), np.sum, permutation_type="samples", n_resamples=40_000, rng=np.random.default_rng(5)
        ).pvalue
        # Both are shares of draws: four standard errors of their difference, and one draw.
        error = np.sqrt(reference * (1 - reference) * (1 / FLIPS + 1 / 40_000))
        assert p == pytest.approx(reference, abs=4 * error + 2 / FLIPS)


def test_columns_do_not_disturb_each_other_and_blocks_change_no_law(monkeypatch: pytest.MonkeyPatch) -> None:
    d_NM = np.random.default_rng(6).normal(0.3, 1.0, (50, 2))
    assert sign_flips(d_NM[:, 1:])[0] == sign_flips(d_NM)[1]
    monkeypatch.setattr("mempo_benchmarks.chance._BLOCK", 1_000)
    assert sign_flips(d_NM, seed=7) == pytest.approx(sign_flips(d_NM), abs=0.02)


def null(kind: str, n: int, decided: float, draws: int) -> Floats:
    """Differences (n, draws) that are as likely turned round."""
    rng = np.random.default_rng(1)
    sign = rng.choice([1.0, -1.0], (n, draws))
    size = {"won": np.ones((n, draws)), "quarters": rng.integers(1, 5, (n, draws)) / 4}.get(kind)
    size = rng.exponential(1.0, (n, draws)) if size is None else size
    return sign * size * (rng.random((n, draws)) < decided)


@pytest.mark.parametrize("n, share", [(5, 0.6), (20, 0.2), (20, 0.5), (50, 0.08), (100, 0.04), (100, 0.5)])
@pytest.mark.parametrize("kind", ["won", "quarters", "any"])
def test_chance_is_seldom_said_to_be_beyond_chance(kind: str, n: int, share: float) -> None:
    """Of pairs with nothing between them; where few were decided, an interval said so in up to 12 %.

    Of 600 at most 5 % and three standard errors of 0.9 %.
    """
    wrong = np.mean([p < BEYOND for p in sign_flips(null(kind, n, share, 600))])
    assert wrong <= 0.077


def test_what_is_there_is_found() -> None:
    """A test that never rejects would pass the one before."""
    rng = np.random.default_rng(2)
    d_NM = rng.choice([1.0, -1.0, 0.0], p=[0.35, 0.05, 0.6], size=(60, 300))
    assert np.mean([p < BEYOND for p in sign_flips(d_NM)]) > 0.95


@pytest.mark.parametrize("values", [[], [[1.0], [float("nan")]], [1.0, 2.0]])
def test_no_p_of_nothing(values: list[object]) -> None:
    with pytest.raises(ValueError, match="finite values"):
        sign_flips(values)  # type: ignore[arg-type]


@pytest.mark.parametrize("p, text", [(1.0, "1.00"), (0.25, "0.25"), (0.0703, "0.07"), (0.0312, "0.031")])
def test_p_in_words(p: float, text: str) -> None:
    assert p_told(p) == text
    assert p_told(0.0009) == "<0.001"


@pytest.mark.parametrize(
    ("p", "told"),
    [(1, "1.00"), (0.25, "0.25"), (0.0999, "0.099"), (0.0501, "0.05"), (0.0497, "0.049"), (0.0009, "<0.001")],
)
def test_no_p_below_the_level_reads_like_it(p: float, told: str) -> None:
    assert p_told(p) == told
