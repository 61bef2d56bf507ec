"""What the loops must learn, with fixed seeds: success on questions of the test split, and a clean bill."""

from __future__ import annotations

from pathlib import Path

import pytest

from mempo_trainers.config import Config
from mempo_trainers.doctor.cli import examine
from mempo_trainers.toy import Toy, train

LEARNED = 0.9


@pytest.mark.slow
@pytest.mark.parametrize(
    "task, config",
    [
        pytest.param(Toy(objectives=2), Config(steps=80), id="mempo, 2 objectives"),
        pytest.param(Toy(objectives=4), Config(steps=130), id="mempo, 4 objectives"),
        pytest.param(
            Toy(objectives=2, reward="em_mean"), Config(steps=80, credit="grpo"), id="grpo, em_mean"
        ),
        pytest.param(Toy(objectives=2), Config(steps=80, algo="ppo"), id="ppo with mempo, 2 objectives"),
        pytest.param(
            Toy(objectives=1, reward="em_mean"),
            Config(steps=60, algo="ppo", credit="gae"),
            id="ppo with gae, 1 objective",
        ),
        pytest.param(
            Toy(objectives=2, reward="em_mean"),
            Config(steps=100, algo="ppo", credit="gae"),
            id="ppo with gae, 2 objectives",
        ),
        pytest.param(
            Toy(objectives=2, policy="tabular"), Config(steps=200), id="mempo, tabular, 2 objectives"
        ),
    ],
)
def test_it_learns(task: Toy, config: Config, tmp_path: Path) -> None:
    result = train(task, config, tmp_path / "run", board=False)
    assert result["episodes"] == 512
    assert result["success"] >= LEARNED
    assert examine(tmp_path / "run").findings == ()


@pytest.mark.slow
def test_the_outcome_alone_does_not_learn_four_objectives(tmp_path: Path) -> None:
    """The control: what learns above does not learn because the task is easy."""
    result = train(Toy(objectives=4), Config(steps=130, credit="grpo"), tmp_path / "run", board=False)
    assert result["success"] < 0.2
    assert [finding.symptom for finding in examine(tmp_path / "run").findings] == ["no_advantage"]
