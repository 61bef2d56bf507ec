"""Notes side by side: what two or more of them say together, and what a new one adds to those there are."""

from __future__ import annotations

from mempo_agents.reader.relations import RELATIONS
from mempo_agents.reader.telling import told
from mempo_agents.reader.text import key, sentences
from mempo_agents.view import View, read_article


def merge(view: View) -> str:
    """What all notes in view say, each sentence once; under one title where all have it."""
    parts = [_taken_apart(text) for text in (*(text for _, text in view.entries), *view.facts)]
    titles = {title for title, _ in parts}
    lone = len(titles) == 1
    said = dict.fromkeys(
        sentence if lone or not title else f"{title}: {sentence}"
        for title, text in parts
        for sentence in sentences(text)
    )
    kept = [one for one in said if not any(one != other and _within(one, other) for other in said)]
    title = titles.pop() if lone else ""
    return (f"{title} :: " if title else "") + " ".join(kept)


def choose(view: View) -> str:
    """What to do about a new fact: ADD it, UPDATE a note of less, DELETE one that it belies, or NONE."""
    fact = view.facts[-1] if view.facts else ""
    title, text = _taken_apart(fact)
    if not key(text):
        return "NONE"
    for id, note in view.entries:
        about, says = _taken_apart(note)
        if key(about) == key(title) and _said(text, says):
            return "NONE"
        if key(about) == key(title) and _belie(text, says):
            return f"DELETE {id}"
    for id, note in view.entries:
        about, says = _taken_apart(note)
        if key(about) == key(title) and (title or _said(says, text)):
            return f"UPDATE {id}"
    return "ADD"


def _taken_apart(note: str) -> tuple[str, str]:
    """The title of a note, empty if it has none, and its text."""
    article = read_article(note)
    return (article.title, article.text) if article else ("", note)


def _within(part: str, whole: str) -> bool:
    return f" {key(part)} " in f" {key(whole)} "


def _said(text: str, by: str) -> bool:
    """Whether every sentence of a text stands in another one."""
    return all(any(_within(one, other) for other in sentences(by)) for one in sentences(text))


def _belie(text: str, other: str) -> bool:
    """Whether two texts about a thing tell different values of a relation."""
    pairs = ((told(relation, text), told(relation, other)) for relation in RELATIONS)
    return any(one and two and key(one[0][0]) != key(two[0][0]) for one, two in pairs)
