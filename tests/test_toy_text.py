"""The toy task in text: what is asked, warm start and training as one run, killed, gone on with, refused."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from mempo_env.cli import main
from mempo_env.errors import ConfigError, ResultsError
from mempo_env.questions.world import synthetic
from mempo_trainers import checkpoint
from mempo_trainers.doctor.cli import examine
from mempo_trainers.policies.tiny_lm import Shape, TinyLM
from mempo_trainers.run_files import CHECKPOINT, METRICS, RESULT, SETTINGS
from mempo_trainers.sft import SftConfig
from mempo_trainers.toy_text import (
    CONFIG,
    POLICY,
    WARM,
    ToyText,
    askable,
    evaluate,
    restore,
    started,
    told,
    train,
    warm_start,
)
from tiny_lm_help import LEARN, SMALL
from train_help import ended, metrics


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing disturbed."""
    run = tmp_path_factory.mktemp("whole") / "run"
    train(SMALL, LEARN, run, board=False)
    return run


def assert_equal(one: Any, other: Any) -> None:
    """Two states of a policy, bit for bit."""
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for name, value in one.items():
            assert_equal(value, other[name])
    else:
        assert one == other


def assert_same(one: Path, other: Path) -> None:
    """Equal metrics, checkpoints and results, of the warm start and of the run."""
    for here, there in ((one, other), (one / WARM, other / WARM)):
        assert metrics(here) == metrics(there)
        states = (checkpoint.read(run / CHECKPOINT)["policy"] for run in (here, there))
        assert_equal(*states)
    for name in ("model.safetensors", "tokenizer.json", "shape.json"):
        assert (one / WARM / POLICY / name).read_bytes() == (other / WARM / POLICY / name).read_bytes()
    assert (one / RESULT).read_bytes() == (other / RESULT).read_bytes()


# --- The task ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3])
def test_every_question_is_tested_once_and_none_of_the_training_split(n: int) -> None:
    task = msgspec.structs.replace(SMALL, objectives=n)
    asked = [id for ids in task.asked("test") for id in ids.split("+")]
    possible = {question.id for question in synthetic().split("test") if askable(question)}
    assert len(asked) == len(set(asked)) and set(asked) <= possible and len(asked) > len(possible) - n
    pool = task.asked("train")
    assert len(pool) == task.episodes and pool == task.asked("train")
    assert {len(set(ids.split("+"))) for ids in pool} == {n}
    assert not {id for ids in pool for id in ids.split("+")} & set(asked)


def test_rounds_suffice_for_a_search_each_and_the_answer() -> None:
    assert msgspec.structs.replace(SMALL, objectives=3).environment("train")["max_rounds"] == 5
    assert ToyText(max_rounds=3).environment("train")["max_rounds"] == 3
    with pytest.raises(ConfigError, match=r"max_rounds: wanted at least 3, a search for each .* got 2"):
        ToyText(max_rounds=2)


@pytest.mark.parametrize(
    "changes, told",
    [
        ({"heads": 5}, "width: wanted a multiple of 10, twice the heads, got 96"),
        ({"width": 20}, "width: wanted a multiple of 8, twice the heads, got 20"),
        ({"heads": 0}, "heads: wanted a whole number from 1"),
        ({"world": {"articles": 2_000}}, "world: wanted WorldSpec(...), got {'articles': 2000}"),
        ({"world": None}, "world: wanted WorldSpec(...), got None"),
        ({"warm": {"steps": 3}}, "warm: wanted SftConfig(...), got {'steps': 3}"),
    ],
)
def test_a_task_that_can_not_be_is_refused_when_made(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)):
        ToyText(**changes)
    assert ToyText(width=8, heads=4).shape(3) == Shape(3, 8, 2, 4)


# --- A run -------------------------------------------------------------------------------------------------


def test_the_warm_start_is_a_run_of_its_own_in_the_run(whole: Path) -> None:
    assert [set(row) - {"seconds"} for row in metrics(whole / WARM)] == [
        {"step", "loss", "tokens", "grad_norm", "skipped_updates"}
    ] * SMALL.warm.steps
    assert [row["rollouts"] for row in metrics(whole)] == [4] * LEARN.steps
    settings = json.loads((whole / SETTINGS).read_text())
    assert settings["task"] == msgspec.to_builtins(SMALL)
    assert json.loads((whole / WARM / SETTINGS).read_text())["task"] == settings["task"]


def test_training_goes_on_from_the_warm_start(whole: Path) -> None:
    """The first step plays with its weights, and the reference of a run is the policy after it."""
    task, config, policy = restore(whole)
    assert (task, config) == (SMALL, LEARN)
    warm = started(task, config, whole)
    saved = checkpoint.read(whole / WARM / CHECKPOINT)["policy"]
    assert_equal(warm.state_dict()["model"], saved["model"])
    assert any(
        not torch.equal(weight, warm.model.state_dict()[name])
        for name, weight in policy.model.state_dict().items()
    )
    assert metrics(whole)[0]["sampler_gap"] < 1e-4


def test_the_result_is_that_of_both_policies_on_the_test_split(whole: Path) -> None:
    task, config, policy = restore(whole)
    result = json.loads((whole / RESULT).read_text())
    assert result == evaluate(task, policy, started(task, config, whole), config.seed)
    assert result["episodes"] == len(SMALL.asked("test"))
    assert result["gain"] == pytest.approx(result["em"] - result["warm_em"])


def test_the_gain_is_paired_and_so_is_its_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """EM 1, 0.5, 0, 1 after 0, 0.5, 0, 0.5: gains 1, 0, 0, 0.5, mean 0.375, std (ddof 1) 0.4787, / 2."""
    scores = {"after": [(1, 1), (0.5, 0), (0, 0), (1, 1)], "before": [(0, 0), (0.5, 0), (0, 0), (0.5, 0)]}

    def tested(task: ToyText, policy: str, seed: int) -> dict[str, tuple[float, float]]:
        return {str(i): score for i, score in enumerate(scores[policy])}

    monkeypatch.setattr("mempo_trainers.toy_text.tested", tested)
    monkeypatch.setattr("mempo_env.progress.QUIET_S", 0.0)
    result = evaluate(SMALL, "after", "before", 0)  # type: ignore[arg-type]
    assert "evaluation of the policy and of its warm start: 2 of 2 policies" in capsys.readouterr().err
    assert (result["em"], result["warm_em"], result["gain"]) == (0.625, 0.25, 0.375)
    assert (result["success"], result["warm_success"]) == (0.5, 0)
    assert result["gain_error"] == pytest.approx(0.2393, abs=1e-4)
    assert told(result).startswith(
        "EM on 4 episodes of the test split 0.625, over the warm start +0.375 (standard error 0.239)"
    )


def test_the_reference_is_the_warm_start_and_ppo_has_its_critic(whole: Path, tmp_path: Path) -> None:
    config = msgspec.structs.replace(LEARN, algo="ppo", steps=2, kl=0.1, epochs=2)
    (tmp_path / "run" / WARM).parent.mkdir()
    (tmp_path / "run" / WARM).symlink_to(whole / WARM)
    train(SMALL, config, tmp_path / "run", board=False)
    rows = metrics(tmp_path / "run")
    assert rows[0]["kl"] >= 0 and rows[1]["kl"] > 0
    assert all(row["value_loss"] > 0 and row["skipped_updates"] == 0 for row in rows)


def test_the_doctor_reads_it_and_says_what_the_warm_start_lacks(whole: Path) -> None:
    found = examine(whole)
    assert {"sampler_gap", "not_finite"} <= set(found.fine)
    assert found.unchecked["first_kl"] == "no reference is kept (kl 0)"
    assert "not in the metrics" in examine(whole / WARM).unchecked["no_advantage"]


def test_what_looks_at_decisions_says_that_it_can_not(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (("show", str(whole)), ("lab", "--run", str(whole), "--out", str(tmp_path / "lab"))):
        assert main(["credit", *command]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and f"{whole}: wanted a run of the array face" in error


# --- Gone on with ------------------------------------------------------------------------------------------


class Stop(BaseException):
    """What ends a process in the middle."""


@pytest.mark.slow
def test_stopped_anywhere_it_goes_on_bit_for_bit(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Around checkpoints of the warm start, between its end and its being saved, and in the training."""
    run, update = tmp_path / "run", TinyLM.update

    def stopped() -> None:
        with pytest.raises(Stop):
            train(SMALL, LEARN, run, board=False)

    def after(updates: int) -> None:
        def stop(self: TinyLM) -> float:
            nonlocal updates
            updates -= 1
            if updates < 0:
                raise Stop
            return update(self)

        monkeypatch.setattr(TinyLM, "update", stop)
        stopped()
        monkeypatch.setattr(TinyLM, "update", update)

    def unsaved(self: TinyLM, folder: Path) -> None:
        raise Stop

    for updates in (0, 3, 3):
        after(updates)
    with monkeypatch.context() as broken:
        broken.setattr(TinyLM, "save", unsaved)
        stopped()
    assert len(metrics(run / WARM)) == SMALL.warm.steps and not (run / WARM / POLICY).exists()
    for updates in (0, 3):
        after(updates)
    assert len(metrics(run)) == 3
    train(SMALL, LEARN, run, board=False)
    assert_same(run, whole)


KILLED = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from mempo_trainers.toy_text import train
from tiny_lm_help import LEARN, SMALL
train(SMALL, LEARN, Path(sys.argv[2]), board=False)
"""


@pytest.mark.slow
def test_killed_in_warm_start_and_training_it_goes_on_bit_for_bit(whole: Path, tmp_path: Path) -> None:
    def start() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", KILLED, str(Path(__file__).parent), str(run)]
        return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    def rows(folder: Path) -> int:
        return (folder / METRICS).read_bytes().count(b"\n") if (folder / METRICS).exists() else 0

    run, kills = tmp_path / "run", 0
    for folder, least in ((run / WARM, 1), (run / WARM, 5), (run, 1), (run, 4)):
        process = start()
        while process.poll() is None and rows(folder) < least:
            time.sleep(0.002)
        process.kill()
        kills += ended(process)[0] == -signal.SIGKILL
    assert kills == 4
    code, error = ended(start())
    assert code == 0, error
    assert_same(run, whole)


def test_it_goes_on_to_more_steps_from_the_same_warm_start(whole: Path, tmp_path: Path) -> None:
    train(SMALL, msgspec.structs.replace(LEARN, steps=3), tmp_path / "run", board=False)
    warm = (tmp_path / "run" / WARM / CHECKPOINT).stat().st_mtime_ns
    train(SMALL, LEARN, tmp_path / "run", board=False)
    assert (tmp_path / "run" / WARM / CHECKPOINT).stat().st_mtime_ns == warm
    assert_same(tmp_path / "run", whole)


def test_a_run_that_is_done_is_left_as_it_is(whole: Path) -> None:
    before = {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()}
    train(SMALL, LEARN, whole, board=False)
    assert {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()} == before


def test_seeds_are_of_the_warm_start_too(whole: Path, tmp_path: Path) -> None:
    for seed in (0, 1):
        warm_start(SMALL.begun(seed), tmp_path / str(seed))
    assert metrics(tmp_path / "0") == metrics(whole / WARM)
    losses = np.array([[row["loss"] for row in metrics(tmp_path / str(seed))] for seed in (0, 1)])
    assert (losses[0] != losses[1]).all()


# --- Refused -----------------------------------------------------------------------------------------------


def test_other_settings_are_refused_before_anything_is_done(whole: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*")}
    with pytest.raises(ResultsError, match=r"task.warm.steps: 6 / 7"):
        train(msgspec.structs.replace(SMALL, warm=SftConfig(steps=7)), LEARN, whole, board=False)
    with pytest.raises(ResultsError, match=r"config.seed: 0 / 3"):
        train(SMALL, msgspec.structs.replace(LEARN, seed=3), whole, board=False)
    assert {path: path.stat().st_mtime_ns for path in whole.rglob("*")} == before


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("steps", [2, 4])
def test_another_warm_start_is_refused_and_the_right_one_goes_on(
    steps: int, whole: Path, tmp_path: Path
) -> None:
    """It would be another reference for the divergence, and another policy to have gained over."""
    run, config = tmp_path / "run", msgspec.structs.replace(LEARN, kl=0.1, steps=2)
    longer = msgspec.structs.replace(config, steps=steps)
    train(SMALL, config, run, board=False)
    made, kept = run / WARM / POLICY, tmp_path / "kept"
    made.rename(kept)
    other = started(SMALL, config, whole)
    with torch.no_grad():
        next(other.model.parameters()).add_(0.1)
    other.save(made)
    before = files(run)
    with pytest.raises(ResultsError, match=f"{made}: wanted the policy that {run} began with, found another"):
        train(SMALL, longer, run, board=False)
    with pytest.raises(ResultsError, match=f"{made}: wanted the policy that {run} began with, found another"):
        restore(run)
    assert files(run) == before
    shutil.rmtree(made)
    if steps == 2:
        kept.rename(made)  # else it is made anew from its checkpoint
    for folder in (run, tmp_path / "at once"):
        train(SMALL, longer, folder, board=False)
    assert_same(run, tmp_path / "at once")


def test_a_warm_start_that_is_replaced_while_a_run_is_trained_is_not_what_it_is_held_against(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, update, held = tmp_path / "run", TinyLM.update, []

    def replaced(self: TinyLM) -> float:
        if (run / METRICS).exists() and (run / WARM / POLICY).exists():
            shutil.rmtree(run / WARM / POLICY)
        return update(self)

    def noted(task: ToyText, policy: TinyLM, warm: TinyLM, seed: int) -> dict[str, float]:
        held.append(warm)
        return {}

    train(SMALL, msgspec.structs.replace(LEARN, steps=1), tmp_path / "other", board=False)
    monkeypatch.setattr(TinyLM, "update", replaced)
    monkeypatch.setattr("mempo_trainers.toy_text.evaluate", noted)
    train(SMALL, LEARN, run, board=False)
    assert_equal(
        held[0].state_dict()["model"], started(SMALL, LEARN, tmp_path / "other").state_dict()["model"]
    )


def test_settings_of_an_array_run_are_no_run_of_tiny_lm(tmp_path: Path) -> None:
    (tmp_path / SETTINGS).write_text('{"task": {"policy": "pointer"}, "config": {}}')
    with pytest.raises(ResultsError, match="wanted the settings of a run of tiny_lm"):
        restore(tmp_path)


@pytest.mark.parametrize(
    "args, wanted",
    [
        (("--capacity", "3"), "--capacity: wanted none with --policy tiny_lm"),
        (("--hops", "2"), "--hops: wanted none with --policy tiny_lm"),
        (("--max-rounds", "2"), "max_rounds: wanted at least 3"),
        (("--objectives", "547"), "objectives: wanted at most the 546 questions about places of 'test'"),
        (("--questions", "4001"), "questions: wanted at most the 3,998 different ones, got 4,001"),
        (("--retriever-noise", "2"), "retriever_noise: wanted a number from 0 to 1, got 2"),
        (("--reward", "em_al"), "did you mean 'em_all'?"),
        (("--steps", "0"), "steps: wanted a whole number from 1"),
        (("--seed", "-1"), "seed: wanted a whole number from 0"),
        (("--credit", "mempoo"), "did you mean 'mempo'?"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_leaves_nothing(
    args: tuple[str, str], wanted: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", "toy", "--policy", "tiny_lm", *args, "--out", str(tmp_path / "run")]
    assert main(command) == 2
    error = capsys.readouterr().err
    assert wanted in error and error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_the_command_is_the_function_with_the_defaults_of_the_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []

    def trained(task: ToyText, config: Any, out: Path, track: list[str]) -> dict[str, float]:
        asked[:] = [task, config, out, track]
        names = ("em", "success", "warm_em", "warm_success", "gain", "gain_error")
        return {**dict.fromkeys(names, 0.25), "episodes": 273}

    monkeypatch.setattr("mempo_trainers.toy_text.train", trained)
    out = tmp_path / "run"
    assert (
        main(["train", "toy", "--policy", "tiny_lm", "--out", str(out), "--seed", "5", "--algo", "ppo"]) == 0
    )
    seeded = msgspec.structs.replace(CONFIG, seed=5, algo="ppo")
    assert asked == [ToyText(warm=SftConfig(steps=150, seed=5)), seeded, out, []]
    printed = capsys.readouterr().out
    assert f"{out}: EM on 273 episodes of the test split 0.250, over the warm start +0.250" in printed
    assert f"next: mempo doctor {out}" in printed and "credit show" not in printed
