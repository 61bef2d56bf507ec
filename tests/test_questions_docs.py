"""docs/data.md: what it says of the formats and quotes of the world is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mempo_env.questions.formats import KINDS
from mempo_env.questions.world import WorldSpec, articles, synthetic

PAGE = Path(__file__).resolve().parents[1] / "docs" / "data.md"
TEXT = PAGE.read_text()


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
