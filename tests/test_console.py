"""What is printed is the text that was given, whoever wrote it."""

from __future__ import annotations

from pathlib import Path

import pytest

from episodes import right, wrong
from mempo_env import progress as bars
from mempo_env.cli import main
from mempo_env.console import console
from runs import write_run

ROOT = Path(__file__).resolve().parents[1]


def test_text_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    console(40).print("l3:b :smile: [red]x[/red]")
    assert capsys.readouterr().out == "l3:b :smile: [red]x[/red]\n"


def test_a_name_with_colons_is_no_emoji(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of an agent `l3:b:` the report said that l3 had a picture."""
    played = {"l3:b:": [wrong(), right()], "random": [wrong()] * 2}
    write_run(tmp_path / "run", played, retriever="http://host:100:x", dataset="/data/hot:a:pot")
    assert main(["bench", "report", str(tmp_path / "run"), "--all"]) == 0
    told = capsys.readouterr().out
    assert "Best EM: l3:b:, 0.5" in told and "hot:a:pot" in told
    assert not {"🅱", "🅰", "💯"} & set(told)


def test_a_bar_is_told_as_it_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    with bars.progress("runs :100: [x]", 2) as advance:
        advance(2, "l3:b: [red]")
    told = capsys.readouterr().err
    assert "runs :100: [x]" in told and "l3:b: [red]" in told


def test_nothing_prints_past_it() -> None:
    made = [
        str(path.relative_to(ROOT))
        for part in ("mempo_env", "agents", "trainers", "benchmarks")
        for path in (ROOT / part).rglob("*.py")
        if "Console(" in path.read_text(encoding="utf-8")
    ]
    assert made == ["mempo_env/console.py"]
