"""Stable-Baselines3's PPO on the array face: what it is told, that it learns, that a run can be repeated."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from mempo_env.cli import main
from mempo_env.errors import ConfigError, ResultsError
from mempo_trainers import checkpoint
from mempo_trainers.sb3 import ENVIRONMENTS, ID, ROUNDS, RoundsAreTerminal, evaluate, make_model, train

pytest.importorskip("stable_baselines3", reason="needs mempo[sb3]")


def rows(run: Path) -> list[dict[str, Any]]:
    """The metrics of a run, but for the time they took."""
    read = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name != "seconds"} for row in read]


def weights(run: Path) -> dict[str, torch.Tensor]:
    state = checkpoint.read(run / "checkpoint.safetensors")["policy"]
    moments = state["optimiser"]["state"]
    return state["weights"] | {f"{i}.{name}": x for i, s in moments.items() for name, x in s.items()}


def test_no_folder_of_a_step_is_left_among_the_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    train(tmp_path / "run", steps=2)
    assert not list((tmp_path / "temporary").glob("SB3-*"))


def same(one: Path, two: Path) -> bool:
    left, right = weights(one), weights(two)
    equal = left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)
    return equal and rows(one) == rows(two)


def play(env: gym.Env[Any, Any], action: Any) -> list[tuple[bool, bool]]:
    """The flags of an episode of nothing but this action."""
    env.reset(seed=0)
    flags = []
    while not flags or not any(flags[-1]):
        _, _, terminated, truncated, _ = env.step(action)
        flags.append((terminated, truncated))
    return flags


def test_the_last_round_allowed_ends_the_episode_as_an_answer_does() -> None:
    env = gym.make(ID, max_rounds=4)
    nothing = np.zeros(env.action_space.shape or (), np.int64)
    assert play(env, nothing) == [(False, False)] * 3 + [(False, True)]
    assert play(RoundsAreTerminal(env), nothing) == [(False, False)] * 3 + [(True, False)]


def test_only_an_exactly_right_answer_is_a_success() -> None:
    env = RoundsAreTerminal(gym.make(ID))
    layout, world = env.get_wrapper_attr("layout"), env.get_wrapper_attr("world")
    for right in (True, False):
        env.reset(seed=3)
        action = np.zeros(layout.decisions, np.int64)
        assert env.step(action)[4] == {"is_success": False}  # it searched for the subject of the question
        asked = env.get_wrapper_attr("text").episode().questions[0]
        gold = next(q.answers[0] for q in world.questions if q.id == asked.id)
        said = [env.get_wrapper_attr("write")(answering(layout, slot)) for slot in range(layout.view)]
        slots = [slot for slot, text in enumerate(said) if (gold in text) == right]
        _, reward, terminated, _, info = env.step(answering(layout, slots[0]))
        assert (reward, terminated, info) == (float(right), True, {"is_success": right})


def answering(layout: Any, slot: int) -> Any:
    action = np.zeros(layout.decisions, np.int64)
    action[layout.operation], action[layout.candidates] = 1, slot
    return action


@pytest.mark.parametrize("terminal", [True, False])
def test_nothing_of_the_critic_is_added_to_the_reward_of_the_last_round(terminal: bool) -> None:
    """A critic that says 100 everywhere: told of truncation, PPO pays it out for running out of rounds."""
    model = make_model(1, 0)
    if not terminal:
        from stable_baselines3.common.env_util import make_vec_env

        model.set_env(make_vec_env(lambda: gym.make(ID), n_envs=ENVIRONMENTS))
    with torch.no_grad():
        model.policy.value_net.bias.fill_(100.0)
    model.learn(ENVIRONMENTS * ROUNDS)
    assert (model.rollout_buffer.rewards.max() <= 1.0) == terminal


def test_a_step_is_a_row_and_an_equal_seed_an_equal_run(tmp_path: Path) -> None:
    for name, seed in (("one", 5), ("two", 5), ("other", 6)):
        result = train(tmp_path / name, steps=2, seed=seed)
        assert json.loads((tmp_path / name / "result.json").read_text()) == result
    assert same(tmp_path / "one", tmp_path / "two")
    assert not same(tmp_path / "one", tmp_path / "other")
    first, second = rows(tmp_path / "one")
    assert (first["step"], second["step"]) == (1, 2)
    assert set(first) == {"step", "rollouts", "reward", "success", "rounds"}
    assert (
        first["reward"] == first["success"] < 0.1
    )  # the preset pays 1 for success, and nobody has learned yet
    assert ENVIRONMENTS * ROUNDS / 4 - ENVIRONMENTS <= first["rollouts"] <= ENVIRONMENTS * ROUNDS


def test_a_run_killed_between_steps_goes_on_to_the_same_end(tmp_path: Path) -> None:
    """By kill -9 from outside, as soon as a row is there."""
    code = "import pathlib, sys, mempo_trainers.sb3 as sb3; sb3.train(pathlib.Path(sys.argv[1]), steps=3)"
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    process = subprocess.Popen([sys.executable, "-c", code, str(killed)], stderr=subprocess.DEVNULL)
    try:
        while not (killed / "metrics.jsonl").exists() or len(rows(killed)) < 1:
            assert process.poll() is None, "the run ended before it could be killed"
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not (killed / "result.json").exists()
    train(killed, steps=3)
    train(whole, steps=3)
    assert len(rows(whole)) == 3 and same(killed, whole)


@pytest.mark.slow
def test_it_learns_one_objective_to_the_threshold(tmp_path: Path) -> None:
    """The defaults and seed 0; seeds 0 to 4 all reached 1.00 on 512 questions of the test split."""
    result = train(tmp_path / "run", seed=0)
    assert result["episodes"] == 512 and result["success"] >= 0.9
    assert rows(tmp_path / "run")[0]["success"] < 0.1


def test_the_command_trains_and_says_how_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "sb3", "--out", str(tmp_path / "run"), "--objectives", "2", "--steps", "1"]) == 0
    assert "1,024 rounds; success on 512 new episodes of the test split: 0.0" in capsys.readouterr().out
    assert len(rows(tmp_path / "run")) == 1


def test_the_largest_seed_is_taken(tmp_path: Path) -> None:
    assert train(tmp_path / "run", steps=1, seed=2**32 - 1)["episodes"] == 512


def test_an_untrained_model_does_not_succeed() -> None:
    assert evaluate(make_model(1, 0), 1, 0, episodes=64)["success"] < 0.1


def test_a_folder_of_another_run_is_left_as_it_is(tmp_path: Path) -> None:
    train(tmp_path, steps=1)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    with pytest.raises(ResultsError, match="other settings"):
        train(tmp_path, steps=2, seed=1)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


def test_no_step_at_all_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="steps: wanted at least 1, got 0"):
        train(tmp_path / "run", steps=0)
    for objectives in (0, 201):
        with pytest.raises(ConfigError, match="objectives"):
            train(tmp_path / "run", objectives=objectives)
    for seed in (-1, 2**32, 2**40):
        with pytest.raises(ConfigError, match=f"seed: wanted 0 to 4294967295, got {seed}"):
            train(tmp_path / "run", seed=seed)
    assert not (tmp_path / "run").exists()


def test_without_stable_baselines3_the_error_names_the_command(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['stable_baselines3'] = None\n"
        "from pathlib import Path; from mempo_trainers.sb3 import train; train(Path(sys.argv[1]))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ))
    assert "needs stable-baselines3, which is not installed: pip install 'mempo[sb3]'" in done.stderr
    assert done.returncode == 1 and not (tmp_path / "run").exists()
