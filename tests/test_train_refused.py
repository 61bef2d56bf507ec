"""A training run on disk: refused where it is damaged, of something else, or in use; and bad input."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from mempo_env.cli import main
from mempo_env.errors import ResultsError
from mempo_trainers import checkpoint
from mempo_trainers.config import Config
from mempo_trainers.run import Run
from mempo_trainers.run_files import CHECKPOINT, METRICS, SETTINGS
from mempo_trainers.toy import Toy, restore
from train_help import (
    COMMAND,
    CONFIG,
    assert_same,
    copied,
    ended,
    mempo,
    train,
    weights,
)


def refused(run: Path, capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """The one line that the command ends with; nothing that was there has changed."""
    before = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
    assert main([*COMMAND, "--out", str(run), *args]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error.startswith("mempo: ")
    assert {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()} == before
    return error


def test_other_settings_are_refused_by_their_names(
    toy_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copied(toy_run, tmp_path)
    error = refused(run, capsys, "--seed", "7", "--reward", "em_mean")
    assert "(there / here: config.seed: 0 / 7; task.reward: 'em_all' / 'em_mean')" in error
    assert "config.credit_options.pool: None / 'round'" in refused(run, capsys, "--option", "pool=round")
    more = refused(run, capsys, "--seed", "7", "--steps", "6")
    assert "(there / here: config.seed: 0 / 7; config.steps: 5 / 6)" in more


def test_fewer_steps_than_are_done_are_refused(
    toy_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copied(toy_run, tmp_path)
    error = refused(run, capsys, "--steps", "4")
    assert error == f"mempo: {run}: wanted at least the 5 steps that are done, got 4; choose another --out\n"


@pytest.mark.slow
def test_a_second_process_is_refused(
    toy_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copied(toy_run, tmp_path)
    settings = json.loads((run / SETTINGS).read_text())
    with Run(run, {name: value for name, value in settings.items() if name != "format"}):
        code, error = ended(mempo(*COMMAND, "--out", run))
    assert code == 2
    assert error == (
        f"mempo: {run}: another process trains here; wait until it ends, or choose another --out\n"
    )
    assert main([*COMMAND, "--out", str(run)]) == 0


@pytest.mark.slow
def test_of_two_processes_that_start_together_one_writes_the_run(toy_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    both = [mempo(*COMMAND, "--out", run) for _ in range(2)]
    codes = sorted(ended(process)[0] for process in both)
    assert codes in ([0, 2], [0, 0])  # the second may come after the first is done
    assert_same(run, toy_run)


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
    damage: Callable[[list[bytes]], None], toy_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copied(toy_run, tmp_path)
    lines = (run / METRICS).read_bytes().splitlines(keepends=True)
    damage(lines)
    (run / METRICS).write_bytes(b"".join(lines))
    assert f"{run / METRICS}:3: " in refused(run, capsys)


def test_fewer_rows_than_the_checkpoint_are_refused(
    toy_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copied(toy_run, tmp_path)
    lines = (run / METRICS).read_bytes().splitlines(keepends=True)
    (run / METRICS).write_bytes(b"".join(lines[:3]))
    assert "wanted the rows of 5 steps as they were written, found 3" in refused(run, capsys)


def test_an_edited_number_is_refused(
    toy_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copied(toy_run, tmp_path)
    text = (run / METRICS).read_bytes()
    (run / METRICS).write_bytes(text.replace(b'"success":0.0', b'"success":1.0', 1))
    assert (run / METRICS).read_bytes() != text
    assert "as they were written" in refused(run, capsys)


@pytest.mark.parametrize("text", [b"", b"{", b"null", b"[]", b'{"task": 3}', b"\xff", b"[" * 100_000])
def test_damaged_settings_are_refused(
    text: bytes, toy_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copied(toy_run, tmp_path)
    (run / SETTINGS).write_bytes(text)
    assert SETTINGS in refused(run, capsys) or text == b'{"task": 3}'
    with pytest.raises(ResultsError, match=SETTINGS):
        restore(run)


def test_metrics_without_settings_are_refused(
    toy_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copied(toy_run, tmp_path)
    (run / SETTINGS).unlink()
    assert f"holds {METRICS} without {SETTINGS}" in refused(run, capsys)


def no_tensors(run: Path) -> None:
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
    state = checkpoint.read(run / CHECKPOINT)
    checkpoint.write(run / CHECKPOINT, {**state, **parts})


def of_another_policy(run: Path) -> None:
    changed(run, policy=Toy(policy="tabular").make_policy(CONFIG).state_dict())


def of_another_run(run: Path) -> None:
    """Of the same policy, after as many steps."""
    other = run.parent / "other"
    train(other, Toy(objectives=1), Config(steps=5, questions=2, rollouts=2, seed=1))
    shutil.copy(other / CHECKPOINT, run / CHECKPOINT)


def of_nobody_knows_what(run: Path) -> None:
    """As checkpoints were before they told their settings."""
    state = checkpoint.read(run / CHECKPOINT)
    del state["settings"]
    checkpoint.write(run / CHECKPOINT, state)


def no_numbers(run: Path) -> None:
    policy = checkpoint.read(run / CHECKPOINT)["policy"]
    policy["heads"]["keep.hidden.weight"][0, 0] = torch.nan
    changed(run, policy=policy)


def no_moments(run: Path) -> None:
    policy = checkpoint.read(run / CHECKPOINT)["policy"]
    policy["optimizer"]["state"][0]["exp_avg"].fill_(torch.inf)
    changed(run, policy=policy)


def without_policy(run: Path) -> None:
    checkpoint.write(run / CHECKPOINT, {"format": 1, "step": 5})


def no_number(run: Path) -> None:
    changed(run, step="many")


class _Code:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, ("raise SystemExit('it was run')",)


def code(run: Path) -> None:
    torch.save({"format": 1, "step": 5, "policy": _Code()}, run / CHECKPOINT)


DAMAGES = (
    *(no_tensors, nothing, truncated, flipped, of_another_policy, of_another_run, of_nobody_knows_what),
    *(no_numbers, no_moments, without_policy, no_number, code),
)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_refused(
    damage: Callable[[Path], None], toy_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copied(toy_run, tmp_path)
    damage(run)
    capsys.readouterr()  # where it trains another run, the progress of that
    error = refused(run, capsys)
    assert f"{run / CHECKPOINT}: wanted a checkpoint of this policy" in error
    assert "start anew in another folder" in error
    with pytest.raises(ResultsError, match="wanted a checkpoint of this policy"):
        restore(run)


def test_a_checkpoint_beside_edited_settings_is_refused(
    toy_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copied(toy_run, tmp_path)
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
        (("--option", "pool"), "wanted a setting with its value, NAME=VALUE"),
        (("--option=pool=",), "unknown pool ''"),
        (("--option", "weight=much"), "weight: wanted a number"),
        (("--algo", "ppo", "--credit", "mempoo"), "did you mean 'mempo'?"),
        (("--algo", "ppo", "--credit", "rloo"), "credit for ppo"),
        (("--credit", "gae"), "wanted a critic"),
        (("--steps", "0"), "steps: wanted a whole number from 1 on, below 2**63, got 0"),
        (("--learning-rate", "nan"), "learning_rate: wanted a number above 0, at most 10,000, got nan"),
        (("--seed", "-1"), "seed: wanted a whole number from 0 on, below 2**63, got -1"),
        (("--kl", "-1"), "kl: wanted a number from 0 to"),
        (("--objectives", "0"), "objectives: wanted"),
        (("--capacity", "0"), "capacity"),
        (("--capacity", "10001"), "capacity: wanted a whole number from 1 to 10,000, or None, got 10001"),
        (("--max-rounds", "1000000000"), "max_rounds: wanted a whole number from 1 to 10,000"),
        (("--objectives", "1000000"), "objectives: wanted at most the 600 questions of 'train'"),
        (("--objectives", "201"), "objectives: wanted at most the 200 questions of 'test'"),
        (("--credit", "placebo", "--option", "seed=-1"), "seed: wanted"),
        (("--seed", str(2**63)), "seed: wanted a whole number from 0 on, below 2**63, got 92233720"),
        (("--retriever-noise", "2"), "retriever_noise: wanted a number from 0 to 1, got 2"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_leaves_nothing(
    args: tuple[str, ...], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*COMMAND, *args, "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
