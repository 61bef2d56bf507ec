"""A world of a few passages whose every answer is known, and a retriever that needs no index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym

import mempo_env  # registers the environments
from mempo_env.env import SearchQAEnv
from mempo_env.questions.set import QuestionSet
from mempo_env.types import Evidence, Hit, Passage, Question

assert mempo_env.ENVIRONMENTS

PASSAGES = tuple(
    Passage(f"p{i}", title, text)
    for i, (title, text) in enumerate(
        [
            ("Aldo Verne", "Aldo Verne is a painter. He was born in Marrow Bay in 1901."),
            ("Marrow Bay", "Marrow Bay is a harbour town. Its mayor is Ines Calder."),
            ("Bela Quist", "Bela Quist is a composer. She was born in Port Ostrel in 1899."),
            ("Port Ostrel", "Port Ostrel is a city on the Lune. Its mayor is Tomas Reve."),
            ("Kettle Works", "The Kettle Works are a factory. They were founded in 1950."),
        ]
    )
)


def question(i: int, split: str = "train") -> Question:
    """A bridge question on the person of passage 0 or 2: the mayor of the birthplace."""
    person, town = (0, 1) if i % 2 == 0 else (2, 3)
    return Question(
        id=f"q{i}",
        text=f"Who is the mayor of the town where {PASSAGES[person].title} was born? (variant {i})",
        answers=("Ines Calder", "Mayor Calder") if person == 0 else ("Tomas Reve",),
        split=split,  # type: ignore[arg-type]
        kind="bridge",
        hops=2,
        evidence=tuple(
            Evidence(PASSAGES[p].id, PASSAGES[p].title, (PASSAGES[p].text.split(". ")[1],))
            for p in (person, town)
        ),
    )


QUESTIONS = QuestionSet([question(i) for i in range(40)], name="small")


class TitleRetriever:
    """Returns the passages whose title stands in the query, then the others, in order of their rows."""

    fingerprint = "titles"

    def __init__(self, passages: Sequence[Passage] = PASSAGES) -> None:
        self.passages = passages
        self.calls: list[tuple[str, ...]] = []

    def search(self, queries: Sequence[str], k: int) -> list[tuple[Hit, ...]]:
        self.calls.append(tuple(queries))
        return [self._rank(query)[:k] for query in queries]

    def _rank(self, query: str) -> tuple[Hit, ...]:
        scored = ((float(p.title.lower() in query.lower()), row, p) for row, p in enumerate(self.passages))
        return tuple(
            Hit(p.id, p.title, p.text, row, score)
            for score, row, p in sorted(scored, key=lambda s: (-s[0], s[1]))
        )


def make(**kwargs: Any) -> SearchQAEnv:
    """An environment over the small world; `top_k` 1 unless told otherwise."""
    defaults: dict[str, Any] = {"dataset": QUESTIONS, "retriever": TitleRetriever(), "top_k": 1}
    env = gym.make("MemPO-SearchQA-v0", **{**defaults, **kwargs}).unwrapped
    assert isinstance(env, SearchQAEnv)
    return env


def search(query: str, memory: str | None = None) -> str:
    """A round that searches."""
    return ("" if memory is None else f"<mem>{memory}</mem>") + f"<think>hm</think><search>{query}</search>"


def answer(text: str, memory: str | None = None) -> str:
    """A round that answers."""
    return ("" if memory is None else f"<mem>{memory}</mem>") + f"<answer>{text}</answer>"
