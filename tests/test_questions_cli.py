"""`mempo data`, as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from format_rows import HOTPOT, lines
from mempo_env.cli import main
from mempo_env.questions.formats import KINDS
from mempo_env.questions.set import QuestionSet


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal so wide that no table is folded."""
    monkeypatch.setenv("COLUMNS", "200")


def test_prepare_and_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{**HOTPOT, "_id": f"q{number}", "question": f"Who is [bold]{number}[/x]?"} for number in range(9)]
    rows[3]["supporting_facts"] = [["Gone", 0]]
    out = tmp_path / "out"
    assert (
        main(["data", "prepare", "hotpotqa", str(lines(tmp_path / "dev.jsonl", *rows)), "--out", str(out)])
        == 0
    )
    said = capsys.readouterr().out
    assert next(each.split() for each in said.splitlines() if "questions, dev" in each)[-2] == "9"
    assert "supporting facts that point nowhere, left out │     1" in said
    assert "questions without evidence                    │     1" in said
    assert QuestionSet.load(out).fingerprint in said

    assert main(["data", "show", str(out), "--n", "2"]) == 0
    said = capsys.readouterr().out
    assert "Who is [bold]0[/x]?" in said  # no markup
    assert sum(f"Who is [bold]{number}[/x]?" in said for number in range(9)) == 2
    assert "It was made by Ann & Bob." in said

    assert main(["data", "show", str(out), "--id", "q7"]) == 0
    said = capsys.readouterr().out
    assert "Who is [bold]7[/x]?" in said
    assert "passages" not in said


def test_a_synthetic_world_is_prepared_with_its_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "world"
    numbers = ["--articles", "150", "--questions", "60", "--seed", "4"]
    assert main(["data", "prepare", "synthetic", *numbers, "--out", str(out)]) == 0
    assert len(QuestionSet.load(out)) == 60
    said = capsys.readouterr().out
    assert "passages" in said
    assert main(["data", "prepare", "synthetic", *numbers, "--out", str(out)]) == 0  # the same again is fine


def test_several_corpora_may_be_added(tmp_path: Path) -> None:
    a = lines(tmp_path / "a.jsonl", {"title": "A", "text": "a"})
    b = lines(tmp_path / "b.jsonl", {"title": "B", "text": "b"})
    own = lines(tmp_path / "q.jsonl", {"question": "q", "answers": "x"})
    command = [
        "data",
        "prepare",
        "jsonl",
        str(own),
        "--corpus",
        str(a),
        "--corpus",
        str(b),
        "--split",
        "test",
    ]
    assert main([*command, "--out", str(tmp_path / "out")]) == 0
    titles = [
        json.loads(line)["title"] for line in (tmp_path / "out" / "corpus.jsonl").read_text().splitlines()
    ]
    assert titles == ["A", "B"]


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["prepare", "hotpot", "f.jsonl", "--out", "out"], "did you mean 'hotpotqa'"),
        (["prepare", "hotpotqa", "none.jsonl", "--out", "out"], "none.jsonl: wanted a file, found none"),
        (["prepare", "hotpotqa", "--out", "out"], "wanted at least one file of questions"),
        (["prepare", "jsonl", "bad.jsonl", "--out", "out"], "bad.jsonl:2: wanted a JSON object"),
        (["prepare", "jsonl", "good.jsonl", "--out", "good.jsonl"], "is no prepared folder"),
        (
            ["prepare", "jsonl", "good.jsonl", "--out", "out", "--seed", "1"],
            "--seed belong to 'synthetic' alone",
        ),
        (["prepare", "jsonl", "good.jsonl", "--out", "out", "--split", "eval"], "unknown split 'eval'"),
        (["prepare", "synthetic", "good.jsonl", "--out", "out"], "no files"),
        (["prepare", "synthetic", "--articles", "0", "--out", "out"], "articles: wanted 1 to"),
        (["show", "nowhere"], "wanted a prepared folder"),
    ],
)
def test_what_is_wrong_is_one_line_and_code_2_and_leaves_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    args: list[str],
    told: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    lines(tmp_path / "good.jsonl", {"question": "q", "answers": "x"})
    (tmp_path / "bad.jsonl").write_text('{"question": "q", "answers": "x"}\n{"question": \n')
    before = sorted(tmp_path.iterdir())
    assert main(["data", *args]) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("mempo: ")]
    assert len(said) == 1
    assert told in said[0]
    assert sorted(tmp_path.iterdir()) == before


def test_the_help_names_every_kind(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "prepare", "--help"]) == 0
    said = capsys.readouterr().out
    assert all(kind in said for kind in (*KINDS, "synthetic"))
