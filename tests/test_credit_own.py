"""Estimators of a user's own, by "module:function"."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mempo_env.cli import main
from mempo_env.errors import ConfigError
from mempo_trainers.credit import make
from mempo_trainers.run import read_metrics

OWN = '''
from mempo_trainers.credit.outcome import grpo


def hopeful(data, floor=0.0):
    """The outcome, but nobody is blamed; all scores are there."""
    data.need("memory_logp_RJ", "history_logp_RJ", "seen_logp_RJ", "prior_logp_NJ")
    return grpo(data).advantages_BK.clip(min=floor)


def whole(data):
    return grpo(data)


def wrong(data):
    return [[1.0]]
'''
SMALL = ("--objectives", "2", "--reward", "em_mean", "--steps", "2", "--questions", "2", "--rollouts", "4")


@pytest.fixture(autouse=True)
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_estimators.py").write_text(OWN)
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
