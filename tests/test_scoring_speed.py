"""What the table of speed is made from, by hand, and that it is printed."""

from __future__ import annotations

import pytest

from mempo_benchmarks.speed import scoring
from scoring_help import VOCABULARY, make

pytest.importorskip("transformers", reason="needs mempo[llm]")


def test_the_work_counted_by_hand() -> None:
    """Three rounds score the memory and the history of the second and of the third; all three wrote."""
    scored, written = scoring.work(rollouts=2, rounds=3)
    assert [len(one.context) for one in scored] == [550, 360, 800, 360] * 2
    assert [len(one.context) for one in written] == [300, 550, 550] * 2
    assert {len(one.answer) for one in scored} == {8} and {len(one.answer) for one in written} == {100}
    assert len({one.context[:300].tobytes() for one in [*scored, *written]}) == 1
    assert len({one.answer.tobytes() for one in scored}) == 1


def test_the_table_is_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(scoring, "network", lambda: make("llama"))
    small = {"PROMPT": 9, "MEMORY": 3, "WRITTEN": 4, "ROUND": 8, "VOCABULARY": VOCABULARY}
    for name, value in small.items():
        monkeypatch.setattr(scoring, name, value)
    arguments = ["--rollouts", "2", "--rounds", "2", "3", "--repetitions", "2", "--threads", "1"]
    assert scoring.main(arguments) == 0
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert [len(row) for row in rows] == [9] * 4 and [row[:2] for row in rows[2:]] == [
        ["| 2", "2"],
        ["| 2", "3"],
    ]
