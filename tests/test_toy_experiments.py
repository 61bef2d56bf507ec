"""The experiments on the toy task: sweeps that go on, and what chance does."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest

from mempo_benchmarks.toy.claim import arms, untrained
from mempo_benchmarks.toy.map import arms as map_arms
from mempo_benchmarks.toy.plots import curves, dots
from mempo_benchmarks.toy.sweep import Arm, area_difference, by_group, learned, run_all
from mempo_env.errors import ResultsError
from mempo_trainers.config import Config
from mempo_trainers.run_files import read_metrics
from mempo_trainers.toy import Toy, ToyDraw

SMALL = Config(steps=4, questions=2, rollouts=4)


def small(name: str, seeds: int = 2) -> Arm:
    config = msgspec.structs.replace(SMALL, credit=name)
    return Arm(name, "one question", Toy(objectives=1, worlds=60), config, seeds)


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sweep")
    run_all([small("mempo"), small("grpo")], out, jobs=2)
    return out


def test_an_arm_is_what_its_runs_on_disk_say(swept: Path) -> None:
    arm = small("mempo")
    result = learned(arm, swept)
    rows = [read_metrics(folder) for folder in arm.folders(swept)]
    wanted = np.mean([[row["success"] for row in run] for run in rows], axis=0)
    assert [point.value for point in result.curve] == pytest.approx(wanted.tolist())
    assert result.at == (8, 16, 24, 32) and result.rollouts == (None, None) and result.median is None
    assert (result.reached, len(arm.folders(swept))) == (0, 2)


def test_areas_are_paired_by_seed(swept: Path) -> None:
    a, b = small("mempo"), small("grpo")
    means = [
        [np.mean([row["success"] for row in read_metrics(folder)]) for folder in arm.folders(swept)]
        for arm in (a, b)
    ]
    assert area_difference(a, b, swept).value == pytest.approx(float(np.mean(np.subtract(*means))))
    assert area_difference(a, a, swept).value == 0.0


def test_what_is_finished_is_not_trained_again(swept: Path) -> None:
    arm = small("mempo")
    before = {file: file.stat().st_mtime_ns for file in swept.rglob("metrics.jsonl")}
    run_all([arm, small("grpo")], swept, jobs=1)
    assert {file: file.stat().st_mtime_ns for file in swept.rglob("metrics.jsonl")} == before


@pytest.mark.parametrize(
    ("arm", "differ"),
    [
        (
            Arm("mempo", "one question", Toy(objectives=1, worlds=60), Config(steps=40, kl=0.5), 2),
            "config.kl: 0.0 / 0.5; config.questions: 2 / 8; config.rollouts: 4 / 8; config.steps: 4 / 40",
        ),
        (Arm("mempo", "one question", Toy(worlds=60), SMALL, 2), "task.objectives: 1 / 4"),
    ],
)
def test_finished_runs_of_other_settings_are_refused(swept: Path, arm: Arm, differ: str) -> None:
    """Neither read as if they were those asked for, nor trained beside them."""
    for use in (lambda: run_all([small("rloo"), arm], swept, jobs=1), lambda: learned(arm, swept)):
        with pytest.raises(ResultsError, match="seed-0: holds a run of other settings") as error:
            use()
        assert f"there / wanted: {differ})" in str(error.value)
    assert not small("rloo").folder(swept, 0).exists()


def test_a_run_of_nobody_knows_what_is_refused(swept: Path, tmp_path: Path) -> None:
    arm = small("mempo", seeds=1)
    shutil.copytree(arm.folder(swept, 0), arm.folder(tmp_path, 0))
    (arm.folder(tmp_path, 0) / "settings.json").unlink()
    with pytest.raises(ResultsError, match="wanted a training run, found none"):
        learned(arm, tmp_path)


def test_an_unfinished_arm_is_named(swept: Path) -> None:
    with pytest.raises(ResultsError, match=r"seed-2.*run the same command again"):
        learned(small("mempo", seeds=3), swept)


def test_plots_are_drawn(swept: Path, tmp_path: Path) -> None:
    groups = by_group([learned(small(name), swept) for name in ("mempo", "grpo")])
    panels = {name: {result.arm.name: result for result in group} for name, group in groups.items()}
    for draw in (lambda file: curves(panels, file), lambda file: dots(groups, file)):
        draw(tmp_path / "plot.png")
        assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("objectives", [1, 2])
def test_what_chance_does_is_what_it_is_seen_to_do(objectives: int) -> None:
    """Importance sampling against playing at random: the share of successes must lie in both intervals."""
    policy = Toy(objectives=objectives).make_policy(Config())
    played = ToyDraw(policy, Toy(objectives=objectives), 1, 7)(0, 0, 6_000)
    share = played.success_N.mean()
    error = np.sqrt(share * (1 - share) / 6_000)
    told = untrained(objectives, 6_000)
    assert told.low is not None and told.high is not None
    assert told.low - 3 * error < share < told.high + 3 * error
    assert share > 0


def test_arms_have_names_of_their_own_and_the_claims_defaults() -> None:
    for made in (arms(), map_arms()):
        assert len({(arm.group, arm.name) for arm in made}) == len(made)
    main = next(arm for arm in arms() if (arm.name, arm.group) == ("mempo", "4-objectives"))
    assert (main.task, main.config, main.seeds) == (Toy(), Config(), 10)
    assert main.config.steps * main.config.questions * main.config.rollouts == 15_360
