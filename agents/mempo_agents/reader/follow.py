"""Carrying out a plan with the passages in view: a value, or what must be looked up next."""

from __future__ import annotations

from msgspec import Struct

from mempo_agents.reader.library import Library
from mempo_agents.reader.plans import First, Name, Of, Pick, Plan, Same
from mempo_agents.reader.telling import told
from mempo_agents.reader.text import day, key, quantity
from mempo_agents.view import Article


class Outcome(Struct, frozen=True):
    """What came of a question.

    Attributes:
        values: The values found, one or (of a group) several; empty if something is missing yet.
        queries: What to search for, in this order, where something is missing.
        support: The sentences that were used, under the titles of their articles.
        guess: The best answer if no more is to be found; empty if there is none.
        again: Searches made before that must be remembered, or they would be made again.
    """

    values: tuple[str, ...] = ()
    queries: tuple[str, ...] = ()
    support: tuple[Article, ...] = ()
    guess: str = ""
    again: tuple[str, ...] = ()

    @property
    def answer(self) -> str:
        """The value, or else the guess."""
        return self.values[0] if self.values else self.guess


def follow(plan: Plan, library: Library) -> Outcome:
    """Carry out a plan as far as the passages go."""
    match plan:
        case Name():
            return Outcome(values=(plan.text,))
        case Of():
            return _of(plan, library)
        case Pick():
            return _pick(plan, library)
        case First():
            return _first(plan, library)
        case Same():
            return _same(plan, library)


def _of(plan: Of, library: Library) -> Outcome:
    thing = follow(plan.thing, library)
    return _look_up(plan.relation, thing.values[0], library, thing.support) if thing.values else thing


def _look_up(relation: str, name: str, library: Library, support: tuple[Article, ...]) -> Outcome:
    """The value of a relation of a thing, in the articles about it."""
    for mention in library.about(name):
        found = told(relation, mention.article.text)
        if found is not None:
            values, sentence = found
            text = sentence if mention.because in ("", sentence) else f"{mention.because} {sentence}"
            return Outcome(values=values, support=(*support, Article(mention.article.title, text)))
    return Outcome(queries=(name, f"{name} {relation}"), support=support)


def _pick(plan: Pick, library: Library) -> Outcome:
    """Look at each of the group until one has the value; guess one of which nothing is known."""
    group, value = follow(plan.group, library), follow(plan.value, library)
    support = group.support + value.support
    if not group.values or not value.values:
        return Outcome(queries=together(group, value), support=support)
    unknown: list[Outcome] = []
    guess = ""
    for member in group.values:
        found = _look_up(plan.relation, member, library, ())
        support += found.support
        if not found.values:
            unknown.append(found)
            guess = member
        elif key(found.values[0]) == key(value.values[0]):
            return Outcome(values=(member,), support=support)
    return Outcome(queries=together(*unknown), support=support, guess=guess)


def _first(plan: First, library: Library) -> Outcome:
    left, right = (follow(measure, library) for measure in plan.measures)
    support = left.support + right.support
    if not left.values or not right.values:
        return Outcome(queries=together(left, right), support=support, guess=plan.names[0])
    a, b = (day(side.values[0]) or (quantity(side.values[0]) or 0, 0, 0) for side in (left, right))
    return Outcome(values=(plan.names[int((b > a) == plan.largest)],), support=support)


def _same(plan: Same, library: Library) -> Outcome:
    left, right = (follow(value, library) for value in plan.values)
    support = left.support + right.support
    if not left.values or not right.values:
        return Outcome(queries=together(left, right), support=support, guess="no")
    return Outcome(values=("yes" if key(left.values[0]) == key(right.values[0]) else "no",), support=support)


def together(*missing: Outcome) -> tuple[str, ...]:
    """The queries of all that is missing: first one for all together, as one search may bring it all."""
    firsts = [outcome.queries[0] for outcome in missing if outcome.queries]
    together = (" ".join(firsts),) if len(firsts) > 1 else ()
    return together + tuple(query for outcome in missing for query in outcome.queries)
