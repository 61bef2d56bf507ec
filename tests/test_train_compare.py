"""`mempo train compare`: runs by what differs, seeds together, with what every number is computed from."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mempo_benchmarks.stats import Interval
from mempo_benchmarks.toy.compare import grouped
from mempo_benchmarks.toy.sweep import Step, course
from mempo_env.cli import main
from mempo_env.errors import ResultsError
from mempo_trainers.run_files import METRICS, RESULT, SETTINGS

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
    # 0.9 -+ 4.3027 * 0.1 / sqrt(3), the 0.975 quantile at 2 degrees of freedom; no share is above 1
    assert mempo.success == Interval(pytest.approx(0.9), pytest.approx(0.6516, abs=1e-4), 1.0)
    assert grpo.success == Interval(0.0, None, None)
    assert mempo.degenerate == 0.5 and mempo.course.seconds == 40.0
    # ten steps in a row have a mean of 0.9 first when one of them was before step 6: steps 5 to 14
    assert mempo.course.rollouts == (14 * 64,) * 3 and mempo.course.median == 896
    assert grpo.course.rollouts == (None,) and grpo.course.median is None


def test_runs_can_be_named_one_by_one_and_twice(runs: Path) -> None:
    one = runs / "deep" / "mempo" / "1"
    (group,) = grouped([one, runs / "deep" / ".." / "deep" / "mempo" / "1"]).values()
    assert (group.runs, group.success) == (1, Interval(0.9, None, None))
    assert list(grouped([one])) == ["all alike"]


def test_a_run_counts_once_whatever_links_lead_to_it(runs: Path, tmp_path: Path) -> None:
    """To itself, to what is above it, to a run in the folder and to one out of it."""
    out, folder = tmp_path / "out", tmp_path / "deep"
    written(out / "seed-3", [0.0] * 5 + [1.0] * 15, 0.7, 3, credit="mempo", steps=STEPS)
    written(out / "seed-4", [0.0] * 5 + [1.0] * 15, 0.6, 4, credit="mempo", steps=STEPS)
    for place, to in (("loop", folder), ("up", tmp_path), ("again", folder / "mempo" / "0"), ("far", out)):
        (folder / place).symlink_to(to)
    (folder / "mempo" / "three").symlink_to(out / "seed-3")
    (tmp_path / "link").symlink_to(folder)
    (group,) = grouped([tmp_path / "link", folder, folder / "again"]).values()
    assert group.runs == 4 and group.success is not None
    assert group.success.value == pytest.approx((1.0 + 0.9 + 0.8 + 0.7) / 4)


def test_one_run_in_two_places_is_refused(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = runs / "deep" / "mempo" / "1"
    shutil.copytree(one, runs / "deep" / "mempo" / "copy")
    rewritten = (runs / "deep" / "mempo" / "copy" / SETTINGS).read_text().replace('"seed": 1', '"seed": 1.0')
    (runs / "deep" / "mempo" / "copy" / SETTINGS).write_text(rewritten)
    assert main(["train", "compare", str(runs)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"mempo: {one.parent / 'copy'}: wanted other settings or another seed than those")
    assert f"those of {one}, got the same" in error and error.count("\n") == 1


def test_settings_are_compared_by_value(tmp_path: Path) -> None:
    written(tmp_path / "a", [0.0], 0.0, 0, kl=0, entropy=0.1)
    written(tmp_path / "b", [0.0], 0.0, 1, entropy=0.1, kl=0.0)
    written(tmp_path / "c", [0.0], 0.0, 0, kl=0.5, entropy=0.1)
    assert {name: group.runs for name, group in grouped([tmp_path]).items()} == {"kl=0": 2, "kl=0.5": 1}


def test_no_group_is_lost_to_one_that_looks_like_it(tmp_path: Path) -> None:
    options = [{"at": 1}, {"at": "1"}, {"at": "–"}, {}, {"at": None}, {"at": "None"}]
    for place, some in enumerate(options):
        written(tmp_path / str(place), [0.0], 0.0, credit_options=some)
    written(tmp_path / "task", [0.0], 0.0, task={"objectives": 1, "credit_options": {"at": 1}})
    groups = grouped([tmp_path])
    assert len(groups) == 7
    assert "config.credit_options.at='1', task.credit_options.at=UNSET" in groups


def test_options_that_only_one_has_name_it(tmp_path: Path) -> None:
    written(tmp_path / "a", [0.0], 0.0, credit="mempo", credit_options={"pool": "round"})
    written(tmp_path / "b", [0.0], 0.0, credit="mempo", credit_options={})
    assert list(grouped([tmp_path])) == ["credit_options.pool=round", "credit_options.pool=–"]


def test_what_is_trained_otherwise_is_named_by_what_both_have(tmp_path: Path) -> None:
    written(tmp_path / "a", [0.0], 0.0, algo="grpo", credit="mempo", entropy=0.1)
    written(tmp_path / "b", [0.0], 0.0, algo="sb3-ppo", batch_size=256)
    assert list(grouped([tmp_path])) == ["algo=grpo", "algo=sb3-ppo"]


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"data": {"questions": "b"}}, "data.questions differ, though what names them does not"),
        ({"model": "b", "data": {"questions": "b"}}, "data.questions, model differ, though"),
        ({"data": {"questions": "b"}, "task": {"objectives": 2}}, None),
        ({"data": {"questions": "b"}, "task": {"objectives": 1, "agent": "react"}}, "data.questions differ"),
        ({"model": "b", "policy": {"model": "other"}}, None),
        ({"model": "b", "policy": {"model": "one", "max_new": 2}}, "model differ"),
        ({}, None),
    ],
)
def test_runs_that_name_alike_what_is_not_alike_are_told(
    other: dict[str, Any], told: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"data": {"questions": "a"}, "model": "a", "policy": {"model": "one"}}
    for name, more in (("one", {}), ("other", other)):
        run = written(tmp_path / name, [1.0] * STEPS, 1.0, credit=name)
        settings = {**json.loads((run / SETTINGS).read_text()), **given, **more}
        (run / SETTINGS).write_text(json.dumps(settings))
    assert main(["train", "compare", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert (f"! these runs were not given the same: {told}" in said) if told else "!" not in said


def test_a_run_inside_a_run_is_a_part_of_it(runs: Path) -> None:
    """As the warm start of a language model is."""
    written(runs / "grpo" / "warm", [1.0], 1.0, credit="other")
    assert [group.runs for group in grouped([runs]).values()] == [3, 1]


def test_what_is_not_finished_is_said(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (runs / "deep" / "mempo" / "2" / RESULT).unlink()
    assert main(["train", "compare", str(runs)]) == 0
    told = capsys.readouterr().out
    assert " 1.00* " in told and "* not finished: success is the mean of the last 10 steps" in told
    assert "40*" in told and told.count("to step 20") == 1


def test_each_run_counts_as_far_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those that reached it are told, whatever another one has not done yet."""
    learned: list[float | None] = [0.0] * 5 + [1.0] * 15
    for seed in (0, 1):
        written(tmp_path / "most" / str(seed), learned, 1.0, seed, credit="a")
    written(tmp_path / "most" / "2", [0.0] * 4, None, 2, credit="a")
    written(tmp_path / "few" / "0", learned, 1.0, 0, credit="b")
    for seed in (1, 2):
        written(tmp_path / "few" / str(seed), [0.0] * 12, None, seed, credit="b")
    written(tmp_path / "none" / "0", [0.0] * 12, None, 0, credit="c")
    written(tmp_path / "never" / "0", learned, 1.0, 0, credit="d")
    written(tmp_path / "never" / "1", [0.0] * 20, 0.0, 1, credit="d")
    groups = grouped([tmp_path])
    most = groups["credit=a"]
    assert most.course.rollouts == (896, 896, None) and most.course.median == 896
    assert (most.course.steps, most.pending, most.course.at) == (4, 1, (64, 128, 192, 256))
    assert most.course.seconds == pytest.approx((40 + 40 + 8) / 3)
    assert main(["train", "compare", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    rows = {line.split()[0]: line for line in told.splitlines() if "credit=" in line}
    assert " 896 (2 of 3, 1 not yet) " in rows["credit=a"] and "▁▁▁▁ to step 4 " in rows["credit=a"]
    assert " not yet (1 of 3) " in rows["credit=b"] and " 29* " in rows["credit=a"]
    assert " not yet " in rows["credit=c"] and "(" not in rows["credit=c"]
    assert " never (1 of 2) " in rows["credit=d"] and "*" not in rows["credit=d"]
    assert "seconds are of the steps that are done" in told and "the curve ends with the shortest run" in told


def test_the_table_shows_it_all(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "compare", str(runs / "deep"), str(runs / "grpo")]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if "credit=" in line]
    mempo, grpo = rows
    assert mempo[:3] == ["credit=mempo", "3", "0.90"] and mempo[5:8] == ["896", "50%", "40"]
    assert mempo[-1] == "▁" * 5 + "█" * 15
    assert grpo == ["credit=grpo", "1", "0.00", "never", "50%", "40", "▁" * STEPS]


def test_what_no_step_knows_is_unknown_not_zero(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Runs whose rollouts are all masked had a success of 0.00 [0.00, 0.00]."""
    for seed in (0, 1):
        written(tmp_path / "none" / str(seed), [None] * 12, None, seed, credit="a")
    written(tmp_path / "some" / "0", [None] * 12, None, 0, credit="b")
    for seed, success in ((1, 0.4), (2, 0.6)):
        written(tmp_path / "some" / str(seed), [success] * 12, None, seed, credit="b")
    none, some = grouped([tmp_path]).values()
    assert (none.success, none.known, none.course.curve) == (None, 0, ())
    assert some.success == Interval(pytest.approx(0.5), 0.0, 1.0) and (some.runs, some.known) == (3, 2)
    assert [point.value for point in some.course.curve] == pytest.approx([0.5] * 12)
    out = tmp_path / "curves.png"
    pytest.importorskip("matplotlib", reason="needs mempo[bench]")
    assert main(["train", "compare", str(tmp_path), "--out", str(out)]) == 0
    told = capsys.readouterr().out
    assert " unknown* " in told and " 0.50 [0.00, 1.00] (2 of 3 known)* " in told
    assert out.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("finals", [(1.0,), (1.0, 1.0, 1.0)])
def test_runs_that_came_to_the_same_have_no_interval_and_it_is_said(
    finals: tuple[float, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was 1.00 [1.00, 1.00]."""
    for seed, final in enumerate(finals):
        written(tmp_path / str(seed), [1.0] * STEPS, final, seed)
    assert main(["train", "compare", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert " 1.00 " in told and "[" not in told
    assert "of one run, or runs that came to the same, there is none" in told


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
    assert re.search(r"algo=grpo +2 ", told) and re.search(r"algo=ppo +1 ", told)
    assert "in toy-0, toy-1 " in told and "in ppo " in told


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


def test_a_run_without_a_step_is_left_out_and_named(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (runs / "grpo" / METRICS).write_text('{"step":1,"succ')  # killed in its first step
    assert main(["train", "compare", str(runs)]) == 0
    told = capsys.readouterr().out
    assert "all alike" in told and "credit=grpo" not in told
    assert f"left out: {runs / 'grpo'}: no step was done\n" in told and told.count("left out") == 1
    assert main(["train", "compare", str(runs / "grpo")]) == 2
    assert capsys.readouterr().err == (
        f"mempo: {runs / 'grpo'}: wanted a training run to compare, found none (no step was done)\n"
    )


def test_a_result_that_is_none_is_named(runs: Path) -> None:
    (runs / "grpo" / RESULT).write_text("{}")
    with pytest.raises(ResultsError, match=r"grpo/result\.json: wanted"):
        grouped([runs])


@pytest.mark.parametrize(
    "result", ['{"success": 7}', '{"success": "1"}', '{"success": null}', "[]", "{", "\xff"]
)
def test_a_result_that_can_not_be_is_one_line(
    result: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (runs / "grpo" / RESULT).write_bytes(result.encode("latin-1"))
    assert main(["train", "compare", str(runs)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"mempo: {runs / 'grpo' / RESULT}: ") and error.count("\n") == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"success": 5},
        {"success": "x"},
        {"success": True},
        {"rollouts": -1},
        {"rollouts": None},
        {"seconds": "2"},
        {"groups": 0.5},
        {"degenerate_groups": [4]},
    ],
)
def test_a_row_that_says_what_can_not_be_is_one_line(
    changes: dict[str, Any], runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = runs / "grpo" / METRICS
    lines = file.read_text().splitlines()
    lines[2] = json.dumps(json.loads(lines[2]) | changes)
    file.write_text("\n".join(lines) + "\n")
    assert main(["train", "compare", str(runs)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"mempo: {file}:3: wanted the figures of a training run: ")
    assert f"$.{next(iter(changes))}" in error and error.count("\n") == 1


def test_a_warm_start_is_left_out_and_named(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It plays nothing, so it knows of no success: one of them in a folder was the end of the command."""
    warm = written(runs / "sft", [0.0], None)
    (warm / METRICS).write_text('{"step":1,"loss":3.5,"tokens":240,"grad_norm":1.0,"seconds":0.1}\n')
    assert main(["train", "compare", str(runs)]) == 0
    told = capsys.readouterr().out
    why = "its steps have no success, as those of a warm start by imitation have none"
    assert "credit=mempo" in told and "credit=grpo" in told
    assert f"left out: {warm}: {why}\n" in told and told.count("left out") == 1
    assert main(["train", "compare", str(warm)]) == 2
    assert capsys.readouterr().err == f"mempo: {warm}: wanted a training run to compare, found none ({why})\n"


def test_it_is_said_what_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`never (1 of 3)` beside a success of 0.99 was not understood."""
    learned: list[float | None] = [0.0] * 5 + [1.0] * 15
    for seed, success in enumerate((learned, [0.8] * STEPS, [0.8] * STEPS)):
        written(tmp_path / str(seed), success, 0.99, seed)  # type: ignore[arg-type]
    assert main(["train", "compare", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert " never (1 of 3) " in told
    assert "rollouts to 0.9: until the mean success of 10 training steps in a row is 0.9, median" in told
    assert "degenerate groups: the share whose outcomes are all equal" in told


def rows(success: list[float | None], rollouts: list[int]) -> list[Step]:
    return [Step(success=s, rollouts=n, seconds=1.0) for s, n in zip(success, rollouts, strict=True)]


def test_a_course_counts_the_rollouts_that_there_were() -> None:
    """Steps need not be equally large, nor runs equally long; an unknown success is that of before."""
    first = rows([None, 0.5, None, *[1.0] * 10], [0, 10, 20, *[30] * 10])
    second = rows([0.0] * 13 + [1.0] * 9, [8] * 22)
    went = course([first, second])
    # steps 2 to 11: 0.5, 0.5 and eight times 1 are 0.9; 10 + 20 + 8 x 30 rollouts
    # steps 13 to 22: 0 and nine times 1; though the curve of both ends with step 13
    assert (went.rollouts, went.steps) == ((270, 22 * 8), 13)
    # 330 rollouts in 22 points are 15 a point, to the 176 of the shorter one
    assert went.at == (15, 30, 45, 60, 75, 90, 105, 120, 135, 150, 165, 176)
    # 0.5 and 0 up to 30 rollouts, then 1 and 0, from 104 on 1 and 1: 14 of the 15 up to 105 are before
    values = [0.25, 0.25, 0.5, 0.5, 0.5, 0.5, 1 - 7 / 15, 1, 1, 1, 1, 1]
    np.testing.assert_allclose([point.value for point in went.curve], values, rtol=1e-12)
    assert went.seconds == (13 + 22) / 2


def test_runs_of_another_length_have_points_of_the_same_size(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where both are, the curve of one that did the same is the same; it ends earlier."""
    success = [step / 240 for step in range(240)]
    written(tmp_path / "long", success, 1.0, steps=240)
    written(tmp_path / "short", success[:60], 0.2, steps=60)
    written(tmp_path / "worse", [0.1] * 72, 0.1, steps=72)
    long, short, worse = (group.course for group in grouped([tmp_path]).values())
    assert long.at == tuple(range(640, 15361, 640)) and short.at == long.at[:6]
    assert [p.value for p in short.curve] == [p.value for p in long.curve[:6]]
    assert long.curve[1].value == pytest.approx(14.5 / 240)  # the mean of steps 11 to 20
    assert worse.at == (640, 1280, 1920, 2560, 3200, 3840, 4608)  # half a point or less joins the one before
    assert main(["train", "compare", str(tmp_path)]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "steps=" in line]
    bars = {line.split()[0]: line.split()[-1] for line in lines}
    assert len({line.index(line.split()[-1]) for line in lines}) == 1, "they start in one column"
    assert {name: len(bar) for name, bar in bars.items()} == {"steps=240": 24, "steps=60": 6, "steps=72": 7}
    assert bars["steps=240"].startswith(bars["steps=60"])


def test_a_run_in_which_no_rollout_ended_has_no_curve() -> None:
    went = course([rows([None, None], [0, 0])])
    assert (went.curve, went.rollouts, went.steps) == ((), (None,), 2)


@pytest.mark.parametrize("runs", [2, 3, 6])
def test_the_legend_is_not_cut_off(runs: int, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs mempo[bench]")
    from matplotlib.image import imread

    for number in range(runs):
        options = {"objectives": "geometric", "baseline": "previous", "floor": number / 1000}
        credit = f"my_own_estimators_{number}:as_hopeful_as_can_be"
        written(
            tmp_path / "runs" / str(number), [number / 6] * 20, 0.5, credit=credit, credit_options=options
        )
    assert main(["train", "compare", str(tmp_path / "runs"), "--out", str(tmp_path / "curves.png")]) == 0
    picture = imread(tmp_path / "curves.png")[..., :3]
    for edge in (picture[0], picture[-1], picture[:, 0], picture[:, -1]):
        assert (edge == 1).all()
    assert (picture < 0.9).any()
