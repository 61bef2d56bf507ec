"""`mempo train compare`: runs by what differs, seeds together, with what every number is computed from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mempo_benchmarks.toy.compare import grouped
from mempo_benchmarks.toy.sweep import course
from mempo_env.cli import main
from mempo_env.errors import ResultsError
from mempo_trainers.run import METRICS, RESULT, SETTINGS

STEPS = 20


def written(
    folder: Path,
    success: list[float | None],
    final: float | None,
    seed: int = 0,
    task: dict[str, Any] | None = None,
    **config: Any,
) -> Path:
    """A run as it lies on disk: 64 rollouts and 2 seconds a step, half of the 8 groups degenerate."""
    folder.mkdir(parents=True)
    settings = {"format": 2, "task": task or {"objectives": 1}, "config": {"seed": seed, **config}}
    (folder / SETTINGS).write_text(json.dumps(settings))
    rows = [
        {"step": step, "rollouts": 64, "success": value, "groups": 8, "degenerate_groups": 4, "seconds": 2.0}
        for step, value in enumerate(success, 1)
    ]
    (folder / METRICS).write_text("".join(json.dumps(row) + "\n" for row in rows))
    if final is not None:
        (folder / RESULT).write_text(json.dumps({"success": final}))
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    learned: list[float | None] = [0.0] * 5 + [1.0] * 15
    for seed, final in enumerate((1.0, 0.9, 0.8)):
        written(tmp_path / "deep" / "mempo" / str(seed), learned, final, seed, credit="mempo", steps=STEPS)
    written(tmp_path / "grpo", [0.0] * STEPS, 0.0, credit="grpo", steps=STEPS)
    return tmp_path


def test_seeds_are_one_row_and_what_differs_names_it(runs: Path) -> None:
    groups = grouped([runs])
    assert list(groups) == ["credit=mempo", "credit=grpo"]
    mempo, grpo = groups.values()
    assert (mempo.runs, grpo.runs, mempo.finished) == (3, 1, True)
    assert mempo.success.value == pytest.approx(0.9)
    assert mempo.success.low is not None and mempo.success.high is not None
    assert 0.8 <= mempo.success.low < 0.9 < mempo.success.high <= 1.0
    assert (grpo.success.value, grpo.success.low) == (0.0, None)
    assert mempo.degenerate == 0.5 and mempo.course.seconds == 40.0
    # ten steps in a row have a mean of 0.9 first when one of them was before step 6: steps 5 to 14
    assert mempo.course.rollouts == (14 * 64,) * 3 and mempo.course.median == 896
    assert grpo.course.rollouts == (None,) and grpo.course.median is None


def test_runs_can_be_named_one_by_one_and_twice(runs: Path) -> None:
    one = runs / "deep" / "mempo" / "1"
    (group,) = grouped([one, runs / "deep" / ".." / "deep" / "mempo" / "1"]).values()
    assert (group.runs, group.success.value) == (1, 0.9)
    assert list(grouped([one])) == ["all alike"]


def test_options_that_only_one_has_name_it(tmp_path: Path) -> None:
    written(tmp_path / "a", [0.0], 0.0, credit="mempo", credit_options={"pool": "round"})
    written(tmp_path / "b", [0.0], 0.0, credit="mempo", credit_options={})
    assert list(grouped([tmp_path])) == ["credit_options.pool=round", "credit_options.pool=–"]


def test_what_is_trained_otherwise_is_named_by_what_both_have(tmp_path: Path) -> None:
    written(tmp_path / "a", [0.0], 0.0, algo="grpo", credit="mempo", entropy=0.1)
    written(tmp_path / "b", [0.0], 0.0, algo="sb3-ppo", batch_size=256)
    assert list(grouped([tmp_path])) == ["algo=grpo", "algo=sb3-ppo"]


def test_a_run_inside_a_run_is_a_part_of_it(runs: Path) -> None:
    """As the warm start of a language model is."""
    written(runs / "grpo" / "warm", [1.0], 1.0, credit="other")
    assert [group.runs for group in grouped([runs]).values()] == [3, 1]


def test_what_is_not_finished_is_said(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (runs / "deep" / "mempo" / "2" / RESULT).unlink()
    assert main(["train", "compare", str(runs)]) == 0
    told = capsys.readouterr().out
    assert "1.00 [1.00, 1.00]*" in told and "* not finished: mean of the last 10 steps" in told


def test_the_table_shows_it_all(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "compare", str(runs / "deep"), str(runs / "grpo")]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if "credit=" in line]
    mempo, grpo = rows
    assert mempo[:3] == ["credit=mempo", "3", "0.90"] and mempo[5:8] == ["896", "50%", "40"]
    assert mempo[-1] == "▁" * 5 + "█" * 15
    assert grpo == ["credit=grpo", "1", "0.00", "never", "50%", "40", "▁" * STEPS]


def test_the_plot_is_a_picture(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="needs mempo[bench]")
    assert main(["train", "compare", str(runs), "--out", str(tmp_path / "curves.png")]) == 0
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert f"curves: {tmp_path / 'curves.png'}" in capsys.readouterr().out


def test_real_runs_of_every_trainer_stand_side_by_side(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ("--objectives", "1", "--steps", "2", "--questions", "2", "--rollouts", "2")
    for seed in ("0", "1"):
        assert main(["train", "toy", "--out", str(tmp_path / f"toy-{seed}"), "--seed", seed, *small]) == 0
    assert main(["train", "toy", "--out", str(tmp_path / "ppo"), "--algo", "ppo", *small]) == 0
    capsys.readouterr()
    assert main(["train", "compare", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "algo=grpo     2" in told and "algo=ppo      1" in told


@pytest.mark.parametrize("made", [False, True])
def test_a_folder_without_runs_is_one_line(
    made: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if made:
        (tmp_path / "empty").mkdir()
    assert main(["train", "compare", str(tmp_path / "empty")]) == 2
    error = capsys.readouterr().err
    assert error == (
        f"mempo: {tmp_path / 'empty'}: wanted a training run, or a folder with runs in it, found none\n"
    )
    assert main(["train", "compare"]) == 2
    assert "see `mempo train compare --help`" in capsys.readouterr().err


def test_a_run_without_a_step_is_one_line(runs: Path) -> None:
    (runs / "grpo" / METRICS).write_text("")
    with pytest.raises(ResultsError, match="wanted at least one row of metrics, found none"):
        grouped([runs])


def test_a_result_that_is_none_is_named(runs: Path) -> None:
    (runs / "grpo" / RESULT).write_text("{}")
    with pytest.raises(ResultsError, match=r"grpo/result\.json: wanted"):
        grouped([runs])


def rows(success: list[float | None], rollouts: list[int]) -> list[dict[str, Any]]:
    return [{"success": s, "rollouts": n, "seconds": 1.0} for s, n in zip(success, rollouts, strict=True)]


def test_a_course_counts_the_rollouts_that_there_were() -> None:
    """Steps need not be equally large, nor runs equally long; an unknown success is that of before."""
    first = rows([None, 0.5, None, *[1.0] * 10], [0, 10, 20, *[30] * 10])
    second = rows([0.0] * 13 + [1.0], [8] * 14)
    went = course([first, second])
    # steps 2 to 11: 0.5, 0.5 and eight times 1 are 0.9; 10 + 20 + 8 x 30 rollouts
    assert went.rollouts == (270, None)
    assert went.at == tuple(
        np.mean([np.cumsum([0, 10, 20, *[30] * 10]), np.arange(1, 14) * 8], axis=0).astype(int)
    )
    assert [point.value for point in went.curve[:4]] == [0.0, 0.25, 0.25, 0.5]
    assert went.seconds == 13.5
