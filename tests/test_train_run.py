"""A training run on disk: killed and gone on with, reproduced, refused where it is of something else."""

from __future__ import annotations

import json
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec
import pytest
import torch

from mempo_env.cli import main
from mempo_env.errors import ResultsError
from mempo_trainers.config import Config
from mempo_trainers.policies.base import Policy, Rollouts
from mempo_trainers.run import CHECKPOINT, METRICS, SETTINGS, Run, load, read_metrics
from mempo_trainers.sample import Draw
from mempo_trainers.toy import RESULT, Toy, ToyDraw, restore
from train_help import CONFIG, TASK, ended, mempo, metrics, toy, train, with_config

COMMAND = ("train", "toy", "--objectives", "1", "--steps", "5", "--questions", "2", "--rollouts", "2")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of `COMMAND` that nothing disturbed."""
    run = tmp_path_factory.mktemp("whole") / "run"
    assert main([*COMMAND, "--out", str(run)]) == 0
    return run


def copied(run: Path, folder: Path) -> Path:
    return Path(shutil.copytree(run, folder / "copy"))


def weights(out: Path) -> dict[str, torch.Tensor]:
    state = torch.load(out / CHECKPOINT, weights_only=True)["policy"]
    adam = state["optimizer"]["state"]
    return {**state["heads"], **{f"{i}.{name}": adam[i][name] for i in adam for name in adam[i]}}


def assert_same(one: Path, other: Path) -> None:
    """Equal metrics, weights and states of the optimiser, bit for bit."""
    assert metrics(one) == metrics(other)
    here, there = weights(one), weights(other)
    assert here.keys() == there.keys()
    for name, value in here.items():
        assert torch.equal(value, there[name]), name


# --- Gone on with ------------------------------------------------------------------------------------------


class Stop(Exception):
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
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, longer = copied(whole, tmp_path), [*COMMAND, "--steps", "9"]
    assert main([*longer, "--out", str(tmp_path / "at once")]) == 0
    assert "goes on" not in capsys.readouterr().err
    assert main([*longer, "--out", str(run)]) == 0
    assert f"{run}: goes on from step 5 to 9\n" in capsys.readouterr().err
    assert_same(run, tmp_path / "at once")
    assert (run / RESULT).read_bytes() == (tmp_path / "at once" / RESULT).read_bytes()


def test_stopped_on_the_way_to_more_steps_it_has_no_result_and_goes_on(whole: Path, tmp_path: Path) -> None:
    run, config = copied(whole, tmp_path), Config(steps=9, questions=2, rollouts=2)
    with pytest.raises(Stop):
        train(run, Toy(objectives=1), config, draw=stopping(7, Toy(objectives=1), config))
    assert not (run / RESULT).exists()
    train(run, Toy(objectives=1), msgspec.structs.replace(config, steps=6))  # as far as is done
    train(run, Toy(objectives=1), config)
    train(tmp_path / "at once", Toy(objectives=1), config)
    assert_same(run, tmp_path / "at once")


def test_a_run_that_is_done_is_left_as_it_is(whole: Path, tmp_path: Path) -> None:
    run = copied(whole, tmp_path)
    assert main([*COMMAND, "--out", str(run)]) == 0
    for name in (METRICS, CHECKPOINT, SETTINGS, RESULT):
        assert (run / name).read_bytes() == (whole / name).read_bytes()


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
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorboard")
    run, full = tmp_path / "run", tmp_path / "events.out.tfevents.0"
    full.symlink_to("/dev/full")
    with monkeypatch.context() as patch:
        patch.setattr("mempo_trainers.board.event_file", lambda folder: full)
        assert main([*COMMAND, "--out", str(run)]) == 2
    assert capsys.readouterr().err == f"mempo: {full}: No space left on device\n"
    assert len(read_metrics(run)) == 1 and load(run, Toy(objectives=1).make_policy(Config())) == 1
    assert main([*COMMAND, "--out", str(run)]) == 0
    assert_same(run, whole)


# --- Reproduced --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", VARIANTS)
def test_equal_seeds_make_equal_runs_and_others_do_not(name: str, tmp_path: Path) -> None:
    task, config = VARIANTS[name]
    for out, seed in (("one", 0), ("same", 0), ("other", 1)):
        train(tmp_path / out, task, msgspec.structs.replace(config, seed=seed))
        torch.rand(3)  # chance that is no part of the run
    assert_same(tmp_path / "one", tmp_path / "same")
    assert metrics(tmp_path / "one") != metrics(tmp_path / "other")


def test_the_command_writes_what_the_function_does(whole: Path, tmp_path: Path) -> None:
    config = Config(steps=5, questions=2, rollouts=2)
    train(tmp_path / "run", Toy(objectives=1), config)
    assert_same(tmp_path / "run", whole)
    task, there, policy = restore(whole)
    assert (task, there) == (Toy(objectives=1), config)
    fresh = task.make_policy(config)
    assert load(whole, fresh) == 5
    for name, value in fresh.heads.state_dict().items():
        assert torch.equal(value, policy.heads.state_dict()[name])


# --- Refused -----------------------------------------------------------------------------------------------


def refused(run: Path, capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """The one line that the command ends with; nothing that was there has changed."""
    before = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
    assert main([*COMMAND, "--out", str(run), *args]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error.startswith("mempo: ")
    assert {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()} == before
    return error


def test_other_settings_are_refused_by_their_names(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copied(whole, tmp_path)
    error = refused(run, capsys, "--seed", "7", "--reward", "em_mean")
    assert "(there / here: config.seed: 0 / 7; task.reward: 'em_all' / 'em_mean')" in error
    assert "config.credit_options.pool: None / 'round'" in refused(run, capsys, "--option", "pool=round")
    more = refused(run, capsys, "--seed", "7", "--steps", "6")
    assert "(there / here: config.seed: 0 / 7; config.steps: 5 / 6)" in more


def test_fewer_steps_than_are_done_are_refused(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copied(whole, tmp_path)
    error = refused(run, capsys, "--steps", "4")
    assert error == f"mempo: {run}: wanted at least the 5 steps that are done, got 4; choose another --out\n"


@pytest.mark.slow
def test_a_second_process_is_refused(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = copied(whole, tmp_path)
    settings = json.loads((run / SETTINGS).read_text())
    with Run(run, {name: value for name, value in settings.items() if name != "format"}):
        code, error = ended(mempo(*COMMAND, "--out", run))
    assert code == 2
    assert error == (
        f"mempo: {run}: another process trains here; wait until it ends, or choose another --out\n"
    )
    assert main([*COMMAND, "--out", str(run)]) == 0


@pytest.mark.slow
def test_of_two_processes_that_start_together_one_writes_the_run(whole: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    both = [mempo(*COMMAND, "--out", run) for _ in range(2)]
    codes = sorted(ended(process)[0] for process in both)
    assert codes in ([0, 2], [0, 0])  # the second may come after the first is done
    assert_same(run, whole)


def cut(lines: list[bytes]) -> None:
    lines[2] = lines[2][: len(lines[2]) // 2] + b"\n"


def empty(lines: list[bytes]) -> None:
    lines[2] = b"\n"


def binary(lines: list[bytes]) -> None:
    lines[2] = b"\xff\x00\n"


def nested(lines: list[bytes]) -> None:
    lines[2] = b"[" * 100_000 + b"\n"


def no_object(lines: list[bytes]) -> None:
    lines[2] = b"3\n"


def gone(lines: list[bytes]) -> None:
    del lines[2]


def twice(lines: list[bytes]) -> None:
    lines.insert(2, lines[1])


def renumbered(lines: list[bytes]) -> None:
    lines[2] = lines[2].replace(b'"step":3', b'"step":"3"')


@pytest.mark.parametrize("damage", [cut, empty, binary, nested, no_object, gone, twice, renumbered])
def test_damaged_metrics_are_refused_by_their_line(
    damage: Callable[[list[bytes]], None], whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copied(whole, tmp_path)
    lines = (run / METRICS).read_bytes().splitlines(keepends=True)
    damage(lines)
    (run / METRICS).write_bytes(b"".join(lines))
    assert f"{run / METRICS}:3: " in refused(run, capsys)


def test_fewer_rows_than_the_checkpoint_are_refused(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copied(whole, tmp_path)
    lines = (run / METRICS).read_bytes().splitlines(keepends=True)
    (run / METRICS).write_bytes(b"".join(lines[:3]))
    assert "wanted the rows of 5 steps as they were written, found 3" in refused(run, capsys)


def test_an_edited_number_is_refused(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = copied(whole, tmp_path)
    text = (run / METRICS).read_bytes()
    (run / METRICS).write_bytes(text.replace(b'"success":0.0', b'"success":1.0', 1))
    assert (run / METRICS).read_bytes() != text
    assert "as they were written" in refused(run, capsys)


@pytest.mark.parametrize("text", [b"", b"{", b"null", b"[]", b'{"task": 3}', b"\xff", b"[" * 100_000])
def test_damaged_settings_are_refused(
    text: bytes, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copied(whole, tmp_path)
    (run / SETTINGS).write_bytes(text)
    assert SETTINGS in refused(run, capsys) or text == b'{"task": 3}'
    with pytest.raises(ResultsError, match=SETTINGS):
        restore(run)


def test_metrics_without_settings_are_refused(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copied(whole, tmp_path)
    (run / SETTINGS).unlink()
    assert f"holds {METRICS} without {SETTINGS}" in refused(run, capsys)


def no_zip(run: Path) -> None:
    (run / CHECKPOINT).write_bytes(b"no checkpoint")


def nothing(run: Path) -> None:
    (run / CHECKPOINT).write_bytes(b"")


def truncated(run: Path) -> None:
    whole = (run / CHECKPOINT).read_bytes()
    (run / CHECKPOINT).write_bytes(whole[: len(whole) // 2])


def flipped(run: Path) -> None:
    """One bit of one weight."""
    whole = bytearray((run / CHECKPOINT).read_bytes())
    weight = weights(run)["keep.hidden.weight"].numpy().tobytes()
    whole[whole.index(weight) + 10] ^= 1
    (run / CHECKPOINT).write_bytes(bytes(whole))


def changed(run: Path, **parts: object) -> None:
    state = torch.load(run / CHECKPOINT, weights_only=True)
    torch.save({**state, **parts}, run / CHECKPOINT)


def of_another_policy(run: Path) -> None:
    changed(run, policy=Toy(policy="tabular").make_policy(CONFIG).state_dict())


def of_another_run(run: Path) -> None:
    """Of the same policy, after as many steps."""
    other = run.parent / "other"
    train(other, Toy(objectives=1), Config(steps=5, questions=2, rollouts=2, seed=1))
    shutil.copy(other / CHECKPOINT, run / CHECKPOINT)


def of_nobody_knows_what(run: Path) -> None:
    """As checkpoints were before they told their settings."""
    state = torch.load(run / CHECKPOINT, weights_only=True)
    del state["settings"]
    torch.save(state, run / CHECKPOINT)


def no_numbers(run: Path) -> None:
    policy = torch.load(run / CHECKPOINT, weights_only=True)["policy"]
    policy["heads"]["keep.hidden.weight"][0, 0] = torch.nan
    changed(run, policy=policy)


def no_moments(run: Path) -> None:
    policy = torch.load(run / CHECKPOINT, weights_only=True)["policy"]
    policy["optimizer"]["state"][0]["exp_avg"].fill_(torch.inf)
    changed(run, policy=policy)


def without_policy(run: Path) -> None:
    torch.save({"format": 1, "step": 5}, run / CHECKPOINT)


def no_number(run: Path) -> None:
    changed(run, step="many")


class _Code:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, ("raise SystemExit('it was run')",)


def code(run: Path) -> None:
    torch.save({"format": 1, "step": 5, "policy": _Code()}, run / CHECKPOINT)


DAMAGES = (
    *(no_zip, nothing, truncated, flipped, of_another_policy, of_another_run, of_nobody_knows_what),
    *(no_numbers, no_moments, without_policy, no_number, code),
)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_refused(
    damage: Callable[[Path], None], whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copied(whole, tmp_path)
    damage(run)
    error = refused(run, capsys)
    assert f"{run / CHECKPOINT}: wanted a checkpoint of this policy" in error
    assert "start anew in another folder" in error
    with pytest.raises(ResultsError, match="wanted a checkpoint of this policy"):
        restore(run)


def test_a_checkpoint_beside_edited_settings_is_refused(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copied(whole, tmp_path)
    text = (run / SETTINGS).read_text()
    (run / SETTINGS).write_text(text.replace('"retriever_noise": 0.0', '"retriever_noise": 0.5'))
    assert (run / SETTINGS).read_text() != text
    with pytest.raises(ResultsError, match="got one of another run, or settings"):
        restore(run)
    assert main(["credit", "show", str(run)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_place_that_can_not_be_written_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("mine")
    assert main([*COMMAND, "--out", str(tmp_path / "file" / "run")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and str(tmp_path / "file") in error


@pytest.mark.parametrize(
    "args, told",
    [
        (("--credit", "mempoo"), "unknown credit 'mempoo': did you mean 'mempo'?"),
        (("--algo", "grppo"), "unknown algo 'grppo': did you mean 'grpo'?"),
        (("--policy", "pointr"), "did you mean 'pointer'?"),
        (("--reward", "em_al"), "did you mean 'em_all'?"),
        (("--aggregation", "token-men"), "did you mean 'token-mean'?"),
        (("--option", "pol=all"), "did you mean 'pool'?"),
        (("--option", "pool=al"), "did you mean 'all'?"),
        (("--option", "pool"), "wanted NAME=VALUE"),
        (("--option", "weight=much"), "weight: wanted a number"),
        (("--algo", "ppo", "--credit", "mempoo"), "did you mean 'mempo'?"),
        (("--algo", "ppo", "--credit", "rloo"), "credit for ppo"),
        (("--credit", "gae"), "wanted a critic"),
        (("--steps", "0"), "steps: wanted a whole number from 1 to"),
        (("--learning-rate", "nan"), "learning_rate: wanted a number above 0, at most 10,000, got nan"),
        (("--seed", "-1"), "seed: wanted a whole number from 0 to"),
        (("--kl", "-1"), "kl: wanted a number from 0 to"),
        (("--objectives", "0"), "objectives: wanted"),
        (("--capacity", "0"), "capacity"),
        (("--capacity", "10001"), "capacity: wanted a whole number from 1 to 10,000, or None, got 10001"),
        (("--max-rounds", "1000000000"), "max_rounds: wanted a whole number from 1 to 10,000"),
        (("--objectives", "1000000"), "objectives: wanted at most the 600 questions of 'train'"),
        (("--objectives", "201"), "objectives: wanted at most the 200 questions of 'test'"),
        (("--credit", "placebo", "--option", "seed=-1"), "seed: wanted"),
        (("--seed", str(2**63)), "seed: wanted a whole number from 0 to 9.22e+18, got 9223372036854775808"),
        (("--retriever-noise", "2"), "retriever_noise: wanted a number from 0 to 1, got 2"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_leaves_nothing(
    args: tuple[str, str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*COMMAND, *args, "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
