"""The reader: what it does in a round, as a pure function of what is in view."""

from __future__ import annotations

from functools import partial
from typing import Any

from msgspec import Struct

from mempo_agents.base import Context
from mempo_agents.reader.follow import Outcome, follow
from mempo_agents.reader.library import Library
from mempo_agents.reader.plans import understand
from mempo_agents.reader.text import key
from mempo_agents.scripted import Scripted
from mempo_agents.view import (
    Article,
    View,
    look,
    read_article,
    write_answers,
    write_article,
    write_notes,
    write_search,
)

VERSION = 1
"""Raised whenever the behaviour changes."""

REGIMES: dict[str, dict[str, Any]] = {
    "react": {"context": "full", "memory": "none"},
    "window": {"context": 2, "memory": "none"},
    "no_memory": {"context": "last_step", "memory": "none"},
    "mempo": {"context": "last_step", "memory": "inline"},
}
"""Name: the arguments of the environment that make its memory."""

UNKNOWN = "unknown"
_ANSWER, _ASKED = "= ", "? "


class State(Struct, frozen=True):
    """What the notes in view say of one objective: its answer, the searches made for it, what was learned."""

    answer: str
    asked: tuple[str, ...]
    learned: tuple[Article, ...]


def write(context: Context, remembers: bool) -> str:
    """Go on with the question in hand; answer when all are done, or no round is left."""
    view = look(context)
    states = _states(view)
    library = Library((*view.articles, *(article for state in states for article in state.learned)))
    seen = frozenset(map(key, view.queries))
    notes: list[tuple[int, str]] = []
    answers = {i: state.answer for i, state in enumerate(states) if state.answer}
    query = ""
    for i in _order(view, len(states)):
        if i in answers:
            continue
        outcome = solve(view.questions[i], library)
        query = (
            ""
            if outcome.values or view.last_round
            else _fresh(outcome, seen.union(map(key, states[i].asked)))
        )
        if query:
            notes = _working(i, states[i], outcome, query)
            break
        answers[i] = outcome.values[0] if outcome.values else outcome.guess or UNKNOWN
    known = [(i, _ANSWER + answer) for i, answer in sorted(answers.items())]
    new = [(i, note) for i, note in known if not states[i].answer]
    text = write_notes([*(known if remembers else new), *notes])
    if not query:
        ordered = [answers.get(i, UNKNOWN) for i in range(len(states))]
        return write_answers(ordered, memory=text) if remembers else write_answers(ordered, thought=text)
    return write_search(query, memory=text) if remembers else write_search(query, thought=text)


def _states(view: View) -> list[State]:
    answers: dict[int, str] = {}
    asked: dict[int, list[str]] = {}
    learned: dict[int, list[Article]] = {}
    for i, note in view.notes:
        article = read_article(note)
        if note.startswith(_ANSWER):
            answers[i] = note.removeprefix(_ANSWER)
        elif note.startswith(_ASKED):
            asked.setdefault(i, []).append(note.removeprefix(_ASKED))
        elif article is not None:
            learned.setdefault(i, []).append(article)
    return [
        State(answers.get(i, ""), tuple(asked.get(i, ())), tuple(learned.get(i, ())))
        for i in range(len(view.questions))
    ]


def _order(view: View, n: int) -> list[int]:
    """The question in hand, then the ones after it, then those before."""
    last = view.notes[-1][0] if view.notes else 0
    return [(last + i) % n for i in range(n)]


def _fresh(outcome: Outcome, asked: frozenset[str]) -> str:
    """The first query that was not asked yet, as far as is in view."""
    return next((query for query in outcome.queries if key(query) not in asked), "")


def _working(i: int, state: State, outcome: Outcome, query: str) -> list[tuple[int, str]]:
    """The notes on the question in hand."""
    learned = dict.fromkeys(outcome.support)
    asked = dict.fromkeys((*(q for q in state.asked if q in outcome.queries), query))
    return [*((i, write_article(a)) for a in learned), *((i, _ASKED + q) for q in asked)]


def solve(question: str, library: Library) -> Outcome:
    """What the articles say to a question."""
    plan = understand(question)
    return follow(plan, library) if plan is not None else Outcome()


def reader_agent(regime: str) -> Scripted:
    """The reader with the memory of a regime; ConfigError if there is none of that name."""
    kwargs = REGIMES[regime]
    remembers = kwargs["memory"] == "inline"
    return Scripted(partial(write, remembers=remembers), regime, f"reader-{VERSION}-{regime}", kwargs)
