"""The experiment with the small language model, made small: both runs, tests, the table."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from mempo_benchmarks import tiny_lm
from mempo_env.errors import ResultsError
from mempo_trainers.sft import SftConfig
from mempo_trainers.toy_text import CONFIG, ToyText
from tiny_lm_help import LEARN, SMALL


def test_the_experiment_runs_and_finds_what_it_has_done(tmp_path: Path) -> None:
    learn = msgspec.structs.replace(LEARN, steps=1)
    report = tiny_lm.experiment(tmp_path, 0, SMALL, learn)
    assert [line.split("|")[1].strip() for line in report.splitlines()[2:]] == ["warm start", "mempo", "grpo"]
    assert (tmp_path / "results-0.md").read_text() == report
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("model.safetensors")}
    assert len(files) == 2
    assert tiny_lm.experiment(tmp_path, 0, SMALL, learn) == report
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("model.safetensors")} == files
    other = msgspec.structs.replace(SMALL, warm=SftConfig(steps=5, batch=4))
    with pytest.raises(ResultsError, match="settings"):
        tiny_lm.experiment(tmp_path, 0, other, learn)


def test_the_experiment_is_the_command_for_longer() -> None:
    assert ToyText() == tiny_lm.TASK
    assert msgspec.structs.replace(CONFIG, steps=100) == tiny_lm.LEARN


def test_a_row_tells_the_mean_and_the_paired_difference() -> None:
    warm = {f"q{i}": (float(i % 2), 0.0) for i in range(40)}
    better = {f"q{i}": (1.0, 1.0) for i in range(40)}
    rows = tiny_lm.table({"warm start": warm, "mempo": better}, questions=80).splitlines()
    assert rows[0].startswith("| policy | EM on 80 questions |")
    assert rows[2].split("|")[2].strip().startswith("50.0 [")
    cells = [cell.strip() for cell in rows[3].split("|")]
    assert cells[2:4] == ["100.0 [100.0, 100.0]"] * 2
    assert cells[4].startswith("50.0 [3") and cells[4].endswith("]")
