"""Small rows of every format, and how tests write, prepare and read them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mempo_env.files import read_jsonl
from mempo_env.questions.formats import Summary, prepare
from mempo_env.questions.prepared import CORPUS
from mempo_env.questions.set import QuestionSet
from mempo_env.types import Passage

HOTPOT = {
    "_id": "5a",
    "question": "Who wrote it?",
    "answer": "Ann & Bob",
    "type": "bridge",
    "level": "hard",
    "supporting_facts": [["Catan: Cities &amp; Knights", 1], ["Ann/Bob", 0]],
    "context": [
        ["Catan: Cities &amp; Knights", ["It is a game.", " It was made by Ann & Bob.", " It sold well."]],
        ["Ann/Bob", ["They write."]],
        ["Other", ["Nothing."]],
    ],
}


MUSIQUE = {
    "id": "2hop__1_2",
    "question": "Where?",
    "answer": "Rome",
    "answer_aliases": ["Roma", "Rome", " "],
    "answerable": True,
    "paragraphs": [
        {"idx": 0, "title": "T", "paragraph_text": "One text.", "is_supporting": True},
        {"idx": 1, "title": "T", "paragraph_text": "Another text.", "is_supporting": False},
        {"idx": 2, "title": "U", "paragraph_text": "Rome.", "is_supporting": True},
    ],
}


def verl(content: str, truth: Any, **extra: Any) -> dict[str, Any]:
    return {
        "data_source": "nq",
        "prompt": [{"role": "user", "content": content}],
        "ability": "qa",
        "reward_model": {"style": "rule", "ground_truth": truth},
        "extra_info": {"split": "train", **extra},
    }


def lines(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def passages(folder: Path) -> list[Passage]:
    return [passage for _, passage in read_jsonl(folder / CORPUS, Passage)]


def run(folder: Path, kind: str, *files: Path, **options: Any) -> tuple[Summary, QuestionSet]:
    """Prepare folder/out and load it."""
    summary = prepare(kind, files, folder / "out", **options)
    return summary, QuestionSet.load(folder / "out")
