"""What every system has to do: questions, actions that answer or search, and the rewards they must earn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mempo_benchmarks.speed.retrieval import passages, questions
from mempo_env.questions.prepared import prepared
from mempo_env.retrieval import INDEX_FOLDER
from mempo_env.retrieval.bm25 import build_index
from mempo_env.retrieval.corpus import CORPUS_FILE, Corpus
from mempo_env.types import Evidence, Passage, Question, passage_id

Row = dict[str, Any]
"""An episode as plain data: id, question, answers, actions, reward."""

SEARCHES = 3


def row(question: Question, queries: Sequence[str] = (), right: bool = True) -> Row:
    """An episode that searches for each query, then answers, rightly or not."""
    thought = "<think> What I know so far may be enough. </think>"
    answer = question.answers[0] if right else "none of this"
    return {
        "id": question.id,
        "question": question.text,
        "answers": list(question.answers),
        "actions": [
            *(f"{thought}\n<search> {query} </search>" for query in queries),
            f"{thought}\n<answer> {answer} </answer>",
        ],
        "reward": float(right),
    }


def write_searches(folder: Path, size: int, episodes: int) -> list[Row]:
    """Write a prepared folder of invented passages with its index; return episodes that search it.

    Every episode asks about one passage and searches for three; no query comes twice.

    Args:
        folder: A new one.
        size: Passages, at least three an episode.
        episodes: How many.
    """
    made = [Passage(passage_id(p.title, p.text), p.title, p.text) for p in passages(size)]
    queries = list(dict.fromkeys(questions(made)))
    rows = []
    with prepared(folder, "passages", "synthetic") as writer:
        for passage in made:
            writer.passage(passage)
        for i in range(episodes):
            gold, mine = made[SEARCHES * i], queries[SEARCHES * i : SEARCHES * (i + 1)]
            evidence = (Evidence(gold.id, gold.title, (gold.text,)),)
            question = Question(id=str(i), text=mine[0], answers=(gold.title,), evidence=evidence)
            writer.question(question, "passages")
            rows.append(row(question, mine))
    build_index(Corpus.open(folder / CORPUS_FILE), folder / INDEX_FOLDER)
    return rows
