"""Trajectories that cannot be: refused when they are made, in one line that names the field."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest

from credit_help import episodes, pack
from mempo_env.errors import ConfigError
from mempo_trainers.credit import CREDITS, Trajectories, make
from mempo_trainers.credit.data import ANSWER, CALL, MEM, THINK
from mempo_trainers.credit.memory import memory_rewards
from mempo_trainers.credit.turn import gains

NAN, INF = float("nan"), float("inf")


def arrays() -> dict[str, Any]:
    """Two rollouts of one question, of 2 rounds and 1; everything measured."""
    return {
        "question_N": np.array([4, 4]),
        "outcome_N": np.array([1.0, 0.0]),
        "shaping_N": np.zeros(2),
        "masked_N": np.array([False, False]),
        "rollout_R": np.array([0, 0, 1]),
        "number_R": np.array([1, 2, 1]),
        "round_B": np.array([0, 1, 2]),
        "roles_BK": np.array([[THINK, CALL], [MEM, ANSWER], [ANSWER, 0]], np.int8),
        "reward_R": np.array([0.0, 1.0, 0.0]),
        "memory_logp_RJ": np.array([[NAN], [-1.0], [NAN]]),
        "history_logp_RJ": np.array([[NAN], [-2.0], [NAN]]),
        "seen_logp_RJ": np.full((3, 1), -0.5),
        "prior_logp_NJ": np.full((2, 1), -3.0),
        "found_R": np.array([1.0, 0.0, 0.0]),
        "recall_R": np.array([0.5, 1.0, NAN]),
        "state_R": np.array([0, 1, 0]),
        "logprobs_BK": np.full((3, 2), -0.5),
        "ref_logprobs_BK": np.full((3, 2), -0.5),
        "values_BK": np.zeros((3, 2)),
        "entry_BK": np.array([[-1, -1], [7, -1], [-1, -1]]),
        "used_UC": np.array([[1, 7]]),
        "merged_MC": np.empty((0, 2), np.int64),
    }


def test_sound_arrays_are_taken() -> None:
    assert make("grpo")(Trajectories(**arrays())).advantages_BK.any()


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("masked_N", np.array([1, 0]), "wanted an array of bool, got one of int64"),
        ("masked_N", [False, True], "wanted an array of bool, got list"),
        ("question_N", None, "wanted an array of integers, got NoneType"),
        ("question_N", np.array([0.0, 1.0]), "wanted an array of integers, got one of float64"),
        ("outcome_N", np.array(["1", "0"]), "wanted an array of floats, got one of <U1"),
        ("outcome_N", np.array([True, False]), "wanted an array of floats, got one of bool"),
        ("outcome_N", np.array([1.0]), r"wanted shape \(N\) with N = 2 \(question_N\), got \(1,\)"),
        ("rollout_R", np.array([0, 0, 2]), r"wanted a rollout, 0 to 1, got 2 at \[2\]"),
        ("rollout_R", np.array([0, 0, -1]), r"wanted a rollout, 0 to 1, got -1 at \[2\]"),
        ("number_R", np.array([0, 1, 1]), r"wanted each rollout's rounds numbered 1, 2, .*got 0 at \[0\]"),
        ("number_R", np.array([1, 1, 1]), r"numbered 1, 2, \.\.\., each once, got 1 at \[0\]"),
        ("number_R", np.array([1, 3, 1]), r"numbered 1, 2, .*got 3 at \[1\]"),
        ("round_B", np.array([0, -1, 2]), r"wanted a round, 0 to 2, got -1 at \[1\]"),
        ("round_B", np.array([0, 1, 3]), r"wanted a round, 0 to 2, got 3 at \[2\]"),
        ("roles_BK", np.array([[1, 2], [5, 0], [1, 1]], np.int8), r"a role, 0 to 4, got 5 at \[1, 0\]"),
        ("roles_BK", np.array([[1, 2], [4, -1], [1, 1]]), r"a role, 0 to 4, got -1 at \[1, 1\]"),
        ("reward_R", np.zeros(2), r"wanted shape \(R\) with R = 3 \(rollout_R\), got \(2,\)"),
        ("reward_R", np.array([0.0, NAN, 0.0]), r"finite numbers.*mask the rollout.*got nan at \[1\]"),
        ("outcome_N", np.array([0.0, NAN]), r"finite numbers.*mask the rollout.*got nan at \[1\]"),
        ("outcome_N", np.array([-INF, 1.0]), r"finite numbers.*got -inf at \[0\]"),
        ("outcome_N", np.array([1e39, 1.0]), r"at most 1e\+30.*got 1e\+39 at \[0\]"),
        ("shaping_N", np.array([0.0, INF]), r"finite numbers.*got inf at \[1\]"),
        ("found_R", np.array([0.0, 0.0, NAN]), r"finite numbers.*got nan at \[2\]"),
        ("memory_logp_RJ", np.array([[NAN], [0.4], [NAN]]), r"log-probs, at most 0 .*got 0.4 at \[1, 0\]"),
        ("history_logp_RJ", np.array([[NAN], [INF], [NAN]]), r"log-probs, at most 0 .*got inf at \[1, 0\]"),
        ("seen_logp_RJ", np.full((3, 1), 0.2), r"log-probs, at most 0 .*got 0.2 at \[0, 0\]"),
        ("prior_logp_NJ", np.full((2, 1), 0.2), r"log-probs, at most 0 .*got 0.2 at \[0, 0\]"),
        ("seen_logp_RJ", np.zeros((3, 2)), r"\(R, J\) with J = 1 \(memory_logp_RJ\), got \(3, 2\)"),
        ("seen_logp_RJ", np.zeros(3), r"wanted shape \(R, J\), got \(3,\)"),
        ("recall_R", np.array([0.5, 50.0, NAN]), r"shares in \[0, 1\], got 50.0 at \[1\]"),
        ("values_BK", np.zeros((3, 1)), r"\(B, K\) with K = 2 \(roles_BK\), got \(3, 1\)"),
        ("logprobs_BK", np.zeros((2, 2)), r"\(B, K\) with B = 3 \(round_B\), got \(2, 2\)"),
        ("entry_BK", np.zeros((3, 2)), "wanted an array of integers, got one of float64"),
        ("used_UC", np.array([[3, 7]]), r"wanted a round, 0 to 2, got 3 at \[0\]"),
        ("used_UC", np.array([[1, 7, 7]]), r"\(U, C\) with C = 2 \(a pair\), got \(1, 3\)"),
    ],
)
def test_a_field_that_cannot_be_is_named(field: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{field}: .*{message}"):
        Trajectories(**arrays() | {field: value})
    with pytest.raises(ConfigError, match=f"^{field}: .*{message}"):
        msgspec.structs.replace(Trajectories(**arrays()), **{field: value})


@pytest.mark.parametrize(
    ("field", "numbers", "message"),
    [
        ("values_BK", [[0, 1], [NAN, 2], [0, 0]], r"got nan at \[1, 0\]"),
        ("logprobs_BK", [[-1, -INF], [0, 0], [0, 0]], r"got -inf at \[0, 1\]"),
        ("ref_logprobs_BK", [[0, 0], [0, 0], [INF, -INF]], r"got inf at \[2, 0\]"),
    ],
)
def test_numbers_of_tokens_are_finite_where_an_estimator_reads_them(
    field: str, numbers: list[list[float]], message: str
) -> None:
    given = {"reward_R": np.zeros(3), "logprobs_BK": np.zeros((3, 2)), "ref_logprobs_BK": np.zeros((3, 2))}
    name, options = ("gae", {}) if field == "values_BK" else ("reinforce_pp", {"beta": 0.1})
    everywhere = {"roles_BK": np.full((3, 2), MEM, np.int8)}
    data = Trajectories(**arrays() | given | everywhere | {field: np.array(numbers, float)})
    for estimate in (CREDITS[name], make(name)):
        with pytest.raises(ConfigError, match=f"^{field}: wanted finite numbers for .*{message}"):
            estimate(data, **options)
    assert np.isfinite(make("grpo")(data).advantages_BK).all()  # which does not read them
    unwritten = np.where(np.isfinite(numbers), MEM, 0).astype(np.int8)
    fine = msgspec.structs.replace(data, roles_BK=unwritten)
    assert np.isfinite(make(name, **options)(fine).advantages_BK).all()


def test_float_noise_above_probability_1_is_none() -> None:
    Trajectories(**arrays() | {"seen_logp_RJ": np.full((3, 1), 1e-7), "recall_R": np.full(3, 1 + 1e-9)})


def test_no_rollouts_no_rounds_and_no_tokens_are_arrays_too() -> None:
    rollouts, merged = episodes(0)
    data = pack(rollouts, merged).data
    empty = {name: array[:0] for name, array in vars_of(data).items()}
    assert make("grpo")(Trajectories(**empty)).groups == 0
    alone = {"question_N", "outcome_N", "shaping_N", "masked_N", "prior_logp_NJ"}
    Trajectories(**{name: array if name in alone else empty[name] for name, array in vars_of(data).items()})


def vars_of(data: Trajectories) -> dict[str, Any]:
    return {name: value for name, value in msgspec.structs.asdict(data).items() if value is not None}


# --- Scores of some objectives only, and of probability 0 ---------------------------------------------------


def two_objectives(first: float, base: float) -> Trajectories:
    """Two rollouts of 2 rounds; in rollout 0 the second objective was scored on one side only."""
    scores = {
        "memory_logp_RJ": [[NAN, NAN], [first, -0.25], [NAN, NAN], [-2.0, -1.0]],
        "history_logp_RJ": [[NAN, NAN], [base, NAN], [NAN, NAN], [-1.0, -1.0]],
        "seen_logp_RJ": [[first, NAN], [base, NAN], [-1.0, -1.0], [-1.0, -1.0]],
    }
    return Trajectories(
        question_N=np.zeros(2, int),
        outcome_N=np.zeros(2),
        shaping_N=np.zeros(2),
        masked_N=np.zeros(2, bool),
        rollout_R=np.array([0, 0, 1, 1]),
        number_R=np.array([1, 2, 1, 2]),
        round_B=np.arange(4),
        roles_BK=np.array([[CALL, 0], [MEM, ANSWER]] * 2, np.int8),
        prior_logp_NJ=np.array([[base, -0.5], [-2.0, -1.0]]),
        **{name: np.array(score) for name, score in scores.items()},
    )


P = {"arithmetic": math.exp, "geometric": math.exp, "log": float}


@pytest.mark.parametrize("objectives", P)
def test_an_objective_scored_on_one_side_only_counts_on_neither(objectives: str) -> None:
    """Rollout 0 has one objective on both sides; rollout 1 has both, one of which stays at -1."""
    data, p = two_objectives(-0.5, -1.5), P[objectives]
    memory_R, base_R, scored_R = memory_rewards(data, objectives)
    assert scored_R.tolist() == [False, True, False, True]
    both = {"arithmetic": (p(-2) + p(-1)) / 2, "geometric": p(-1.5), "log": -1.5}[objectives]
    assert memory_R[scored_R] - base_R[scored_R] == pytest.approx([p(-0.5) - p(-1.5), both - p(-1)])
    # Round 1 of each: what was seen against the question alone.
    gain_R = gains(data, objectives)
    assert gain_R[[0, 2]] == pytest.approx([p(-0.5) - p(-1.5), p(-1) - both])


@pytest.mark.parametrize("name", ["mempo", "placebo", "spread", "igpo", "mempo_gain"])
def test_a_probability_of_zero_has_no_log(name: str) -> None:
    for data in (two_objectives(-INF, -1.0), two_objectives(-1.0, -INF), two_objectives(-INF, -INF)):
        with pytest.raises(ConfigError, match="'log': wanted finite log-probs, got a score of -inf in row"):
            make(name, objectives="log")(data)
        masked = msgspec.structs.replace(data, masked_N=np.array([True, False]))
        assert np.isfinite(make(name, objectives="log")(masked).advantages_BK).all()
        if name != "mempo_gain":  # which is always in nats
            for objectives in ("arithmetic", "geometric"):
                assert np.isfinite(make(name, objectives=objectives)(data).advantages_BK).all()
