"""Settings are refused when they are made, by name, whatever is wrong with them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mempo_env.errors import ConfigError
from mempo_trainers.config import Config, read_options
from mempo_trainers.toy import Toy

HUGE = pytest.param(10**400, id="huge")
WEIGHTS = ["entropy", "kl", "value_weight", "lambda_round"]
NUMBERS = ["learning_rate", "max_grad_norm", "clip_low", "clip_high", "dual_clip", *WEIGHTS]
WHOLE = ["seed", "steps", "questions", "rollouts", "epochs", "dynamic_sampling", "checkpoint_every"]
TEXTS = ["algo", "credit", "aggregation", "kl_kind", "kl_tokens"]


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", ["a", True, None, [1.0], float("nan"), float("inf"), -1.0, HUGE, {}])
def test_a_number_is_finite_and_no_flag(name: str, value: Any) -> None:
    if (name, value) == ("dual_clip", None):
        assert Config(dual_clip=None).dual_clip is None
        return
    with pytest.raises(ConfigError, match=rf"^{name}: wanted"):
        Config(**{name: value})


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("value", ["1", True, None, 1.0, 1.5, -1, 2**63, HUGE])
def test_a_count_is_a_whole_number_that_can_be_written(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^{name}: wanted"):
        Config(**{name: value})


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("value", [3, None, True, ["grpo"]])
def test_a_choice_is_a_text(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^{name}: wanted a (text|name)"):
        Config(**{name: value})


@pytest.mark.parametrize(
    "value", [None, 3, "weight=1", {1: 2}, {"weight": None}, {"weight": [1]}, [("a", 1)]]
)
def test_options_are_names_with_plain_values(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"^credit_options: wanted"):
        Config(credit_options=value)


@pytest.mark.parametrize("name, value", [("clip_low", 1.01), ("lambda_round", 1.01), ("learning_rate", 1e5)])
def test_a_number_has_a_most(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"^{name}: wanted a number .* 1(0,000)?, got 1"):
        Config(**{name: value})


def test_a_name_that_is_none_gets_a_guess() -> None:
    with pytest.raises(ConfigError, match="unknown keyword 'learning_rat': did you mean 'learning_rate'"):
        Config(learning_rat=0.1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unknown keyword 'objectiv': did you mean 'objectives'"):
        Toy(objectiv=2)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="unknown kl_kind 'k4'"):
        Config(kl_kind="k4")  # type: ignore[arg-type]


TASK = {
    "objectives": [0, -1, 1.0, True, "2"],
    "hops": [0, None],
    "capacity": [0, 10_001, 2.5],
    "facts": [0, 20],
    "max_rounds": [0, 10_001],
    "retriever_noise": [-0.1, 1.1, float("nan"), "much"],
    "worlds": [9, None],
}


@pytest.mark.parametrize("name, value", [(name, value) for name, all_ in TASK.items() for value in all_])
def test_a_task_that_can_not_be_is_refused_when_it_is_made(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^{name}: wanted a (whole )?number from"):
        Toy(**{name: value})


def test_the_ends_of_the_ranges_of_a_task_are_allowed() -> None:
    Toy(objectives=1, hops=1, capacity=1, facts=1, max_rounds=1, retriever_noise=0, worlds=10).envs(1)
    Toy(objectives=1, capacity=200, facts=19, max_rounds=10_000, retriever_noise=1, worlds=20).envs(1)


def test_the_ends_of_the_ranges_are_allowed() -> None:
    Config(seed=2**63 - 1, clip_low=1, lambda_round=1, kl=0, entropy=0, learning_rate=1e4, dual_clip=1.01)
    Config(seed=0, clip_low=0, clip_high=0, lambda_round=0, value_weight=0)


@given(st.one_of(st.integers(), st.floats(allow_nan=False)).map(str))
def test_options_that_read_as_a_number_are_that_number(text: str) -> None:
    value = read_options([f"weight={text}"])["weight"]
    assert value == float(text) or value == int(text)


def test_options_are_read_as_what_they_are() -> None:
    read = read_options(["a=true", "b=2.0", "c=1e3", "d=pool", "e=9007199254740993", "f=-1", "g=1e300"])
    assert read == {"a": True, "b": 2, "c": 1000, "d": "pool", "e": 9007199254740993, "f": -1, "g": 1e300}
    assert [type(read[name]) for name in "bceg"] == [int, int, int, float]


def test_a_seed_of_the_placebo_below_0_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^seed: wanted"):
        Config(credit="placebo", credit_options=read_options(["seed=-1"]))
