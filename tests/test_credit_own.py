"""Estimators of a user's own, by "module:function"."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from mempo_benchmarks.credit.estimators import Row, trained_row
from mempo_benchmarks.credit.results import Lab
from mempo_benchmarks.credit.show import toy_strips
from mempo_env.cli import main
from mempo_env.errors import ConfigError
from mempo_trainers.config import Config
from mempo_trainers.credit import make
from mempo_trainers.grpo import grpo
from mempo_trainers.run import Run
from mempo_trainers.run_files import read_metrics
from mempo_trainers.toy import Toy, ToyDraw, restore, train

OWN = '''
import numpy as np
from msgspec.structs import replace

from mempo_trainers.credit.outcome import grpo


def hopeful(data, floor=0.0):
    """The outcome, but nobody is blamed; all scores are there."""
    data.need("memory_logp_RJ", "history_logp_RJ", "seen_logp_RJ", "prior_logp_NJ")
    return grpo(data).advantages_BK.clip(min=floor)


def whole(data):
    return grpo(data)


def wrong(data):
    return [[1.0]]


def hole(data):
    """Finite but for one token that the policy wrote, and all that it did not write."""
    made = grpo(data).advantages_BK.copy()
    made[~data.mask_BK] = np.nan
    made[2, 0] = -np.inf
    return made


def paddings(data):
    return np.where(data.mask_BK, grpo(data).advantages_BK, np.nan)


def large(data):
    return np.where(data.mask_BK, 1e300, 0.0)


def whole_hole(data):
    return replace(grpo(data), advantages_BK=hole(data))


def whole_short(data):
    return replace(grpo(data), advantages_BK=grpo(data).advantages_BK[:-1])


def whole_outcome(data):
    return replace(grpo(data), outcome_N=np.full(len(data.masked_N), np.nan))


def whole_outcomes(data):
    return replace(grpo(data), outcome_N=np.zeros(1))


def weighed(data, *, weight):
    return weight * grpo(data).advantages_BK


def anything(data, **options):
    return grpo(data).advantages_BK


def nothing():
    pass


class Made:
    def __call__(self, data, wt=1.0):
        return wt * grpo(data).advantages_BK


made, number = Made(), 7
'''
SMALL = ("--objectives", "2", "--reward", "em_mean", "--steps", "2", "--questions", "2", "--rollouts", "4")


@pytest.fixture(autouse=True)
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_estimators.py").write_text(OWN)
    monkeypatch.delitem(sys.modules, "own_estimators", raising=False)  # of another test's folder
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


def test_it_trains_and_its_name_is_in_the_metrics(tmp_path: Path) -> None:
    options = ("--credit", "own_estimators:hopeful", "--option", "floor=-0.1")
    assert main(["train", "toy", "--out", "run", *options, *SMALL]) == 0
    rows = read_metrics(tmp_path / "run")
    assert [row["credit"] for row in rows] == ["own_estimators:hopeful"] * 2


def test_a_credit_of_its_own_making_is_taken_as_it_is() -> None:
    from test_train_batching import drawn

    data = drawn().data
    ours, theirs = make("own_estimators:whole")(data), make("grpo")(data)
    np.testing.assert_array_equal(ours.advantages_BK, theirs.advantages_BK)
    clipped = make("own_estimators:hopeful", floor=0.5)(data)
    assert clipped.advantages_BK[data.mask_BK].min() == 0.5
    assert (clipped.advantages_BK[~data.mask_BK] == 0).all()
    assert clipped.degenerate_outcome == theirs.degenerate_outcome


def test_what_can_not_be_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "toy", "--out", "run", "--credit", "own_estimators:wrong", *SMALL]) == 2
    assert "wanted numbers (segments, tokens)" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="no attribute 'hopefull'"):
        make("own_estimators:hopefull")


def test_a_run_without_the_settings_of_its_task_is_told_what_writes_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A loop called from Python trains whatever is in the settings of its run."""
    task, config = Toy(objectives=2), Config(steps=1, questions=2, rollouts=2)
    policy = task.make_policy(config)
    with Run(tmp_path / "run", {}) as run:
        grpo(policy, ToyDraw(policy, task, config.rollouts, 0), config, run)
    assert main(["credit", "show", "run"]) == 2
    error = capsys.readouterr().err
    assert (
        "run/settings.json: wanted the settings of a toy run, found no task and no config; from Python, "
        in error
    )
    assert "mempo_trainers.toy.train(task, config, Path(...)) writes them" in error
    train(task, config, tmp_path / "other")
    assert main(["credit", "show", "other"]) == 0


def test_a_first_step_that_failed_can_be_mended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The folder of a run without a step takes other settings; of one with a step it does not."""
    command = ("train", "toy", "--out", "run", *SMALL, "--credit")
    assert main([*command, "own_estimators:wrong"]) == 2
    capsys.readouterr()
    assert main(["credit", "show", "run"]) == 2
    assert "wanted a checkpoint, found none, for no step was done" in capsys.readouterr().err
    assert main([*command, "own_estimators:hopeful"]) == 0
    told = capsys.readouterr().err.splitlines()[0]
    assert told.startswith("run: no step was done, so it begins anew with other settings (there / here: ")
    assert "config.credit: 'own_estimators:wrong' / 'own_estimators:hopeful'" in told
    settings = json.loads((tmp_path / "run" / "settings.json").read_text())
    assert settings["config"]["credit"] == "own_estimators:hopeful"
    assert main([*command, "own_estimators:whole"]) == 2
    assert "run: was begun with other settings" in capsys.readouterr().err


def test_a_run_is_shown_with_its_own_estimator(capsys: pytest.CaptureFixture[str]) -> None:
    """A row by its name, options included; another one's own is a reference."""
    options = ("--credit", "own_estimators:weighed", "--option", "weight=3")
    assert main(["train", "toy", "--out", "run", *options, *SMALL]) == 0
    task, config, policy = restore(Path("run"))
    strips = toy_strips(task, config, policy, reference="own_estimators:whole", name="run")
    assert list(strips.rows)[-2:] == ["own_estimators:weighed", "own_estimators:whole"]
    assert strips.about["own_estimators:weighed"] == "as this run was trained, with weight=3"
    np.testing.assert_array_equal(strips.rows["own_estimators:whole"], strips.rows["grpo"])
    np.testing.assert_allclose(
        strips.rows["own_estimators:weighed"], 3 * np.array(strips.rows["grpo"]), rtol=1e-6
    )
    capsys.readouterr()
    assert main(["credit", "show", "run", "--reference", "own_estimators:weighed"]) == 0
    assert "own_estimators:weighed" in capsys.readouterr().out
    assert main(["credit", "show", "run", "--reference", "own_estimators:hopefull"]) == 2
    assert "no attribute 'hopefull'" in capsys.readouterr().err


def test_a_run_with_other_options_has_a_row_of_them() -> None:
    told = trained_row(Config(credit="mempo", credit_options={"pool": "round"}))
    assert told == {
        "mempo as trained": Row("mempo", {"pool": "round"}, "as this run was trained, with pool=round")
    }
    for options in ({}, {"objectives": "geometric"}):
        assert trained_row(Config(credit="mempo", credit_options=options)) == {}


def test_the_lab_measures_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What says what `grpo` says is measured as that; an edited estimator is another."""
    assert main(["train", "toy", "--out", "run", "--credit", "grpo", *SMALL]) == 0
    command = ["credit", "lab", "--run", "run", "--out", "lab", "--questions", "2", "--rollouts", "4"]
    own = ["--forks", "8", "--estimator", "own_estimators:whole", "--estimator", "own_estimators:hopeful"]
    assert main([*command, *own]) == 0
    (stage,) = msgspec.json.decode((tmp_path / "lab" / "lab.json").read_bytes(), type=Lab).stages
    found = {row.name: row for row in stage.rows}
    assert list(found)[-2:] == ["own_estimators:whole", "own_estimators:hopeful"]
    assert (
        found["own_estimators:whole"].values == found["grpo"].values != found["own_estimators:hopeful"].values
    )
    assert found["own_estimators:whole"].noise == found["grpo"].noise
    assert "own_estimators:whole" in (tmp_path / "lab" / "lab.html").read_text()
    assert main([*command, *own]) == 0  # it is done
    with (tmp_path / "own_estimators.py").open("a") as file:
        file.write("\n")
    capsys.readouterr()
    assert main([*command, *own]) == 2
    assert (
        "wanted a stage of this run measured with these settings, got one of others"
        in capsys.readouterr().err
    )
    for name, told in (("grpo", "wanted module:function"), ("own_estimators:number", "wanted a function")):
        assert main([*command[:-6], "--out", "other", "--estimator", name]) == 2
        assert told in capsys.readouterr().err and not (tmp_path / "other").exists()


def test_it_stands_beside_a_critic(tmp_path: Path) -> None:
    """Of a `Credit` what is beside the outcome, which for `grpo` is nothing; of plain advantages all."""
    for name, credit in (
        ("plain", "gae"),
        ("whole", "own_estimators:whole"),
        ("all", "own_estimators:hopeful"),
    ):
        command = ("train", "toy", "--out", name, "--algo", "ppo", "--credit", credit, *SMALL)
        assert main(command) == 0
    plain, whole, everything = (
        [row["advantage_other"] for row in read_metrics(tmp_path / name)]
        for name in ("plain", "whole", "all")
    )
    assert plain == whole != everything


@pytest.mark.parametrize(
    "credit, options, told",
    [
        ("hopeful", ("flor=2",), "option of credit 'own_estimators:hopeful': 'flor': did you mean 'floor'?"),
        ("hopeful", ("data=2",), "unknown option of credit 'own_estimators:hopeful': 'data'"),
        ("made", ("wtt=2",), "did you mean 'wt'?"),
        ("whole", ("wt=2",), "credit 'own_estimators:whole' has no options, got 'wt'"),
        ("weighed", (), "missing a required argument: 'weight'"),
        ("weighed", ("wheight=2",), "did you mean 'weight'?"),
        ("anything", ("data=2",), "multiple values for argument 'data'"),
        ("nothing", (), "credit 'own_estimators:nothing': wanted a function from trajectories"),
        ("number", (), "credit 'own_estimators:number': wanted a function from trajectories, got 7"),
    ],
)  # fmt: skip
def test_a_call_that_can_not_be_is_refused_before_anything_is_written(
    credit: str, options: tuple[str, ...], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [part for option in options for part in ("--option", option)]
    assert main(["train", "toy", "--out", "run", "--credit", f"own_estimators:{credit}", *given, *SMALL]) == 2
    error = capsys.readouterr().err
    assert told in error and error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_call_that_can_be_is_made() -> None:
    from test_train_batching import drawn

    data = drawn().data
    plain = make("grpo")(data).advantages_BK
    for name, options, times in (
        ("weighed", {"weight": 3}, 3),
        ("anything", {"any": 1}, 1),
        ("made", {"wt": 2}, 2),
    ):
        np.testing.assert_array_equal(
            make(f"own_estimators:{name}", **options)(data).advantages_BK, times * plain
        )
    np.testing.assert_array_equal(make("own_estimators:paddings")(data).advantages_BK, plain)


FINITE = "wanted finite advantages (segments, tokens) of what the policy wrote, got"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "credit, told",
    [
        ("hole", f"{FINITE} -inf at [2, 0]"),
        ("large", f"{FINITE} inf at [0, "),
        ("whole_hole", f"{FINITE} -inf at [2, 0]"),
        ("whole_short", "wanted numbers (segments, tokens)"),
        ("whole_outcome", "outcome_N: wanted finite numbers (rollouts), got nan at [0]"),
        ("whole_outcomes", "wanted outcome_N of (8,), a number a rollout, got (1,)"),
    ],
)
def test_what_is_not_a_finite_number_a_token_is_refused_in_its_step(
    credit: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "toy", "--out", "run", "--credit", f"own_estimators:{credit}", *SMALL]) == 2
    error = [line for line in capsys.readouterr().err.splitlines() if line.startswith("mempo: ")]
    assert len(error) == 1 and f"credit 'own_estimators:{credit}'" in error[0] and told in error[0]
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == b""
