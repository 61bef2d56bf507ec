"""The table of formats."""

from __future__ import annotations

import re
from pathlib import Path

from msgspec import Struct

from mempo_env.questions.formats import alone, paragraphs
from mempo_env.questions.formats.common import SPLIT_NAMES, Reader
from mempo_env.types import Split


class Kind(Struct, frozen=True):
    """A format: how to read a row, what it is, and the split of its rows if the source has only one."""

    read: Reader
    help: str
    split: Split | None = None


KINDS: dict[str, Kind] = {
    "hotpotqa": Kind(
        paragraphs.hotpotqa, "HotpotQA: official or Hugging Face's layout, jsonl, json, parquet"
    ),
    "hotpotqa-adv": Kind(paragraphs.hotpotqa_adv, "HotpotQA with adversarial paragraphs of false facts"),
    "2wiki": Kind(paragraphs.wiki2, "2WikiMultihopQA, official layout"),
    "musique": Kind(paragraphs.musique, "MuSiQue, official layout"),
    "flashrag": Kind(alone.plain, "FlashRAG: id, question, golden_answers"),
    "searchr1": Kind(alone.searchr1, "Search-R1: jsonl or parquet"),
    "mem1": Kind(alone.mem1, "MEM1: several questions a row, joined with '; '"),
    "deepresearcher": Kind(alone.deepresearcher, "DeepResearcher: aliases joined with <|answer_split|>"),
    "bamboogle": Kind(alone.plain, "Bamboogle: csv with or without a header, or jsonl", "test"),
    "jsonl": Kind(alone.own, "lines of your own: id, question, answers, and what else a Question has"),
}
"""Formats of question files, by name."""


def split_of_file(path: Path) -> Split | None:
    """The split that a file's name says, as a word of it; None if it says none, or several."""
    words = re.split(r"[^a-z]+", path.name.lower())
    said = {SPLIT_NAMES[word] for word in words if word in SPLIT_NAMES}
    return said.pop() if len(said) == 1 else None
