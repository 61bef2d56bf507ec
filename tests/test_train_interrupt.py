"""Ctrl-C, and a step that ends without a rollout, lose no step that was done."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from mempo_env.errors import RolloutError
from mempo_trainers import checkpoint
from mempo_trainers.grpo import grpo
from mempo_trainers.run import CHECKPOINT, Run, read_metrics
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


def test_a_step_without_rollouts_ends_the_run_after_its_checkpoint(tmp_path: Path) -> None:
    config = msgspec.structs.replace(CONFIG, checkpoint_every=100)

    def train(out: Path, fails: bool) -> None:
        policy = TASK.make_policy(config)
        drawn = ToyDraw(policy, TASK, config.rollouts, config.seed)

        def draw(step: int, attempt: int, questions: int):  # type: ignore[no-untyped-def]
            if fails and step == 4:
                raise RolloutError("the server is down")
            return drawn(step, attempt, questions)

        with Run(out, {"config": msgspec.to_builtins(config)}) as run:
            grpo(policy, draw, config, run)

    with pytest.raises(RolloutError, match="the server is down"):
        train(tmp_path / "run", fails=True)
    assert checkpoint.read(tmp_path / "run" / CHECKPOINT)["step"] == 3 == len(metrics(tmp_path / "run"))
    train(tmp_path / "run", fails=False)
    train(tmp_path / "whole", fails=False)
    assert_same(tmp_path / "run", tmp_path / "whole")
