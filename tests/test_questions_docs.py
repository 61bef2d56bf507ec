"""docs/data.md: every block runs, in order and as it stands, and what it quotes of the world is there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from mempo_env.cli import main
from mempo_env.questions.formats import KINDS
from mempo_env.questions.world import WorldSpec, articles, synthetic

PAGE = Path(__file__).resolve().parents[1] / "docs" / "data.md"
TEXT = PAGE.read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def test_every_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MEMPO_CACHE", str(tmp_path / "cache"))
    names: dict[str, Any] = {}
    for language, block in BLOCKS:
        if language == "python":
            exec(compile(block, str(PAGE), "exec"), names)
            continue
        command, *arguments = shlex.split(block)
        assert (language, command) == ("sh", "mempo")
        assert main(arguments) == 0, block
    assert {language for language, _ in BLOCKS} == {"python", "sh"}


def test_every_kind_is_in_the_table() -> None:
    assert set(re.findall(r"^\| `([\w-]+)` \|", TEXT, re.MULTILINE)) == {*KINDS, "synthetic"}


def test_the_quoted_article_and_questions_are_of_the_embedded_world(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMPO_CACHE", str(tmp_path))
    quote = " ".join(line.removeprefix("> ") for line in TEXT.splitlines() if line.startswith("> "))
    title, text = re.fullmatch(r"\*\*(.+)\.\*\* (.+)", quote).groups()  # type: ignore[union-attr]
    assert (title, text) in {(passage.title, passage.text) for passage in articles(WorldSpec())}
    told = re.findall(r"^\|(?: \w+)? \| [\w, ]+ \| (.+\?) \| (.+) \|$", TEXT, re.MULTILINE)
    assert len(told) == 4
    assert set(told) <= {(row.text, row.answers[0]) for row in synthetic()}
