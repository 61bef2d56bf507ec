"""Notes that are to be found again by what they say: made so that each can be understood alone, and linked.

    3. Aldo Verne :: He was born in Marrow Bay in 1901.
    3. Where was Aldo Verne born? = Marrow Bay
    3. Where was Aldo Verne born? ? Aldo Verne birthplace

What was learned names its thing; an answer, and a search that was made, stand after their question.
"""

from __future__ import annotations

from msgspec import structs

from mempo_agents.reader.guess import spans
from mempo_agents.reader.policy import ANSWER, ASKED, Note, Step
from mempo_agents.reader.text import key, sentences
from mempo_agents.view import View


def alone(view: View, note: Note) -> Note:
    """A note that can be understood alone."""
    i, text = note
    return (i, f"{view.questions[i]} {text}") if text.startswith((ANSWER, ASKED)) else note


def bare(view: View) -> View:
    """The view with notes as they are where their question is not told."""
    return structs.replace(view, notes=tuple(_bare(view, note) for note in view.notes))


def _bare(view: View, note: Note) -> Note:
    i, text = note
    question = view.questions[i] if 0 <= i < len(view.questions) else ""
    rest = text.removeprefix(question).lstrip()
    return (i, rest) if rest.startswith((ANSWER, ASKED)) else note


def look_up(view: View, step: Step) -> str:
    """A read of a memory bank for the question in hand."""
    return f"<memory_read> {view.questions[step.notes[-1][0]]} </memory_read>\n"


def keywords(view: View) -> str:
    """The names in the last fact."""
    return ", ".join(_names(view.facts[-1] if view.facts else ""))


def link(view: View) -> str:
    """The numbers of the entries that share a name with the last fact, or NONE."""
    names = {key(name) for name in _names(view.facts[-1] if view.facts else "")}
    linked = [str(id) for id, text in view.entries if not names.isdisjoint(map(key, _names(text)))]
    return ", ".join(linked) or "NONE"


def _names(text: str) -> tuple[str, ...]:
    """The names in a text, each once."""
    found = (told[start:end] for told in sentences(text) for start, end in spans(told, "name"))
    return tuple({key(name): name for name in found if key(name)}.values())
