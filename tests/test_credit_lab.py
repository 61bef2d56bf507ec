"""True advantages by forks: against enumeration, their random numbers, where forks go, reliability."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from credit_exact import keeps, value
from mempo_benchmarks.credit import truth as truth_module
from mempo_benchmarks.credit.batch import Batch, play_batch, sample_segments, states_of
from mempo_benchmarks.credit.contrast import contrast, gold_facts
from mempo_benchmarks.credit.measures import spearman
from mempo_benchmarks.credit.truth import Truth, allot, measure, outcomes, reliability
from mempo_trainers.policies.pointer import ArrayPolicy
from mempo_trainers.toy import Toy
from train_help import wild

TINY = Toy(objectives=1, facts=2, capacity=2, max_rounds=4, worlds=20, reward="em_mean")
TASK = Toy(objectives=2, worlds=60, reward="em_mean")


def nothing(amount: int) -> None:
    """Nobody is told of progress."""


def batch_of(task: Toy, questions: int = 4, group: int = 4, seed: int = 0) -> tuple[ArrayPolicy, Batch]:
    policy = wild(task.envs(1), "tabular", seed=3, size=0.7)
    return policy, play_batch(task, policy, questions, group, seed)


def test_the_truth_is_what_enumeration_gives() -> None:
    policy, batch = batch_of(TINY)
    segments = sample_segments(batch, 3, seed=0)
    states = states_of(batch, segments)
    truth = measure(policy, states, 600, 0, nothing)
    exact = np.zeros(len(segments))
    for group in states:
        for i, place in enumerate(group.place_S):
            envs, seen = group.envs.fork([i]), group.contexts[np.array([i])]
            taken = value(policy, envs, seen, [tuple(group.kept_SV[i].tolist())])
            exact[place] = taken - value(policy, envs, seen)
    assert len(segments) >= 8 and exact.std() > 0.02  # there is something to find
    z = (truth.advantage_S - exact)[truth.se_S > 0] / truth.se_S[truth.se_S > 0]
    assert np.abs(z).max() < 4
    assert 0.2 < (z**2).mean() < 2.5  # the standard errors are of the right size
    assert np.allclose(truth.advantage_S[truth.se_S == 0], exact[truth.se_S == 0], atol=0.02)


def test_the_contrast_is_what_enumeration_gives() -> None:
    policy, batch = batch_of(TINY)
    segments = sample_segments(batch, 3, seed=0)
    states = states_of(batch, segments)
    forks = 500
    found = contrast(policy, states, forks, 0, nothing)
    assert len(found.place_C) >= 4
    for place, slot, kept, effect in zip(
        found.place_C, found.slot_C, found.kept_C, found.effect_C, strict=True
    ):
        group = next(each for each in states if place in each.place_S)
        i = int(np.flatnonzero(group.place_S == place)[0])
        envs, seen, mine = group.envs.fork([i]), group.contexts[np.array([i])], group.kept_SV[i]
        assert envs.view_NV[0, slot] in envs.world.gold_Qh[envs.asked_Nn[0]]
        assert kept == mine[slot]
        with_it, without = (tuple(np.where(np.arange(len(mine)) == slot, bit, mine)) for bit in (1, 0))
        exact = value(policy, envs, seen, [with_it]) - value(policy, envs, seen, [without])
        assert effect == pytest.approx(exact, abs=4 / forks**0.5)


def test_enumeration_covers_everything() -> None:
    """The reference itself: the shares of the sets of kept facts add up, and their values to that of all."""
    policy, batch = batch_of(TINY)
    group = states_of(batch, sample_segments(batch, 1, seed=0))[0]
    envs, seen = group.envs.fork([0]), group.contexts[np.array([0])]
    forks = 4000
    many = envs.fork([0] * forks)
    contexts = seen[np.zeros(forks, np.int64)]
    (direct,) = outcomes(policy, many, contexts, [None], np.random.default_rng(0))
    assert direct.mean() == pytest.approx(value(policy, envs, seen), abs=4 * 0.5 / forks**0.5)
    assert len(keeps(envs)) > 1


# --- Random numbers -----------------------------------------------------------------------------------------


def test_alternatives_share_random_numbers_and_rows_do_not() -> None:
    policy, batch = batch_of(TASK)
    group = states_of(batch, sample_segments(batch, 4, seed=0))[0]
    rows = np.zeros(200, np.int64)
    envs, contexts, kept = group.envs.fork(rows.tolist()), group.contexts[rows], group.kept_SV[rows]
    chance = np.random.default_rng(0)
    before = {name: value.copy() for name, value in msgspec.structs.asdict(envs.state).items()}
    same = outcomes(policy, envs, contexts, [kept, kept, None], chance)
    assert (same[0] == same[1]).all()  # equal choices and equal numbers give equal episodes
    assert len(np.unique(same[0])) > 1  # rows of one state differ: each has numbers of its own
    again = outcomes(policy, envs, contexts, [kept, None], chance)
    assert (again[0] != same[0]).any()
    fresh = outcomes(policy, envs, contexts, [None, kept], np.random.default_rng(0))
    assert (fresh[1] == same[0]).all()  # the order of the alternatives changes nothing
    for name, value_ in msgspec.structs.asdict(envs.state).items():
        assert (value_ == before[name]).all()


def test_given_keeps_use_up_the_same_random_numbers() -> None:
    policy, batch = batch_of(TASK)
    contexts = batch.rollouts.contexts
    free = policy.choose(contexts, torch.Generator().manual_seed(0))
    keep = policy.layout.keep
    given = policy.choose(contexts, torch.Generator().manual_seed(0), free[:, keep])
    assert (given == free).all()  # given what it would have kept, all the rest is as it was
    open_BV = np.full_like(free[:, keep], -1)
    assert (policy.choose(contexts, torch.Generator().manual_seed(0), open_BV) == free).all()
    nothing_BV = np.zeros_like(free[:, keep])
    bare = policy.choose(contexts, torch.Generator().manual_seed(0), nothing_BV)
    assert (bare[:, keep] == 0).all()
    assert (bare[:, policy.layout.operation] == free[:, policy.layout.operation]).all()


def without_chance(task: Toy) -> ArrayPolicy:
    """Searches for the one subject until its fact is in view, keeps that fact and answers by it."""
    policy = wild(task.envs(1), "tabular")
    wanted = {
        "keep": lambda bits: bits[4],  # the fact answers
        "candidate": lambda bits: bits[4],
        "entity": lambda bits: bits[0],  # the subject of the question
        "operation": lambda bits: bits[3] or bits[1],  # everything is answered, or this is the last round
    }
    with torch.no_grad():
        for head, rule in wanted.items():
            scores = getattr(policy.heads, head).scores
            for pattern in range(len(scores)):
                bits = [bool(pattern >> i & 1) for i in range(8)]
                scores[pattern] = (1000.0 if head == "operation" else 500.0) * (1 if rule(bits) else -1)
    return policy


def test_forks_are_reseeded_where_only_the_environment_is_random() -> None:
    """Before a noisy retriever a policy without chance earns what the environments' own numbers give."""
    task = msgspec.structs.replace(TINY, retriever_noise=0.6)
    policy = without_chance(task)
    batch = play_batch(task, policy, 6, 4, 0)
    assert 0 < batch.rollouts.extra["em"] < 1
    varied = []
    for group in states_of(batch, sample_segments(batch, 8, seed=0)):
        rows = np.arange(len(group.place_S)).repeat(40)
        envs, contexts = group.envs.fork(rows.tolist()), group.contexts[rows]
        first, second = outcomes(policy, envs, contexts, [None, None], np.random.default_rng(0))
        assert (first == second).all()  # alternatives have the same seeds
        varied += [len(np.unique(first[rows == row])) > 1 for row in range(len(group.place_S))]
    assert sum(varied) > 3  # forks of one state do not


def test_common_random_numbers_save_forks() -> None:
    policy, batch = batch_of(TASK, 6)
    truth = measure(policy, states_of(batch, sample_segments(batch, 6, 0)), 200, 0, nothing)
    assert truth.saved > 1.2
    apart = msgspec.structs.replace(truth, fresh_P=_shuffled_within(truth.state_P, truth.fresh_P))
    spread = np.array([(apart.taken_P - apart.fresh_P)[apart.state_P == s].var(ddof=1) for s in range(6)])
    paired = np.array([(truth.taken_P - truth.fresh_P)[truth.state_P == s].var(ddof=1) for s in range(6)])
    assert paired.sum() < spread.sum()  # the pairing is what saves them


def _shuffled_within(state_P: np.ndarray, x_P: np.ndarray) -> np.ndarray:
    chance, out = np.random.default_rng(0), x_P.copy()
    for state in np.unique(state_P):
        rows = np.flatnonzero(state_P == state)
        out[rows] = x_P[chance.permutation(rows)]
    return out


# --- Where forks go -----------------------------------------------------------------------------------------


@given(
    st.lists(st.floats(0, 10), min_size=1, max_size=30).map(np.array),
    st.integers(1, 20),
    st.integers(1, 500),
)
def test_forks_are_allotted_by_spread(spread_S: np.ndarray, least: int, each: int) -> None:
    total = (least + each) * len(spread_S)
    forks_S = allot(spread_S, total, least)
    assert (forks_S >= least).all()
    if spread_S.sum() > 1e-6:
        assert total - len(spread_S) <= forks_S.sum() <= total
    more = np.flatnonzero(forks_S > least)
    if len(more) > 1:  # in proportion, up to whole numbers
        low, high = forks_S[more] / spread_S[more], (forks_S[more] + 1) / spread_S[more]
        assert low.max() <= high.min() * (1 + 1e-9)


def test_a_state_gets_forks_by_its_spread_and_none_less_than_the_pilot() -> None:
    assert allot(np.array([1.0, 3.0]), 80, 4).tolist() == [20, 60]
    assert allot(np.array([0.0, 1.0, 1.0]), 100, 10).tolist() == [10, 45, 45]
    assert allot(np.array([0.0, 0.0]), 100, 10).tolist() == [50, 50]


def test_what_was_spent_is_told() -> None:
    policy, batch = batch_of(TASK)
    states = states_of(batch, sample_segments(batch, 4, 0))
    told: list[int] = []
    truth = measure(policy, states, 64, 0, told.append)
    assert truth.pilot == 8 and truth.forks_S.min() >= 8
    assert sum(told) == (truth.forks_S + truth.pilot).sum()
    assert truth.forks_S.sum() == len(truth.state_P)
    assert abs(truth.forks_S.mean() + truth.pilot - 64) <= 1


@pytest.mark.parametrize("forks", [8, 192])
def test_effects_that_are_rare_are_measured_without_bias(forks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half the operations earn a quarter in 2 % of all episodes, the others in 30 %: the truth is known."""
    states, share_S = 200, np.tile([0.02, 0.3], 100)

    def play(_: object, __: object, forks_S: np.ndarray, chance: np.random.Generator, ___: object) -> object:
        state_P = np.repeat(np.arange(states), forks_S)
        return state_P, 0.25 * (chance.random(len(state_P)) < share_S[state_P]), np.zeros(len(state_P))

    group = SimpleNamespace(place_S=np.arange(states))
    monkeypatch.setattr(truth_module, "_play", play)
    runs = range(100 if forks > 100 else 1000)
    found = np.stack([measure(None, [group], forks, seed, nothing).advantage_S for seed in runs])  # type: ignore[arg-type,list-item]
    for share in (0.02, 0.3):
        each, truth = found[:, share_S == share], 0.25 * share
        error = each.std() / each.size**0.5
        assert 4 * error < 0.05 * truth  # a bias of a tenth would be seen
        assert each.mean() == pytest.approx(truth, abs=4 * error)


# --- Reliability --------------------------------------------------------------------------------------------


def planted(signal: float, noise: float, forks: int, states: int = 2000) -> tuple[np.ndarray, Truth]:
    chance = np.random.default_rng(5)
    true_S = signal * chance.standard_normal(states)
    state_P = np.repeat(np.arange(states), forks)
    taken_P = true_S[state_P] + noise * chance.standard_normal(len(state_P))
    zero = np.zeros(len(state_P))
    mean = np.bincount(state_P, taken_P) / forks
    forks_S = np.full(states, forks)
    return true_S, Truth(mean, np.full(states, noise / forks**0.5), forks_S, 0, state_P, taken_P, zero)


def pearson(x: np.ndarray, y: np.ndarray) -> float:
    return float(np.corrcoef(x, y)[0, 1])


@pytest.mark.parametrize(("noise", "forks"), [(1.0, 10), (3.0, 10), (5.0, 16), (20.0, 10)])
def test_reliability_is_that_of_planted_numbers(noise: float, forks: int) -> None:
    """Classical test theory: var(true) / (var(true) + var(error) / n)."""
    true_S, truth = planted(1.0, noise, forks)
    expected = true_S.var() / (true_S.var() + noise**2 / forks)
    assert reliability(truth, pearson) == pytest.approx(expected, abs=0.08)
    ranks = reliability(truth, spearman)  # of normal numbers a rank correlation is a little lower
    assert ranks == pytest.approx(expected, abs=0.1)


def test_pure_noise_is_not_reliable() -> None:
    _, truth = planted(0.0, 1.0, 10)
    assert reliability(truth, spearman) < 0.2


def test_an_odd_number_of_forks_is_halved_too() -> None:
    _, truth = planted(1.0, 1.0, 5)
    assert 0.7 < reliability(truth, pearson) < 0.95


# --- States -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_states_are_those_that_the_rollouts_went_through(noise: float) -> None:
    task = msgspec.structs.replace(TASK, retriever_noise=noise)
    _, batch = batch_of(task)
    data = batch.rollouts.data
    segments = sample_segments(batch, 100, seed=0)
    assert (data.number_R[data.round_B[segments]] >= 2).all()
    found = states_of(batch, segments)
    assert sorted(np.concatenate([group.place_S for group in found]).tolist()) == list(range(len(segments)))
    for group in found:
        rows = segments[group.place_S]
        assert (group.envs.rounds_N == data.number_R[data.round_B[rows]] - 1).all()
        kept = batch.rollouts.responses.tokens_BK[rows]
        after = group.envs.fork(range(group.envs.num_envs))
        after.step(kept)
        facts = np.where(kept[:, group.envs.layout.keep] == 1, group.envs.view_NV, -1)
        assert [sorted(row[row >= 0]) for row in facts] == [sorted(row[row >= 0]) for row in after.memory_Nc]


def test_gold_facts_are_in_view_and_have_room() -> None:
    policy, batch = batch_of(TASK)
    for group in states_of(batch, sample_segments(batch, 100, seed=0)):
        envs, gold = group.envs, gold_facts(group)
        facts = np.where(gold, envs.view_NV, -1)
        for row, asked, kept in zip(facts, envs.asked_Nn, group.kept_SV, strict=True):
            assert set(row[row >= 0]) <= set(envs.world.gold_Qh[asked].ravel())
            for slot in np.flatnonzero(row >= 0):
                assert kept.sum() - kept[slot] + 1 <= policy.layout.capacity
