"""The experiment with the small language model, made small: warm start, both runs, tests, the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from mempo_benchmarks import tiny_lm
from mempo_env.errors import ResultsError
from mempo_env.questions.world import WorldSpec, synthetic
from mempo_trainers.config import Config
from mempo_trainers.sft import SftConfig


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny_lm, "WORLD", WorldSpec())
    monkeypatch.setattr(tiny_lm, "EPISODES", 12)
    monkeypatch.setattr(tiny_lm, "WARM", SftConfig(steps=4, batch=4))
    monkeypatch.setattr(tiny_lm, "LEARN", Config(steps=1, questions=2, rollouts=2, learning_rate=1e-4))
    monkeypatch.setattr(tiny_lm, "WIDTH", 16)
    monkeypatch.setattr(tiny_lm, "HEADS", 2)
    monkeypatch.setattr(tiny_lm, "MAX_NEW", 32)


def test_every_question_is_tested_once_and_none_of_the_training_split(small: None) -> None:
    asked = [id for pair in tiny_lm.objectives("test") for id in pair.split("+")]
    askable = {question.id for question in synthetic().split("test") if tiny_lm.askable(question)}
    assert len(asked) == len(set(asked)) and set(asked) <= askable and len(asked) >= len(askable) - 1
    trained = {id for pair in tiny_lm.objectives("train", 12) for id in pair.split("+")}
    assert not trained & set(asked)
    assert tiny_lm.objectives("train", 12) == tiny_lm.objectives("train", 12)


def test_the_experiment_runs_and_finds_what_it_has_done(
    small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = tiny_lm.experiment(tmp_path, seed=0)
    assert [line.split("|")[1].strip() for line in report.splitlines()[2:]] == ["warm start", "mempo", "grpo"]
    assert (tmp_path / "results-0.md").read_text() == report
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")}
    assert files
    assert tiny_lm.experiment(tmp_path, seed=0) == report
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")} == files
    monkeypatch.setattr(tiny_lm, "WARM", SftConfig(steps=5, batch=4))
    with pytest.raises(ResultsError, match="settings"):
        tiny_lm.experiment(tmp_path, seed=0)


def test_a_row_tells_the_mean_and_the_paired_difference() -> None:
    warm = {f"q{i}": (float(i % 2), 0.0) for i in range(40)}
    better = {f"q{i}": (1.0, 1.0) for i in range(40)}
    rows = tiny_lm.table({"warm start": warm, "mempo": better}, questions=80).splitlines()
    assert rows[0].startswith("| policy | EM on 80 questions |")
    assert rows[2].split("|")[2].strip().startswith("50.0 [")
    cells = [cell.strip() for cell in rows[3].split("|")]
    assert cells[2:4] == ["100.0 [100.0, 100.0]"] * 2
    assert cells[4].startswith("50.0 [3") and cells[4].endswith("]")
