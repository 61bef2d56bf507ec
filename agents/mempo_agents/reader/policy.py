"""The reader: what it makes of what is in view, whatever the regime of memory."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from mempo_agents.reader.follow import Outcome
from mempo_agents.reader.library import Library
from mempo_agents.reader.solve import solve
from mempo_agents.reader.text import key
from mempo_agents.view import Article, View, read_article, write_article

UNKNOWN = "unknown"
ANSWER, ASKED = "= ", "? "
"""How a note starts that is an answer, and one that is a search already made."""

Note = tuple[int, str]
"""(number of the objective from 0, text)."""


class State(Struct, frozen=True):
    """What the notes in view say of one objective: its answer, the searches made for it, what was learned."""

    answer: str
    asked: tuple[str, ...]
    learned: tuple[Article, ...]


class Step(Struct, frozen=True):
    """What the reader makes of what is in view.

    Attributes:
        notes: All that is still needed: a line for each answer, what was learned on the question in hand, and
            the searches for it that need not be repeated.
        query: What to search for next; empty if all is done or no round is left.
        answers: One for each question; "unknown" where there is none yet.
    """

    notes: tuple[Note, ...]
    query: str
    answers: tuple[str, ...]


def go_on(view: View) -> Step:
    """Go on with the question in hand until something must be searched for, which the notes then say."""
    return _work(view, planned=True)


def take_in(view: View) -> Step:
    """Take in what the last search of the view brought, whose query the notes then say; plan no other."""
    return _work(view, planned=False)


def _work(view: View, planned: bool) -> Step:
    states = _states(view)
    library = Library((*view.articles, *(article for state in states for article in state.learned)))
    answers = {i: state.answer for i, state in enumerate(states) if state.answer}
    query, working, made = "", [], () if planned else view.queries
    for i in _order(view, len(states)):
        if i in answers:
            continue
        asked = tuple(dict.fromkeys((*states[i].asked, *made)))
        made = ()  # they were made for the first question that had no answer
        seen = frozenset(map(key, (*asked, *view.queries)))
        outcome = solve(view.questions[i], library, asked, seen)
        if outcome.queries and not view.last_round:
            query = outcome.queries[0]
            working = [(i, note) for note in _working(asked, outcome, query if planned else "")]
            break
        answers[i] = outcome.answer or UNKNOWN
    notes = [*((i, ANSWER + answer) for i, answer in sorted(answers.items())), *working]
    return Step(tuple(notes), query, tuple(answers.get(i, UNKNOWN) for i in range(len(states))))


def _states(view: View) -> list[State]:
    answers: dict[int, str] = {}
    asked: dict[int, list[str]] = {}
    learned: dict[int, list[Article]] = {}
    for i, note in view.notes:
        article = read_article(note)
        if note.startswith(ANSWER):
            answers[i] = note.removeprefix(ANSWER)
        elif note.startswith(ASKED):
            asked.setdefault(i, []).append(note.removeprefix(ASKED))
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


def _working(asked: Sequence[str], outcome: Outcome, query: str) -> list[str]:
    """The notes on the question in hand: what was learned, and the searches that would be made again."""
    learned = [write_article(article) for article in dict.fromkeys(outcome.support)]
    searches = [made for made in asked if made in outcome.again]
    return [*learned, *(ASKED + made for made in (*searches, query) if made)]
