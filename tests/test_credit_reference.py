"""Every estimator against slow loops from its formula, on random episodes in random order with padding."""

from __future__ import annotations

import inspect
import math
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import credit_slow
from credit_help import Rollout, Round, Token, episodes, pack
from mempo_trainers.credit import CREDITS, Credit, Trajectories, keep_groups, make
from mempo_trainers.credit.data import MEM
from mempo_trainers.credit.memory import memory_term

CASES: list[tuple[str, dict[str, Any]]] = [
    ("grpo", {}),
    ("grpo", {"ddof": 0}),
    ("dr_grpo", {}),
    ("rloo", {}),
    ("discounted", {}),
    ("discounted", {"gamma": 0.5}),
    ("memory_only", {}),
    ("memory_only", {"elsewhere": 0.3}),
    *[
        ("mempo", {"objectives": o, "baseline": b})
        for o in ("arithmetic", "geometric", "log")
        for b in ("full", "none", "previous")
    ],
    ("mempo", {"pool": "round"}),
    ("mempo", {"weight": 0.3, "ddof": 0}),
    ("mempo", {"only_successful": True}),
    ("spread", {}),
    ("spread", {"weight": 2.0}),
    ("turn_level", {}),
    ("turn_level", {"weight": 0.5}),
    ("gigpo", {}),
    ("gigpo", {"gamma": 0.5, "weight": 2.0}),
    ("igpo", {}),
    ("igpo", {"gamma": 0.9}),
    ("mempo_gain", {}),
    ("mempo_gain", {"gamma": 0.5}),
    ("reinforce_pp", {}),
    ("reinforce_pp", {"beta": 0.3}),
    ("gae", {}),
    ("gae", {"gamma_round": 0.9, "lambda_round": 0.8}),
    ("attribution", {}),
    ("attribution", {"progress": "score", "cost": 0.3, "weight": 0.5}),
]
seeds = st.integers(0, 2**32 - 1)


@pytest.mark.parametrize(("name", "options"), CASES, ids=lambda case: str(case))
@given(seed=seeds, padding=st.integers(0, 3))
@settings(deadline=None, max_examples=40)
def test_it_is_its_formula(name: str, options: dict[str, Any], seed: int, padding: int) -> None:
    rollouts, merged = episodes(seed)
    packed = pack(rollouts, merged, np.random.default_rng(seed), padding)
    credit = make(name, **options)(packed.data)
    extra = (merged,) if name == "attribution" else ()
    slow = getattr(credit_slow, name)(rollouts, *extra, **options)
    wanted = {at: slow.get(at, 0.0) for at in packed.where}
    assert packed.read(credit.advantages_BK) == pytest.approx(wanted, rel=2e-5, abs=2e-5)


@pytest.mark.parametrize("name", CREDITS)
@given(seed=seeds)
@settings(deadline=None, max_examples=25)
def test_order_and_padding_change_nothing(name: str, seed: int) -> None:
    rollouts, merged = episodes(seed)
    here = pack(rollouts, merged)
    there = pack(rollouts, merged, np.random.default_rng(seed), padding=2)
    ours, theirs = make(name)(here.data), make(name)(there.data)
    if name != "placebo":  # whose chance depends on the order
        numbers = here.read(ours.advantages_BK)
        assert numbers == pytest.approx(there.read(theirs.advantages_BK), rel=1e-5, abs=1e-5)
    for field in ("groups", "degenerate_outcome", "degenerate_memory", "memory_std", "unwritten"):
        assert getattr(ours, field) == pytest.approx(getattr(theirs, field), abs=1e-9, nan_ok=True)


@pytest.mark.parametrize("name", CREDITS)
@given(seed=seeds)
@settings(deadline=None, max_examples=25)
def test_only_what_the_policy_wrote_has_an_advantage_and_masked_rollouts_have_none(
    name: str, seed: int
) -> None:
    rollouts, merged = episodes(seed)
    packed = pack(rollouts, merged, np.random.default_rng(seed), padding=1)
    data = packed.data
    advantages_BK = make(name)(data).advantages_BK
    assert np.isfinite(advantages_BK).all() and advantages_BK.dtype == np.float32
    assert not np.signbit(advantages_BK[~data.mask_BK]).any()  # +0.0, not -0.0
    assert (advantages_BK[~data.mask_BK] == 0).all()
    assert (advantages_BK[data.masked_N[data.rollout_B]] == 0).all()


SCORE_MEMORY = ("mempo", "mempo_gain", "placebo", "spread")
OF_MEMORY = ("degenerate_memory", "memory_std", "memory_correlation", "unwritten")


@pytest.mark.parametrize("name", CREDITS)
def test_of_scores_that_nobody_takes_nothing_is_told(name: str) -> None:
    told = make(name)(pack(*episodes(3)).data)
    *numbers, unwritten = (math.isfinite(getattr(told, field)) for field in OF_MEMORY)
    assert numbers == [name in SCORE_MEMORY] * 3
    assert unwritten == (name in SCORE_MEMORY and name != "spread")  # which pools no rounds


def _planted(data: Trajectories, rng: np.random.Generator | None) -> Trajectories:
    """The same batch with other floats in its masked rollouts: zeros, or any that a failure leaves behind."""
    masked_R = data.masked_N[data.rollout_R]
    rows = {"N": data.masked_N, "R": masked_R, "B": masked_R[data.round_B]}
    filled = {}
    for name, held in msgspec.structs.asdict(data).items():
        if held is not None and held.dtype.kind == "f":
            filled[name] = held.copy()
            values = filled[name][rows[name.rsplit("_", 1)[1][0]]]
            junk = 0.0 if rng is None else rng.choice([math.nan, math.inf, -math.inf, 1e308], values.shape)
            filled[name][rows[name.rsplit("_", 1)[1][0]]] = junk
    return msgspec.structs.replace(data, **filled)


@pytest.mark.parametrize(
    ("name", "options"),
    [*CASES, ("placebo", {}), ("placebo", {"objectives": "log", "baseline": "previous"})],
    ids=lambda case: str(case),
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@given(seed=seeds)
@settings(deadline=None, max_examples=25)
def test_nothing_of_a_masked_rollout_reaches_any_statistic(
    name: str, options: dict[str, Any], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    rollouts, merged = episodes(seed)
    for rollout in rollouts:
        rollout.masked |= rng.random() < 0.3
    rollouts[0].masked = True
    data = pack(rollouts, merged, rng, padding=1).data
    clean = make(name, **options)(_planted(data, None))
    soiled = make(name, **options)(_planted(data, rng))
    for field in Credit.__struct_fields__:
        here, there = getattr(clean, field), getattr(soiled, field)
        known = np.isfinite(here).all() or field == "unwritten"  # of no round nobody knows
        assert known or (field in OF_MEMORY and name not in SCORE_MEMORY), field
        assert np.array_equal(here, there, equal_nan=True), field


def test_a_masked_rollout_without_a_reward_leaves_the_whitening_of_the_others_alone() -> None:
    """Returns 1 and 0 of one token each: deviations of 1/2, a variance of 1/2."""
    rollouts = [Rollout(0, r, [Round([[Token(MEM)]], reward=r)]) for r in (1.0, 0.0, math.nan)]
    rollouts[2].masked = True
    advantages_BK = make("reinforce_pp")(pack(rollouts).data).advantages_BK
    assert advantages_BK[:, 0].tolist() == pytest.approx([0.5**0.5, -(0.5**0.5), 0.0])


@given(seed=seeds, pool=st.sampled_from(["all", "round"]))
@settings(deadline=None, max_examples=60)
def test_placebo_shuffles_within_the_pool_and_keeps_every_number(seed: int, pool: str) -> None:
    rollouts, merged = episodes(seed)
    for rollout in rollouts:  # a memory token in each round, so that each round's number can be read off
        for round_ in rollout.rounds:
            round_.segments = [[Token(MEM, value=0.0)]]
    data = pack(rollouts, merged).data
    term = memory_term(data, pool=pool)
    credit = make("placebo", seed=seed % 7, pool=pool)(data)
    again = make("placebo", seed=seed % 7, pool=pool)(data)
    assert np.array_equal(credit.advantages_BK, again.advantages_BK)
    shuffled_R = (credit.advantages_BK[:, 0] - credit.outcome_N[data.rollout_R])[term.pooled_R]
    for pool_number in np.unique(term.pool_R[term.pooled_R]):
        mine = term.pool_R[term.pooled_R] == pool_number
        wanted = np.sort(term.advantage_R[term.pooled_R][mine])
        assert np.sort(shuffled_R[mine]) == pytest.approx(wanted, abs=1e-5)


@given(seed=seeds)
@settings(deadline=None, max_examples=60)
def test_a_group_is_dropped_only_if_every_token_advantage_is_zero(seed: int) -> None:
    rollouts, merged = episodes(seed)
    data = pack(rollouts, merged, np.random.default_rng(seed)).data
    for name in ("grpo", "mempo", "turn_level", "attribution"):
        advantages_BK = make(name)(data).advantages_BK
        kept = keep_groups(advantages_BK, data)
        for question, keep in zip(np.unique(data.question_N), kept, strict=True):
            mine_BK = advantages_BK[data.question_N[data.rollout_B] == question]
            assert keep == bool(np.any(mine_BK != 0))


@given(seed=seeds)
@settings(deadline=None, max_examples=60)
def test_the_parts_add_up(seed: int) -> None:
    rollouts, merged = episodes(seed)
    data = pack(rollouts, merged).data
    for name in CREDITS:
        credit: Credit = make(name)(data)
        outcome_BK, rest_BK = credit.parts(data)
        assert outcome_BK + rest_BK == pytest.approx(credit.advantages_BK, abs=1e-5)
        if name in ("grpo", "dr_grpo", "rloo", "spread"):
            assert not rest_BK.any()


def test_every_estimator_has_a_slow_twin_and_says_its_formula() -> None:
    for name, function in CREDITS.items():
        assert name == "placebo" or any(name == case for case, _ in CASES)
        text = inspect.getdoc(function) or ""
        assert "A_k" in text and ("arXiv" in text or "no paper" in text or "control" in text), name
