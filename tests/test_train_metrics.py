"""The row of a step: what counts in it when rollouts are masked or groups are left out."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from mempo_trainers import credit
from mempo_trainers.batching import join, split_groups
from mempo_trainers.config import Config
from mempo_trainers.metrics import row
from mempo_trainers.policies.base import Rollouts
from mempo_trainers.run import Run
from mempo_trainers.sample import sample
from mempo_trainers.toy import Toy, ToyDraw
from train_help import played, train, wild, with_config

TASK = Toy(objectives=1, worlds=60, reward="em_mean")


@pytest.fixture(scope="module")
def whole() -> Rollouts:
    """Four groups of eight, some right and some not."""
    envs = TASK.envs(32)
    rollouts = played(wild(envs, size=0.1), envs, group=8)
    assert 0 < rollouts.success_N.mean() < 1
    return rollouts


def masked(rollouts: Rollouts, masked_N: np.ndarray) -> Rollouts:
    return msgspec.structs.replace(rollouts, data=msgspec.structs.replace(rollouts.data, masked_N=masked_N))


def told(rollouts: Rollouts) -> dict[str, Any]:
    return row(rollouts, credit.make("grpo")(rollouts.data), Config(credit="grpo"))


# --- Masked rollouts ---------------------------------------------------------------------------------------


def test_masked_rollouts_are_no_failures(whole: Rollouts) -> None:
    failed = int((~whole.success_N).sum())
    found = told(masked(whole, ~whole.success_N))
    assert (found["success"], found["reward"], found["reward_min"], found["reward_max"]) == (1, 1, 1, 1)
    assert found["rollouts"] == 32 - failed and found["masked"] == pytest.approx(failed / 32)


def test_a_step_of_nothing_but_masked_rollouts_says_no_number(whole: Rollouts, tmp_path: Path) -> None:
    found = told(masked(whole, np.ones(32, bool)))
    unknown = "reward reward_min reward_max success outcome_advantage_min outcome_advantage_max em recall"
    assert all(math.isnan(found[name]) for name in unknown.split())
    assert (found["rollouts"], found["masked"], found["groups"], found["dead_groups"]) == (0, 1, 0, 0)
    with Run(tmp_path / "run", {}, tensorboard=True) as run:
        for step in run.steps(TASK.make_policy(Config()), 1, 1):
            run.log(step, **found)
    written = json.loads((tmp_path / "run" / "metrics.jsonl").read_bytes())
    assert written["success"] is None and written["em"] is None and written["masked"] == 1


def test_tensorboard_reads_what_is_in_the_rows(tmp_path: Path) -> None:
    reader = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="needs mempo[tensorboard]"
    )
    for steps in (2, 3):  # two processes, a file each
        with Run(tmp_path / "run", {"config": {"steps": steps}}, tensorboard=True) as run:
            for step in run.steps(TASK.make_policy(Config()), steps, 1):
                run.log(step, success=step / 4, credit="mempo", reward=math.nan, rollouts=64)
    events = reader.EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    assert set(events.Tags()["scalars"]) == {"success", "rollouts", "seconds"}
    assert [(e.step, e.value) for e in events.Scalars("success")] == [(1, 0.25), (2, 0.5), (3, 0.75)]
    assert [e.value for e in events.Scalars("rollouts")] == [64, 64, 64]


# --- Groups that are left out ------------------------------------------------------------------------------


def test_a_part_of_a_batch_says_nothing_of_the_whole(whole: Rollouts) -> None:
    assert whole.extra and all(not group.extra for group in split_groups(whole))


def test_joined_measures_are_means_over_the_rollouts_that_count(whole: Rollouts) -> None:
    """8 of 32 rollouts are masked in the second: (32 * 0.5 + 24 * 1) / 56; nothing of the third counts."""
    one = msgspec.structs.replace(whole, extra={"em": 0.5})
    two = msgspec.structs.replace(masked(whole, np.arange(32) < 8), extra={"em": 1.0})
    none = msgspec.structs.replace(masked(whole, np.ones(32, bool)), extra={"em": math.nan})
    assert join([one, two, none]).extra["em"] == pytest.approx(40 / 56)


def test_what_is_told_is_of_all_that_was_generated() -> None:
    """Under `grpo` only groups that differ are kept: theirs is no success rate of the policy."""
    config = Config(credit="grpo", questions=6, rollouts=4, dynamic_sampling=12)
    policy = wild(TASK.envs(1), size=0.1)
    draw, generated, estimate = ToyDraw(policy, TASK, 4, 0), list[Rollouts](), credit.make("grpo")

    def noted(step: int, attempt: int, questions: int) -> Rollouts:
        generated.append(draw(step, attempt, questions))
        return generated[-1]

    for step in range(1, 6):
        generated.clear()
        kept, said = sample(policy, noted, estimate, config, step)
        found = {**row(kept, estimate(kept.data), config), **said}
        success = np.concatenate([part.success_N for part in generated])
        reward = np.concatenate([part.data.outcome_N + part.data.shaping_N for part in generated])
        assert len(success) == 4 * found["groups_generated"]
        assert found["success"] == success.mean() == pytest.approx(found["em"])
        assert (found["reward_min"], found["reward_max"]) == (reward.min(), reward.max())
        assert found["reward"] == pytest.approx(reward.mean())
        assert found["rollouts"] == len(kept.success_N) == 4 * found["groups"]
    assert kept.success_N.mean() != success.mean()


def test_the_loop_logs_it(tmp_path: Path) -> None:
    train(tmp_path / "run", TASK, with_config(credit="grpo", questions=4, dynamic_sampling=8, steps=3))
    for line in (tmp_path / "run" / "metrics.jsonl").read_bytes().splitlines():
        found = json.loads(line)
        assert found["success"] * 4 * found["groups_generated"] == pytest.approx(
            round(found["success"] * 4 * found["groups_generated"])
        )
        assert found["success"] == pytest.approx(found["em"])
