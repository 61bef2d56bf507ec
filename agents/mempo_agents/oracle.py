"""The ceiling: knows what to look for, and answers rightly exactly when it has it in view.

It is told the gold evidence and the answers, but not what the search returned: an objective is answered
rightly if every gold passage of it was shown and is kept, in the memory that it writes or in the passages in
view, or one that says the answer. Where rounds are too few for all passages it looks for those that make most
objectives right. Where no evidence is known there is nothing to keep, and it answers rightly at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TypeAlias

from mempo_agents.base import Context
from mempo_agents.scripted import Scripted
from mempo_agents.view import (
    Article,
    View,
    look,
    read_article,
    shown,
    write_answers,
    write_article,
    write_notes,
    write_search,
)
from mempo_env.errors import ConfigError
from mempo_env.questions.set import QuestionSet
from mempo_env.scoring import contains, is_closed, normalise, normalised_answers
from mempo_env.types import Evidence, Question, passage_id

VERSION = 2
"""Raised whenever the behaviour changes."""

WRONG = "-"
"""The answer where evidence is missing: right for no question."""

_MISSED = "missed:"

Need: TypeAlias = tuple[int, Evidence]
"""A gold passage, with the number of its objective from 0."""


def write(context: Context, questions: QuestionSet) -> str | Exception:
    """Search for the next passage that is missing; answer when there is none, or no round left."""
    view = look(context)
    try:
        objectives = tuple(map(questions.by_id, context.question_id.split("+")))
    except ConfigError as error:
        return error
    wanted = [(i, evidence) for i, question in enumerate(objectives) for evidence in question.evidence]
    held = {(i, e): article for i, e in wanted if (article := _held(view, i, e))}
    missed = {(i, e) for i, e in wanted if (i, e) not in held and (i, _missed(e)) in view.notes}
    right = [_right(i, question, held) for i, question in enumerate(objectives)]
    query = ""
    for i, evidence in _order([need for need in wanted if need not in held], objectives, right, view):
        if query or view.last_round:
            break
        if (i, evidence) not in missed:
            query = _next_query(evidence, objectives[i], view.queries)
            if not query:
                missed.add((i, evidence))
    kept = [(i, write_article(article)) for (i, _), article in held.items()]
    memory = write_notes(kept + [(i, _missed(e)) for i, e in wanted if (i, e) in missed])
    if query:
        return write_search(query, memory=memory)
    answers = [q.answers[0] if ok else WRONG for q, ok in zip(objectives, right, strict=True)]
    return write_answers(answers, memory=memory)


def _right(objective: int, question: Question, held: Mapping[Need, Article]) -> bool:
    """Whether all evidence of an objective is held, or a part of it that says the answer."""
    parts = [held.get((objective, evidence)) for evidence in question.evidence]
    return all(parts) or any(part is not None and _says(part, question) for part in parts)


def _says(article: Article, question: Question) -> bool:
    """Whether the answer stands in an article; of yes and no none does."""
    text = normalise(f"{article.title} {article.text}")
    golds = () if is_closed(question.answers) else normalised_answers(question.answers)
    return any(contains(text, gold) for gold in golds)


def _order(
    needs: list[Need], objectives: Sequence[Question], right: Sequence[bool], view: View
) -> list[Need]:
    """What is missing, in its order; if rounds are too few, first what makes an objective right soonest."""
    if view.rounds_left is None or len(needs) < view.rounds_left:
        return needs
    ways = []
    for i, question in enumerate(objectives):
        missing = [need for need in needs if need[0] == i]
        telling = [e for e in missing if _says(Article(e[1].title, " ".join(e[1].sentences)), question)]
        ways.append((right[i], telling[:1] or missing, missing))
    ways.sort(key=lambda way: (way[0], len(way[1])))
    return list(dict.fromkeys(need for _, *parts in ways for part in parts for need in part))


def _held(view: View, objective: int, evidence: Evidence) -> Article | None:
    """The evidence, as it is in view in a passage or in a note of its objective; None if it is not.

    That is its sentences under its title. Where no sentence is named it is the whole passage, known by its
    id; one whose white space the environment changes (it shows single spaces) is not recognised.
    """
    title, sentences = shown(evidence.title), tuple(map(shown, evidence.sentences))
    noted = (read_article(text) for i, text in view.notes if i == objective)
    for article in (*noted, *view.articles):
        if article is None or article.title != title:
            continue
        if sentences and all(sentence in article.text for sentence in sentences):
            return Article(title, " ".join(sentences))
        if not sentences and passage_id(article.title, article.text) == evidence.passage_id:
            return article
    return None


def _next_query(evidence: Evidence, question: Question, asked: Sequence[str]) -> str:
    """The title, then the title with more that the passage may say, then nothing."""
    clues = (
        "",
        *([" ".join(evidence.sentences)] if evidence.sentences else [question.text, question.answers[0]]),
    )
    queries = [shown(f"{evidence.title} {clue}") for clue in clues]
    last = asked[-1] if asked else ""
    return [*queries, ""][queries.index(last) + 1] if last in queries else queries[0]


def _missed(evidence: Evidence) -> str:
    return f"{_MISSED} {shown(evidence.title)}"


def oracle_agent(questions: QuestionSet) -> Scripted:
    """The agent, for the questions of a set."""
    write_here = partial(write, questions=questions)
    return Scripted(write_here, "oracle", f"oracle-{VERSION}-{questions.fingerprint}")
