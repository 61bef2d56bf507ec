"""The reader: what it does in a round, as a pure function of what is in view."""

from __future__ import annotations

from functools import partial
from typing import Any

from msgspec import Struct

from mempo_agents.base import Context
from mempo_agents.reader.follow import Outcome
from mempo_agents.reader.library import Library
from mempo_agents.reader.solve import solve
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
"""Raised whenever the behaviour of any module of the reader changes."""

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
    """Go on with the question in hand; answer when all are done, or no round is left.

    Args:
        context: What is in view.
        remembers: Whether there is a memory. It is given all notes that are still needed; without one, the
            thought says what is new in this round.
    """
    view = look(context)
    states = _states(view)
    library = Library((*view.articles, *(article for state in states for article in state.learned)))
    answers = {i: state.answer for i, state in enumerate(states) if state.answer}
    query, working = "", []
    for i in _order(view, len(states)):
        if i in answers:
            continue
        asked = states[i].asked
        seen = frozenset(map(key, (*asked, *view.queries)))
        outcome = solve(view.questions[i], library, asked, seen)
        if outcome.queries and not view.last_round:
            query = outcome.queries[0]
            working = [(i, note) for note in _working(states[i], outcome)]
            break
        answers[i] = outcome.answer or UNKNOWN
    notes = [(i, _ANSWER + answer) for i, answer in sorted(answers.items())] + working
    if not remembers:
        notes = [note for note in notes if note not in view.notes]
    said = {"memory" if remembers else "thought": write_notes(notes)}
    if query:
        return write_search(query, **said)
    return write_answers([answers.get(i, UNKNOWN) for i in range(len(states))], **said)


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
        State(answers.get(i, ""), tuple(dict.fromkeys(asked.get(i, ()))), tuple(learned.get(i, ())))
        for i in range(len(view.questions))
    ]


def _order(view: View, n: int) -> list[int]:
    """The question in hand, then the ones after it, then those before."""
    last = view.notes[-1][0] if view.notes else 0
    return [(last + i) % n for i in range(n)]


def _working(state: State, outcome: Outcome) -> list[str]:
    """The notes on the question in hand: what was learned, and the searches that would be made again."""
    learned = [write_article(article) for article in dict.fromkeys(outcome.support)]
    searches = [query for query in state.asked if query in outcome.again]
    return [*learned, *(_ASKED + query for query in (*searches, outcome.queries[0]))]


def reader_agent(regime: str) -> Scripted:
    """The reader with the memory of a regime; ConfigError if there is none of that name."""
    kwargs = REGIMES[regime]
    remembers = kwargs["memory"] == "inline"
    return Scripted(partial(write, remembers=remembers), regime, f"reader-{VERSION}-{regime}", kwargs)
