"""A training run on disk: killed and gone on with, and reproduced."""

from __future__ import annotations

import json
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from mempo_env.cli import main
from mempo_env.errors import ResultsError
from mempo_trainers.config import Config
from mempo_trainers.policies.base import Policy, Rollouts
from mempo_trainers.run import Run, load
from mempo_trainers.run_files import (
    CHECKPOINT,
    METRICS,
    RESULT,
    SETTINGS,
    conclude,
    read_metrics,
    read_result,
)
from mempo_trainers.sample import Draw
from mempo_trainers.toy import Toy, ToyDraw, restore
from train_help import (
    COMMAND,
    CONFIG,
    TASK,
    assert_same,
    copied,
    ended,
    metrics,
    toy,
    train,
    with_config,
)

# --- Gone on with ------------------------------------------------------------------------------------------


class Stop(BaseException):
    """What ends a process in the middle."""


def stopping(step: int, task: Toy = TASK, config: Config = CONFIG) -> Callable[[Policy], Draw]:
    """Draws as ever, but fails at a step."""

    def make(policy: Policy) -> Draw:
        draw = ToyDraw(policy, task, config.rollouts, config.seed)  # type: ignore[arg-type]

        def stop(number: int, attempt: int, questions: int) -> Rollouts:
            if number == step:
                raise Stop
            return draw(number, attempt, questions)

        return stop

    return make


VARIANTS = {
    "grpo": (TASK, CONFIG),
    "tabular, two epochs, divergence": (
        msgspec.structs.replace(TASK, policy="tabular"),
        with_config(epochs=2, kl=0.1),
    ),
    "ppo": (TASK, with_config(algo="ppo")),
    "noise, dynamic sampling": (
        msgspec.structs.replace(TASK, retriever_noise=0.3),
        with_config(credit="grpo", dynamic_sampling=3),
    ),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_stopped_at_any_step_it_goes_on_bit_for_bit(name: str, tmp_path: Path) -> None:
    task, config = VARIANTS[name]
    train(tmp_path / "whole", task, config)

    for step in range(1, config.steps + 1):
        run = tmp_path / str(step)
        with pytest.raises(Stop):
            train(run, task, config, draw=stopping(step, task, config))
        assert len(metrics(run)) == step - 1
        train(run, task, config)
        assert_same(run, tmp_path / "whole")
    stopped_often = tmp_path / "often"
    for step in range(1, config.steps + 1):
        with pytest.raises(Stop):
            train(stopped_often, task, config, draw=stopping(step, task, config))
    train(stopped_often, task, config)
    assert_same(stopped_often, tmp_path / "whole")


LONG = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from train_help import train, with_config
train(Path(sys.argv[2]), config=with_config(steps=36, questions=2, checkpoint_every=5))
"""


@pytest.mark.slow
def test_killed_at_random_moments_it_goes_on_bit_for_bit(tmp_path: Path) -> None:
    def start(out: Path) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", LONG, str(Path(__file__).parent), str(out)]
        return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    def rows(out: Path) -> int:
        return (out / METRICS).read_bytes().count(b"\n") if (out / METRICS).exists() else 0

    train(tmp_path / "whole", config=with_config(steps=36, questions=2, checkpoint_every=5))
    chance, run, kills = random.Random(7), tmp_path / "run", 0
    for least in (0, 3, 12, 22, 31):
        process = start(run)
        while process.poll() is None and rows(run) < least:
            time.sleep(0.002)
        time.sleep(chance.uniform(0, 0.05))
        process.kill()
        kills += ended(process)[0] == -signal.SIGKILL
    assert kills >= 4
    code, error = ended(start(run))
    assert code == 0, error
    assert_same(run, tmp_path / "whole")


@pytest.mark.parametrize("keep", [1, 100, -1], ids=["a byte", "a start", "all but its end"])
def test_half_a_row_at_the_end_is_made_again(keep: int, tmp_path: Path) -> None:
    train(tmp_path / "whole")
    with pytest.raises(Stop):
        train(tmp_path / "run", draw=stopping(6))
    last = (tmp_path / "whole" / METRICS).read_bytes().splitlines(keepends=True)[-1]
    with (tmp_path / "run" / METRICS).open("ab") as file:
        file.write(last[:keep])
    assert len(read_metrics(tmp_path / "run")) == 5
    train(tmp_path / "run")
    assert_same(tmp_path / "run", tmp_path / "whole")


@pytest.mark.parametrize("name", VARIANTS)
def test_a_run_goes_on_to_more_steps_as_if_it_had_been_meant_to(name: str, tmp_path: Path) -> None:
    task, config = VARIANTS[name]
    train(tmp_path / "whole", task, config)
    for steps in (1, 3, config.steps):
        train(tmp_path / "run", task, msgspec.structs.replace(config, steps=steps))
    assert_same(tmp_path / "run", tmp_path / "whole")
    assert (tmp_path / "run" / SETTINGS).read_bytes() == (tmp_path / "whole" / SETTINGS).read_bytes()


def test_the_command_goes_on_to_more_steps_and_says_from_where(
    toy_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, longer = copied(toy_run, tmp_path), [*COMMAND, "--steps", "9"]
    assert main([*longer, "--out", str(tmp_path / "at once")]) == 0
    assert "goes on" not in capsys.readouterr().err
    assert main([*longer, "--out", str(run)]) == 0
    assert f"{run}: goes on from step 5 to 9\n" in capsys.readouterr().err
    assert_same(run, tmp_path / "at once")
    assert (run / RESULT).read_bytes() == (tmp_path / "at once" / RESULT).read_bytes()


def test_stopped_on_the_way_to_more_steps_it_has_no_result_and_goes_on(toy_run: Path, tmp_path: Path) -> None:
    run, config = copied(toy_run, tmp_path), Config(steps=9, questions=2, rollouts=2)
    with pytest.raises(Stop):
        train(run, Toy(objectives=1), config, draw=stopping(7, Toy(objectives=1), config))
    assert not (run / RESULT).exists()
    train(run, Toy(objectives=1), msgspec.structs.replace(config, steps=6))  # as far as is done
    train(run, Toy(objectives=1), config)
    train(tmp_path / "at once", Toy(objectives=1), config)
    assert_same(run, tmp_path / "at once")


def rewritten(file: Path) -> None:
    """The same settings in another form: names in another order, 1 for 1.0 and 2.0 for 2."""

    def other(value: Any) -> Any:
        match value:
            case dict():
                return {name: other(value[name]) for name in reversed(value)}
            case bool():
                return value
            case int():
                return float(value)
            case float() if value.is_integer():
                return int(value)
        return value

    file.write_text(json.dumps(other(json.loads(file.read_text()))))


def test_settings_of_the_same_values_are_the_same_settings(toy_run: Path, tmp_path: Path) -> None:
    """However they are written, a run goes on: as far as it was, and further."""
    run = copied(toy_run, tmp_path)
    rewritten(run / SETTINGS)
    before = {name: (run / name).read_bytes() for name in (METRICS, CHECKPOINT, SETTINGS, RESULT)}
    assert b'"kl": 0,' in before[SETTINGS] and before[SETTINGS] != (toy_run / SETTINGS).read_bytes()
    assert main([*COMMAND, "--out", str(run)]) == 0
    assert {name: (run / name).read_bytes() for name in before} == before
    for name in ("at once", run.name):
        assert main([*COMMAND, "--steps", "7", "--out", str(tmp_path / name)]) == 0
    assert_same(run, tmp_path / "at once")


def test_settings_without_an_end_go_on_in_another_form(tmp_path: Path) -> None:
    """As those of the warm start of a language model are."""
    with Run(tmp_path, {"task": {"width": 96, "noise": 1.0}}):
        rewritten(tmp_path / SETTINGS)
    with Run(tmp_path, {"task": {"width": 96, "noise": 1.0}}):
        assert json.loads((tmp_path / SETTINGS).read_text())["task"] == {"noise": 1, "width": 96.0}
    (tmp_path / SETTINGS).write_text(
        '{"format": 2, "task": {"width": 96, "noise": 1}, "config": {"steps": 3}}'
    )
    (tmp_path / METRICS).write_text('{"step":1}\n')  # a step is done
    with (
        pytest.raises(ResultsError, match=r"config\.steps: 3 / None"),
        Run(tmp_path, {"task": {"width": 96, "noise": 1.0}}),
    ):
        raise AssertionError


def test_rows_before_the_first_checkpoint_are_steps_that_were_done(tmp_path: Path) -> None:
    """Other settings are refused from the first of them on, and it is said how many there are."""
    with pytest.raises(Stop):
        train(tmp_path / "run", TASK, with_config(checkpoint_every=100), draw=stopping(3))
    with pytest.raises(
        ResultsError, match="found none, for 2 steps were done since it began; let the run go"
    ):
        restore(tmp_path / "run")
    with pytest.raises(ResultsError, match=r"other settings .*config\.entropy: 0\.0 / 0\.1"):
        train(tmp_path / "run", TASK, with_config(checkpoint_every=100, entropy=0.1))


def test_a_run_whose_checkpoint_was_deleted_does_not_begin_anew(
    toy_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copied(toy_run, tmp_path)
    (run / CHECKPOINT).unlink()
    before = (run / METRICS).read_bytes()
    for more in ((), ("--steps", "9")):
        assert main([*COMMAND, *more, "--out", str(run)]) == 2
        assert (
            "a run that is finished, found none; put it back, or choose another --out"
            in capsys.readouterr().err
        )
        assert (run / METRICS).read_bytes() == before
    (run / RESULT).unlink()
    rows = b"".join(b'{"step":%d}\n' % step for step in range(1, 22))  # more than there are to a checkpoint
    (run / METRICS).write_bytes(rows)
    assert main([*COMMAND, "--steps", "30", "--out", str(run)]) == 2
    assert "of which 21 steps are done, found none" in capsys.readouterr().err
    assert (run / METRICS).read_bytes() == rows


def test_another_server_leaves_the_result_of_a_finished_run(tmp_path: Path) -> None:
    def settings(url: str, steps: int) -> dict[str, Any]:
        return {"config": {"steps": steps}, "sampler": {"url": url}}

    with Run(tmp_path, settings("http://a", 2)) as run:
        for step in run.steps(TASK.make_policy(CONFIG), 2, 1):
            run.log(step, loss=0.0)
    conclude(tmp_path, {"em": 0.5})
    with Run(tmp_path, settings("http://b", 2)):
        assert read_result(tmp_path) == {"em": 0.5}
    with Run(tmp_path, settings("http://b", 3)):
        assert not (tmp_path / RESULT).exists()


def test_a_run_that_is_done_is_left_as_it_is(toy_run: Path, tmp_path: Path) -> None:
    run = copied(toy_run, tmp_path)
    assert main([*COMMAND, "--out", str(run)]) == 0
    for name in (METRICS, CHECKPOINT, SETTINGS, RESULT):
        assert (run / name).read_bytes() == (toy_run / name).read_bytes()


@pytest.mark.slow
def test_ctrl_c_ends_in_one_line_and_leaves_a_run_to_go_on_with(tmp_path: Path) -> None:
    args = ("--objectives", "2", "--steps", "60", "--questions", "2", "--rollouts", "2")
    listen = partial(
        signal.signal, signal.SIGINT, signal.SIG_DFL
    )  # what shells start behind & ignores ctrl-C
    process = toy(tmp_path / "run", *args, preexec_fn=listen)
    while process.poll() is None and not (tmp_path / "run" / CHECKPOINT).exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    code, error = ended(process)
    assert code == 130, error
    assert error.splitlines()[-1] == "mempo: interrupted; what was finished is kept"
    assert "Traceback" not in error
    assert 20 <= len(read_metrics(tmp_path / "run")) < 60
    restore(tmp_path / "run")
    for name in ("run", "whole"):
        assert main(["train", "toy", "--out", str(tmp_path / name), *args]) == 0
    assert_same(tmp_path / "run", tmp_path / "whole")


@contextmanager
def no_file_above(size: int) -> Iterator[None]:
    """A disk that is full for every file of this size (bytes)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("name, limit", [(SETTINGS, 300), (METRICS, 1_000), (CHECKPOINT, 15_000)])
def test_a_full_disk_names_the_file_and_the_run_goes_on_later(name: str, limit: int, tmp_path: Path) -> None:
    train(tmp_path / "whole")
    with no_file_above(limit), pytest.raises(OSError, match="File too large") as caught:
        train(tmp_path / "run")
    assert caught.value.filename == str(tmp_path / "run" / name)
    assert not [path.name for path in (tmp_path / "run").iterdir() if path.name.startswith(".")]
    train(tmp_path / "run")
    assert_same(tmp_path / "run", tmp_path / "whole")


def test_a_full_disk_under_tensorboard_ends_the_run_after_its_checkpoint(
    toy_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorboard", reason="needs mempo[tensorboard]")
    run, full = tmp_path / "run", tmp_path / "events.out.tfevents.0"
    full.symlink_to("/dev/full")
    with monkeypatch.context() as patch:
        patch.setattr("mempo_trainers.board.event_file", lambda folder: full)
        assert main([*COMMAND, "--out", str(run)]) == 2
    assert capsys.readouterr().err == f"mempo: {full}: No space left on device\n"
    assert len(read_metrics(run)) == 1 and load(run, Toy(objectives=1).make_policy(Config())) == 1
    assert main([*COMMAND, "--out", str(run)]) == 0
    assert_same(run, toy_run)


# --- Reproduced --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", VARIANTS)
def test_equal_seeds_make_equal_runs_and_others_do_not(name: str, tmp_path: Path) -> None:
    task, config = VARIANTS[name]
    for out, seed in (("one", 0), ("same", 0), ("other", 1)):
        train(tmp_path / out, task, msgspec.structs.replace(config, seed=seed))
        torch.rand(3)  # chance that is no part of the run
    assert_same(tmp_path / "one", tmp_path / "same")
    assert metrics(tmp_path / "one") != metrics(tmp_path / "other")


def test_the_command_writes_what_the_function_does(toy_run: Path, tmp_path: Path) -> None:
    config = Config(steps=5, questions=2, rollouts=2)
    train(tmp_path / "run", Toy(objectives=1), config)
    assert_same(tmp_path / "run", toy_run)
    task, there, policy = restore(toy_run)
    assert (task, there) == (Toy(objectives=1), config)
    fresh = task.make_policy(config)
    assert load(toy_run, fresh) == 5
    for name, value in fresh.heads.state_dict().items():
        assert torch.equal(value, policy.heads.state_dict()[name])
