"""Ctrl-C, and a step that ends without a rollout, lose no step that was done."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from mempo_agents.models.base import ModelError
from mempo_env.errors import ConfigError, RolloutError
from mempo_trainers import checkpoint, credit
from mempo_trainers.credit import Credit, Trajectories
from mempo_trainers.grpo import grpo
from mempo_trainers.policies.base import Rollouts
from mempo_trainers.run import Run
from mempo_trainers.run_files import CHECKPOINT, read_metrics
from mempo_trainers.toy import ToyDraw
from train_help import CONFIG, TASK, assert_same, ended, metrics, toy

LONG = ("--steps", "100000", "--questions", "2", "--rollouts", "2", "--objectives", "1")


def wait_for_steps(run: Path, process: subprocess.Popen[str], number: int) -> None:
    file = run / "metrics.jsonl"
    while not file.exists() or file.read_bytes().count(b"\n") < number:
        assert process.poll() is None, process.communicate()


def test_an_interrupted_run_saves_its_step_and_leaves(tmp_path: Path) -> None:
    process = toy(tmp_path / "run", *LONG)
    wait_for_steps(tmp_path / "run", process, 3)
    process.send_signal(signal.SIGINT)
    code, err = ended(process)
    done = len(read_metrics(tmp_path / "run"))
    assert code == 130 and "interrupt once more" in err
    assert checkpoint.read(tmp_path / "run" / CHECKPOINT)["step"] == done
    whole, rest = (toy(tmp_path / name, *LONG, "--steps", str(done + 3)) for name in ("whole", "run"))
    assert ended(whole)[0] == ended(rest)[0] == 0
    assert_same(tmp_path / "run", tmp_path / "whole")


def test_a_second_interrupt_leaves_at_once() -> None:
    script = (
        "import os, signal, time\nfrom mempo_trainers.interrupt import held\n"
        "with held('wait'):\n    os.kill(os.getpid(), 2)\n    print('held', flush=True)\n"
        "    os.kill(os.getpid(), 2)\n    print('never')\n"
    )
    made = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert made.stdout == "held\n" and made.stderr.startswith("\nwait\n")
    assert "KeyboardInterrupt" in made.stderr


def test_a_handler_of_somebody_else_stays() -> None:
    script = (
        "import os, signal\nfrom mempo_trainers.interrupt import held\n"
        "signal.signal(signal.SIGINT, lambda *_: print('theirs'))\n"
        "with held('wait') as asked:\n    os.kill(os.getpid(), 2)\n    print(asked())\n"
    )
    made = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert made.stdout == "theirs\nFalse\n"


def train_failing(out: Path, fails: str = "", error: Exception | None = None) -> None:
    """A run whose fourth step fails: before it has learned ("draw", "estimate"), or after ("watch")."""
    config = msgspec.structs.replace(CONFIG, checkpoint_every=100, credit="test_train_interrupt:failing")
    policy = TASK.make_policy(config)
    drawn = ToyDraw(policy, TASK, config.rollouts, config.seed)
    failing.left = 3 if fails == "estimate" else 1_000
    failing.error = error

    def draw(step: int, attempt: int, questions: int) -> Rollouts:
        if fails == "draw" and step == 4:
            raise error or AssertionError
        return drawn(step, attempt, questions)

    def watch(step: int) -> Mapping[str, float]:
        if fails == "watch" and step == 4:
            raise error or AssertionError
        return {}

    with Run(out, {"config": msgspec.to_builtins(config)}) as run:
        grpo(policy, draw, config, run, watch)


class Failing:
    """An estimator of a user's own that raises after some steps."""

    left = 0
    error: Exception | None = None

    def __call__(self, data: Trajectories) -> Credit:
        if not self.left:
            raise self.error or AssertionError
        self.left -= 1
        return credit.make("grpo")(data)


failing = Failing()


def test_a_step_that_fails_when_something_was_learned_is_not_saved_as_the_one_before(tmp_path: Path) -> None:
    policy = TASK.make_policy(CONFIG)
    with pytest.raises(ZeroDivisionError), Run(tmp_path / "run", {"config": {"steps": 6}}) as run:
        for step in run.steps(policy, 6, 2):
            policy.heads.unknown.sum().backward()  # type: ignore[no-untyped-call]
            policy.update()
            run.log(step, loss=1 / (4 - step))
    assert checkpoint.read(tmp_path / "run" / CHECKPOINT)["step"] == 2


@pytest.mark.parametrize(
    ("fails", "error", "saved"),
    [
        ("draw", RolloutError("the server is down"), 3),
        ("draw", ConfigError("a history is too long"), 3),
        ("estimate", ZeroDivisionError("a fault of the user's"), 3),
        ("watch", ModelError("the server is down"), 4),
    ],
)
def test_a_step_or_watch_that_fails_ends_the_run_after_a_checkpoint(
    tmp_path: Path, fails: str, error: Exception, saved: int
) -> None:
    """Of all steps that the policy has learned from."""
    with pytest.raises(type(error), match=str(error)):
        train_failing(tmp_path / "run", fails, error)
    assert checkpoint.read(tmp_path / "run" / CHECKPOINT)["step"] == saved == len(metrics(tmp_path / "run"))
    train_failing(tmp_path / "run")
    train_failing(tmp_path / "whole")
    assert_same(tmp_path / "run", tmp_path / "whole")


@pytest.mark.parametrize("fails", ["estimate", "watch"])
def test_a_checkpoint_that_can_not_be_written_does_not_hide_why_the_run_ends(
    fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "write", full)
    with pytest.raises(ZeroDivisionError, match="a fault of the user's"):
        train_failing(tmp_path / "run", fails, ZeroDivisionError("a fault of the user's"))
    (told,) = [line for line in capsys.readouterr().err.splitlines() if "not saved" in line]
    assert told.startswith(f"{tmp_path / 'run'}: the steps since the last checkpoint are not saved (OSError")
