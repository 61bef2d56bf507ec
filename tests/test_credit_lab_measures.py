"""Estimators against a planted truth: ranks, signs, bias, chance, the gold fact; ties that must be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mempo_benchmarks.credit import estimators
from mempo_benchmarks.credit.batch import play_batch, sample_segments
from mempo_benchmarks.credit.estimators import (
    SHUFFLES,
    advantages,
    operations,
    replicas,
    rows,
    shuffles,
    with_critic,
)
from mempo_benchmarks.credit.measures import (
    Sample,
    bias_by_round,
    effects,
    noise,
    rank_correlations,
    rank_correlations_within,
    rank_spreads,
    ranks,
    scales,
    sign_errors,
    spearman,
    spearman_within,
)
from mempo_benchmarks.stats import Interval, cluster_intervals, mean_interval
from mempo_trainers.credit.data import MEM
from mempo_trainers.toy import Toy
from train_help import wild

QUESTIONS, EACH = 40, 10
QUESTION = np.repeat(np.arange(QUESTIONS), EACH)
CHANCE = np.random.default_rng(0)
TRUTH = CHANCE.standard_normal(len(QUESTION))
ROUND = np.tile(np.arange(2, 2 + EACH // 2), 2 * QUESTIONS)


def sample(se: float = 0.0, **values: np.ndarray) -> Sample:
    """A planted truth, without rows but those given and `grpo`, which is pure noise."""
    noise_S = np.random.default_rng(9).standard_normal(len(TRUTH))
    return Sample(QUESTION, ROUND, TRUTH, np.full(len(TRUTH), se), {"grpo": noise_S, **values})


def covers(interval: Interval, value: float) -> bool:
    assert interval.low is not None and interval.high is not None
    return interval.low <= value <= interval.high


# --- Ranks --------------------------------------------------------------------------------------------------


@settings(deadline=None)  # scipy is slow to load
@given(st.lists(st.tuples(st.integers(-4, 4), st.integers(-4, 4)), min_size=2, max_size=40))
def test_ranks_and_correlations_are_scipys(pairs: list[tuple[int, int]]) -> None:
    stats = pytest.importorskip("scipy.stats", reason="scipy, of mempo[dev], is not installed")
    x, y = (np.array(values, float) for values in zip(*pairs, strict=True))
    assert ranks(x).tolist() == stats.rankdata(x).tolist()
    if np.ptp(x) and np.ptp(y):
        assert spearman(x, y) == pytest.approx(float(stats.spearmanr(x, y).statistic), abs=1e-12)
    else:
        assert spearman(x, y) == 0.0  # a side that does not vary tells nothing


def test_the_truth_correlates_with_itself_and_not_when_shuffled() -> None:
    shuffled = np.random.default_rng(1).permutation(TRUTH)
    found, gain = rank_correlations(sample(right=TRUTH, cubed=TRUTH**3, turned=-TRUTH, shuffled=shuffled))
    grpo, right, cubed, turned, shuffled_ = found
    assert right == cubed == Interval(1.0, 1.0, 1.0)
    assert turned.value == -1.0
    assert abs(shuffled_.value) < 0.12 and covers(shuffled_, 0.0) and covers(grpo, 0.0)
    assert gain[0] == Interval(0.0, 0.0, 0.0)
    assert gain[1].value == pytest.approx(1 - grpo.value) and (gain[1].low or 0) > 0.7


def test_within_questions_what_differs_between_questions_does_not_count() -> None:
    between = np.random.default_rng(2).standard_normal(QUESTIONS)[QUESTION] * 100
    planted = sample(between=TRUTH + between)
    within = rank_correlations_within(planted)[1]
    assert within.value == 1.0
    assert rank_correlations(planted)[0][1].value < 0.3
    assert spearman_within(QUESTION, TRUTH, TRUTH + between) == 1.0


def test_intervals_come_of_questions_not_of_operations() -> None:
    """Copies of one operation in a question are no further evidence."""
    few = np.random.default_rng(3).standard_normal(QUESTIONS)
    alone = cluster_intervals(np.arange(QUESTIONS), lambda r: few[r].mean(keepdims=True))[0]
    copied = cluster_intervals(QUESTION, lambda r: few[QUESTION][r].mean(keepdims=True))[0]
    assert alone.low is not None and copied.low is not None
    assert (
        copied == pytest.approx(alone)
        if isinstance(alone, float)
        else copied.value == pytest.approx(alone.value)
    )
    assert copied.low == pytest.approx(alone.low) and copied.high == pytest.approx(alone.high)


def test_cluster_intervals_of_a_mean_are_those_of_means() -> None:
    values = np.random.default_rng(4).gamma(1.0, size=60)
    cluster = cluster_intervals(np.arange(60), lambda r: values[r].mean(keepdims=True), resamples=4000)[0]
    mean = mean_interval(values, resamples=20_000)
    assert cluster.value == pytest.approx(mean.value)
    assert cluster.low == pytest.approx(mean.low, abs=0.02)
    assert cluster.high == pytest.approx(mean.high, abs=0.02)


def test_cluster_intervals_without_spread_or_without_rows() -> None:
    one, never = cluster_intervals([0, 0, 1], lambda r: np.array([2.0, np.nan]))
    assert one == Interval(2.0, 2.0, 2.0)
    assert np.isnan(never.value) and never.low is None
    assert cluster_intervals([5, 5], lambda r: np.array([3.0])) == [Interval(3.0, None, None)]


# --- Signs, bias, chance ------------------------------------------------------------------------------------


def test_signs() -> None:
    half = np.where(np.arange(len(TRUTH)) % 2, TRUTH, -TRUTH)
    planted = sample(right=TRUTH, turned=-TRUTH, silent=np.zeros(len(TRUTH)), half=half)
    _, right, turned, silent, half_ = sign_errors(planted)
    assert (right.value, turned.value, silent.value) == (0.0, 1.0, 0.5)
    assert half_.value == pytest.approx(0.5, abs=0.01)


def test_only_operations_of_known_sign_have_a_sign() -> None:
    known = np.abs(TRUTH) > 2 * 0.5
    wrong_where_unknown = np.where(known, TRUTH, -TRUTH)
    assert sign_errors(sample(0.5, row=wrong_where_unknown))[1].value == 0.0
    assert np.isnan(sign_errors(sample(1e9, row=TRUTH))[1].value)


def test_bias_is_found_in_the_round_where_it_is() -> None:
    rounds = sorted(set(ROUND.tolist()))
    scaled = bias_by_round(sample(row=7.0 * TRUTH), rounds)[1]
    assert all(abs(one.value) < 1e-9 for one in scaled)  # a factor is no bias
    off = TRUTH + 0.3 * (ROUND == 4)
    found = bias_by_round(sample(row=off), rounds)[1]
    shrink = TRUTH.std() / off.std()
    for number, one in zip(rounds, found, strict=True):
        rows_ = number == ROUND
        assert one.value == pytest.approx(float((shrink * off - TRUTH)[rows_].mean()))
    assert found[rounds.index(4)].value == pytest.approx(0.3, abs=0.02)
    assert (found[rounds.index(4)].low or 0) > 0.2
    assert np.isnan(bias_by_round(sample(row=off), [99])[1][0].value)


def test_the_scale_leaves_out_what_measuring_adds() -> None:
    measured = Sample(QUESTION, ROUND, TRUTH, np.full(len(TRUTH), 0.6), {"grpo": TRUTH})
    assert scales(measured)[0] == pytest.approx(np.sqrt(TRUTH.var() - 0.36) / TRUTH.std())
    assert scales(sample(flat=np.ones(len(TRUTH))))[1] == 0.0


def test_a_row_of_several_draws_is_the_mean_of_what_each_has_and_no_other_row_changes() -> None:
    """Not what the mean of the draws has: that is less noisy than any of them."""
    chance, rounds = np.random.default_rng(5), sorted(set(ROUND.tolist()))
    draws = TRUTH[:, None] + 2 * chance.standard_normal((len(TRUTH), 5))
    before, after = sample(0.1, last=TRUTH), sample(0.1, draws=draws, last=TRUTH)
    alone = [sample(0.1, one=draw) for draw in draws.T]

    def rows_of(measured: Sample) -> list[list[Interval]]:
        rank, gain = rank_correlations(measured)
        kinds = [rank, gain, rank_correlations_within(measured), sign_errors(measured)]
        bias = bias_by_round(measured, rounds)
        return [[*kind, *some] for *kind, some in zip(*kinds, bias, strict=True)]

    (grpo, drawn, last), singles = rows_of(after), [rows_of(each)[1] for each in alone]
    assert [grpo, last] == rows_of(before)
    for i, interval in enumerate(drawn):
        mean = float(np.mean([single[i].value for single in singles]))
        assert interval.value == pytest.approx(mean) and covers(interval, mean)
    ranked = [single[0].value for single in singles]
    assert rank_spreads(after) == [None, pytest.approx(np.std(ranked, ddof=1)), None]
    assert drawn[0].value < spearman(draws.mean(axis=1), TRUTH) - 0.1


def test_noise_is_the_share_that_chance_has() -> None:
    chance = np.random.default_rng(6)
    own, copies = chance.standard_normal((400, 1)), 8
    question = np.repeat(np.arange(40), 10)
    values = {
        "none": np.repeat(own, copies, 1),
        "half": own + chance.standard_normal((400, copies)),
        "most": own + 3 * chance.standard_normal((400, copies)),
        "all": chance.standard_normal((400, copies)),
        "silent": np.zeros((400, copies)),
    }
    none, half, most, everything, silent = noise(question, values)
    assert (none.value, none.high) == pytest.approx((0.0, 0.0), abs=1e-12)
    assert half.value == pytest.approx(0.5, abs=0.06) and covers(half, 0.5)
    assert most.value == pytest.approx(0.9, abs=0.05)
    assert everything.value > 0.93
    assert np.isnan(silent.value)


def test_the_gold_fact() -> None:
    kept = np.arange(len(TRUTH)) % 4 > 0
    effect = 0.2 + 0.01 * TRUTH
    told = np.where(kept, 0.15, -0.05)
    found, [(up, down, difference)] = effects(QUESTION, kept, effect, {"row": told})
    assert found.value == pytest.approx(effect.mean()) and covers(found, 0.2)
    assert (up, down) == pytest.approx((0.15, -0.05)) and difference.value == pytest.approx(0.2)
    _, [(up, down, difference)] = effects(QUESTION, np.ones(len(TRUTH), bool), effect, {"row": told})
    assert np.isnan(down) and np.isnan(difference.value)
    none, _ = effects(QUESTION[:0], kept[:0], effect[:0], {"row": told[:0]})
    assert np.isnan(none.value)


# --- The estimators' own values -----------------------------------------------------------------------------

TASK = Toy(objectives=2, facts=2, worlds=60, reward="em_mean")


def test_shuffles_of_the_placebo_differ_and_the_first_is_the_row() -> None:
    policy = wild(TASK.envs(1), seed=1, size=0.7)
    batch = play_batch(TASK, policy, 4, 4, 0)
    drawn = shuffles(policy, batch.rollouts)
    assert np.array_equal(drawn["0"], advantages(policy, batch.rollouts)["placebo"])
    assert len({a_BK.tobytes() for a_BK in drawn.values()}) == len(drawn) == SHUFFLES


def test_what_is_proportional_within_a_question_ties() -> None:
    """grpo, dr_grpo and rloo rank the operations of a question alike, equal ones too."""
    policy = wild(TASK.envs(1), "tabular", seed=1, size=0.7)
    batch = play_batch(TASK, policy, 12, 8, 0)
    data, segments = batch.rollouts.data, sample_segments(batch, 12, 0)
    values = operations(batch.rollouts, advantages(policy, batch.rollouts), segments)
    question = data.question_N[data.rollout_B[segments]]
    alive = 0
    for each in np.unique(question):
        grpo, dr_grpo, rloo = (ranks(values[n][question == each]) for n in ("grpo", "dr_grpo", "rloo"))
        assert grpo.tolist() == dr_grpo.tolist() == rloo.tolist()
        alive += np.ptp(grpo) > 0
    assert alive >= 3
    truth = np.random.default_rng(0).standard_normal(len(segments))
    planted = Sample(question, np.full(len(segments), 2), truth, 0 * truth, values)
    within = dict(zip(values, rank_correlations_within(planted), strict=True))
    assert within["grpo"] == within["dr_grpo"] == within["rloo"]


def test_an_operation_is_worth_the_mean_of_its_memory_tokens() -> None:
    policy = wild(TASK.envs(1), seed=1, size=0.7)
    batch = play_batch(TASK, policy, 4, 4, 0)
    segments, said = sample_segments(batch, 6, 0), advantages(policy, batch.rollouts)
    found = operations(batch.rollouts, said, segments)
    assert len(rows()) >= 12 and found.keys() == rows().keys()
    for name, values in found.items():
        for value, segment in zip(values, segments, strict=True):
            mine = batch.rollouts.data.roles_BK[segment] == MEM
            assert value == pytest.approx(float(said[name][segment][mine].astype(float).mean()))


def test_the_critic_is_fitted_on_a_copy() -> None:
    policy = wild(TASK.envs(1), seed=1, size=0.7)
    batch = play_batch(TASK, policy, 16, 4, 0)
    returns = batch.rollouts.data.outcome_N[batch.rollouts.data.rollout_B]
    before = {name: weight.clone() for name, weight in policy.heads.state_dict().items()}
    critic = with_critic(policy, batch, 0)

    def error(of: object) -> float:
        values = of.values(batch.rollouts.contexts, batch.rollouts.responses)  # type: ignore[attr-defined]
        return float(((values[:, 0].detach().numpy() - returns) ** 2).mean())

    assert error(critic) < min(error(policy), float(returns.var()) * 1.01)
    for name, weight in policy.heads.state_dict().items():
        assert (weight == before[name]).all()
        if not name.startswith("value"):
            assert (critic.heads.state_dict()[name] == before[name]).all()


def test_replicas_repeat_the_operation_and_nothing_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that tells state and operation by a number is the same in every copy; the outcome is not."""
    policy = wild(TASK.envs(1), "tabular", seed=1, size=0.7)
    batch = play_batch(TASK, policy, 6, 4, 0)
    segments = sample_segments(batch, 3, 0)

    def tell(_: object, played: object) -> dict[str, np.ndarray]:
        contexts, responses, data = played.contexts, played.responses, played.data  # type: ignore[attr-defined]
        keep = responses.tokens_BK[:, policy.layout.keep]
        seen = contexts.observation_BD @ np.arange(1.0, contexts.observation_BD.shape[1] + 1)
        number = data.number_R[data.round_B] * 1e5 + seen + keep @ (2.0 ** np.arange(keep.shape[1])) / 1e4
        wide = np.ones(responses.tokens_BK.shape)
        own = data.outcome_N[data.rollout_B][:, None] * wide
        return {"operation": number[:, None] * wide, "own outcome": own}

    monkeypatch.setattr(estimators, "advantages", tell)
    found = replicas(policy, policy, batch, segments, 5, 0)
    told = operations(batch.rollouts, tell(None, batch.rollouts), segments)
    np.testing.assert_allclose(found["operation"], told["operation"][:, None].repeat(5, 1), rtol=1e-9)
    assert len(np.unique(told["operation"])) > 3
    assert (found["own outcome"].std(1) > 0).any()


def test_replicas_of_one_question_are_groups_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = wild(TASK.envs(1), "tabular", seed=1, size=0.7)
    batch = play_batch(TASK, policy, 2, 4, 0)
    sizes: list[list[int]] = []

    def look(_: object, played: object) -> dict[str, np.ndarray]:
        sizes.append(np.bincount(played.data.question_N).tolist())  # type: ignore[attr-defined]
        return {"x": np.zeros(played.responses.tokens_BK.shape)}  # type: ignore[attr-defined]

    monkeypatch.setattr(estimators, "advantages", look)
    segments = sample_segments(batch, 2, 0)
    replicas(policy, policy, batch, segments, 3, 0)
    assert sizes == [[4] * 3 * len(segments)] and len(segments) > 2
