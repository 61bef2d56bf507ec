"""What the articles in view say to a question: the plan if it is understood, else a pair, else a guess."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from mempo_agents.reader.follow import Outcome, follow
from mempo_agents.reader.gist import gist
from mempo_agents.reader.guess import best, spans
from mempo_agents.reader.inquiry import inquire
from mempo_agents.reader.library import Library
from mempo_agents.reader.pairs import compare, pair
from mempo_agents.reader.plans import understand
from mempo_agents.reader.text import MAX_QUESTION, holds, key, sentences
from mempo_agents.view import Article

SEARCHES = 6
"""Searches for a question that is not understood as a whole."""


def solve(question: str, library: Library, asked: Sequence[str], seen: frozenset[str]) -> Outcome:
    """Answer a question as far as the articles go, or say what to search for next.

    Args:
        question: Its text.
        library: The articles in view.
        asked: Searches made for it before, as far as is in view.
        seen: Keys of all searches in view; none of them is made again.
    """
    question = question[:MAX_QUESTION]
    plan = understand(question)
    two = pair(question) if plan is None else None
    known = Outcome()
    if plan is not None:
        known = _fresh(follow(plan, library), seen)
    elif two is not None:
        known = _fresh(compare(question, two, library), seen)
    if known.values or known.queries:
        return known
    opened = _fresh(_open(question, library, asked), seen)
    return structs.replace(
        opened,
        guess=known.guess or opened.guess,
        support=known.support + opened.support,
        again=known.again + opened.again,
    )


def _fresh(outcome: Outcome, seen: frozenset[str]) -> Outcome:
    """An outcome whose queries are new."""
    new = tuple(query for query in outcome.queries if key(query) not in seen)
    again = tuple(query for query in outcome.queries if key(query) in seen)
    return structs.replace(outcome, queries=new, again=(*outcome.again, *again))


def _open(question: str, library: Library, asked: Sequence[str]) -> Outcome:
    """The question itself is the first search, its names the next, then names in the best sentences."""
    articles = gist(question, library)
    answer = best(question, articles)
    if len(asked) >= SEARCHES:
        return Outcome(support=articles, guess=answer)
    inquiry = inquire(question)
    names = (*inquiry.names, *_leads(question, articles))
    queries = (inquiry.text, *(name for name in names if not library.about(name)))
    return Outcome(queries=queries, support=articles, guess=answer, again=tuple(asked))


def _leads(question: str, articles: Sequence[Article]) -> tuple[str, ...]:
    """Names in the articles that the question does not name, in the order of the articles."""
    asked = key(question)
    names = (
        sentence[start:end]
        for article in articles
        for sentence in sentences(article.text)
        for start, end in spans(sentence, "name")
    )
    return tuple(name for name in dict.fromkeys(names) if not holds(asked, name))
