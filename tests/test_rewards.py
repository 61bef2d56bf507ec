"""Every term of the reward, both presets, and what may not be combined."""

from __future__ import annotations

import pytest

from mempo_env.errors import ConfigError
from mempo_env.rewards import PRESETS, RewardConfig, add, memory_efficiency, outcome, preset, weigh
from mempo_env.scoring import score_episode
from mempo_env.types import RewardTerms

HALF = score_episode(("Paris", "x"), [("Paris",), ("Oslo Norway",)], True)


def test_outcomes() -> None:
    assert [outcome(HALF, kind) for kind in ("em_all", "em_mean", "f1_mean")] == [0.0, 0.5, 0.5]
    partial = score_episode(("Paris", "Oslo"), [("Paris",), ("Oslo Norway",)], True)
    assert outcome(partial, "f1_mean") == pytest.approx((1 + 2 / 3) / 2)


def test_presets_pay_what_the_protocol_says() -> None:
    every = RewardTerms(1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
    mempo, bank = weigh(every, PRESETS["mempo"]).weighted, weigh(every, PRESETS["bank"]).weighted
    assert mempo == RewardTerms(outcome=1.0)
    assert bank == RewardTerms(1.0, -0.05, -0.02, -0.1, 0.0, 0.05)
    assert bank.total() == pytest.approx(0.88)
    assert (PRESETS["mempo"].outcome, PRESETS["bank"].outcome) == ("em_all", "em_mean")


def test_raw_values_are_kept_beside_the_weighted() -> None:
    breakdown = weigh(RewardTerms(invalid_action=1.0), PRESETS["mempo"])
    assert breakdown.raw.invalid_action == 1.0 and breakdown.weighted.invalid_action == 0.0


@pytest.mark.parametrize(("tokens", "value"), [(0, 1.0), (256, 0.75), (1024, 0.0), (5000, 0.0)])
def test_memory_efficiency(tokens: int, value: float) -> None:
    assert memory_efficiency(tokens, 1024) == value


def test_efficiency_may_not_outweigh_the_answer() -> None:
    RewardConfig(memory_efficiency=0.2)
    with pytest.raises(ConfigError, match="at most a fifth"):
        RewardConfig(memory_efficiency=0.21)
    with pytest.raises(ConfigError, match="at most a fifth"):
        RewardConfig(outcome_weight=0.1, memory_efficiency=0.05)


def test_names_are_checked() -> None:
    with pytest.raises(ConfigError, match="did you mean 'mempo'"):
        preset("menpo")
    with pytest.raises(ConfigError, match="unknown outcome"):
        RewardConfig(outcome="em_al")  # type: ignore[arg-type]
    for wrong in ({"outcome_weight": float("nan"), "memory_efficiency": 99.0}, {"write_cost": float("inf")}):
        with pytest.raises(ConfigError, match="wanted a number from"):
            RewardConfig(**wrong)
    with pytest.raises(ConfigError, match="wanted a name"):
        preset({"outcome": "em_all"})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="memory_budget"):
        RewardConfig(memory_budget=0)
    with pytest.raises(ConfigError, match=r"outcome_weight: wanted a number .*, got 'much'"):
        RewardConfig(outcome_weight="much")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="unknown keyword 'write_costs': did you mean 'write_cost'"):
        RewardConfig(write_costs=0.1)  # type: ignore[call-arg]


@pytest.mark.parametrize("kind", ["em_all", "em_mean", "f1_mean"])
def test_an_outcome_is_a_preset_that_pays_it_alone(kind: str) -> None:
    assert preset(kind) == RewardConfig(outcome=kind)  # type: ignore[arg-type]
    assert preset("em_all") == preset("mempo")


def test_add() -> None:
    assert add(RewardTerms(1.0, -0.5), RewardTerms(0.0, -0.5)) == RewardTerms(1.0, -1.0)
