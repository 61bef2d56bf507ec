"""The model `scripted`: a reader without weights, which does what the messages ask for and no more.

It sees the messages alone. What it is asked for are instructions: system messages, and what stands outside of
tags, questions and hint in messages of the user. What stands in a tag, between `<information>` and its end
above all, is data and never an instruction.

A **form** is a tag with its end and three dots (in a system message: any words) between them,
`<mem> ... </mem>`: something to be written. A tag alone, `<mem>`, is something to be read. The words that ask
for something are those of `TASKS`; where several stand in a prompt the last one counts, so that a message may
ask for something else than the system's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from msgspec import Struct, structs

from mempo_agents.models.base import ModelError, Prompt
from mempo_agents.reader import bank, facts, merging
from mempo_agents.reader.policy import go_on, take_in
from mempo_agents.view import Piece, View, pieces, view, write_answers, write_notes, write_search
from mempo_env.tokens import count_words
from mempo_env.types import Call

VERSION = 2
"""Raised whenever what it writes changes."""

NOTHING = "nothing yet"
"""What is written where there is nothing to note."""

FOLLOW_UP = "What is known of {}?"
"""How a search is put as a question of its own."""

_FORM = re.compile(r"<(\w+)(?: [^<>]*)?>[^<>]*</\1>")
_FOLLOW_UPS = re.compile(r"\bfollow-up question", re.IGNORECASE)
_SEMICOLONS = re.compile(r"\bsemicolon between\b", re.IGNORECASE)
_ASKED_SO = re.compile(re.escape(FOLLOW_UP).replace(r"\{\}", "(.*)"))


class Asked(Struct, frozen=True):
    """A task as the instructions put it.

    Attributes:
        view: What is in view.
        forms: The tags that are to be written.
        follow_ups: Whether a search is to be put as a question.
        semicolons: Whether several answers are to stand between semicolons.
    """

    view: View
    forms: frozenset[str]
    follow_ups: bool
    semicolons: bool


def play(asked: Asked) -> str:
    """A round: one search or the answers, with the memory, the thought or the operations asked for."""
    if "memory_write" in asked.forms:
        return bank.play(asked.view, asked.semicolons)
    step = go_on(asked.view)
    said = {}
    if "mem" in asked.forms:
        said["memory"] = write_notes(step.notes)
    elif "think" in asked.forms:
        said["thought"] = write_notes(note for note in step.notes if note not in asked.view.notes)
    if step.query and "search" in asked.forms:
        query = FOLLOW_UP.format(step.query) if asked.follow_ups else step.query
        looked = facts.look_up(asked.view, step) if "memory_read" in asked.forms else ""
        return looked + write_search(query, **said)
    return write_answers(step.answers, semicolons=asked.semicolons, **said)


def rewrite(asked: Asked) -> str:
    """The notes that are still needed, after all that is in view."""
    return write_notes(take_in(asked.view).notes) or NOTHING


def find(asked: Asked) -> str:
    """The notes that what the last search brought adds to those in view."""
    new = (note for note in take_in(asked.view).notes if note not in asked.view.notes)
    return write_notes(new) or NOTHING


def extract(asked: Asked) -> str:
    """What the last search adds to the notes in view, each line so that it can be understood alone."""
    new = (note for note in take_in(asked.view).notes if note not in asked.view.notes)
    return write_notes(facts.alone(asked.view, note) for note in new)


def answer(asked: Asked) -> str:
    """The answers alone, to a prompt that asks for nothing in particular."""
    step = go_on(asked.view)
    return step.answers[0] if len(step.answers) == 1 else write_notes(enumerate(step.answers))


class Task(Struct, frozen=True):
    """Something that a prompt may ask for: the words of a person who does, and what is then written."""

    words: re.Pattern[str]
    write: Callable[[Asked], str]


def _task(words: str, write: Callable[[Asked], str], flags: int = re.IGNORECASE) -> Task:
    return Task(re.compile(words, flags), write)


TASKS = {
    "play a round": _task(r"<(search|answer)>[^<>]*</\1>", play),
    "rewrite a memory": _task(
        r"\b(?:rewrite|update|overwrite) (?:the|your) (?:memory|report|state)\b", rewrite
    ),
    "summarise a history": _task(r"\bsummari[sz]e (?:the|your) (?:history|steps|conversation)\b", rewrite),
    "answer a follow-up question": _task(r"\banswer the follow-up question\b", find),
    "extract facts": _task(r"\b(?:extract the facts|summari[sz]e the step)\b", extract),
    "name keywords": _task(r"\bkeywords of the note\b", lambda asked: facts.keywords(asked.view)),
    "link notes": _task(r"\bnotes that belong together\b", lambda asked: facts.link(asked.view)),
    "merge notes": _task(r"\bmerge the notes\b", lambda asked: merging.merge(asked.view)),
    "choose an operation": _task(
        r"\bADD\b[^.]*\bUPDATE\b[^.]*\bDELETE\b[^.]*\bNONE\b", lambda asked: merging.choose(asked.view), 0
    ),
}
"""By name. A round is asked for by the forms `<search> ... </search>` and `<answer> ... </answer>`; with
`<mem> ... </mem>`, `<think> ... </think>` or `<memory_write> ... </memory_write>` it has those, too. The
others write into the first form after their words (into none where there is none)."""


class ScriptedModel(Struct, frozen=True):
    """The model; the same prompt gets the same text in any batch. It counts tokens in words."""

    name: str = "scripted"
    fingerprint: str = f"scripted-{VERSION}"

    def generate(self, prompts: Sequence[Prompt]) -> list[Call | ModelError]:
        """Answer each prompt."""
        return [_call(prompt) for prompt in prompts]


def _call(prompt: Prompt) -> Call:
    output = _stopped(write(prompt), prompt.stop)
    return Call(
        segments=prompt.segments,
        output=output,
        finish_reason="stop",
        prompt_tokens=count_words(prompt.text),
        output_tokens=count_words(output),
    )


def _stopped(text: str, stop: Sequence[str]) -> str:
    """The text up to the first stop, which is part of it."""
    ends = [at + len(mark) for mark in stop if mark and (at := text.find(mark)) >= 0]
    return text[: min(ends)] if ends else text


def write(prompt: Prompt) -> str:
    """What the model writes."""
    told, shown = _taken_apart(prompt)
    found = [(match.start(), task, match) for task in TASKS.values() for match in task.words.finditer(told)]
    asked = Asked(
        view=facts.bare(_unasked(view(shown))),
        forms=frozenset(match[1] for match in _FORM.finditer(told)),
        follow_ups=_FOLLOW_UPS.search(told) is not None,
        semicolons=_SEMICOLONS.search(told) is not None,
    )
    if not found:
        return answer(asked)
    _, task, match = max(found, key=lambda one: one[0])
    text = task.write(asked)
    form = None if task is TASKS["play a round"] else _FORM.search(told, match.end())
    return text if form is None else f"<{form[1]}>\n{text}\n</{form[1]}>"


def _taken_apart(prompt: Prompt) -> tuple[str, list[Piece]]:
    """The instructions, and what is in view."""
    told: list[str] = []
    shown: list[Piece] = []
    for message in prompt.messages:
        if message.role == "system":
            told.append(message.content)
            continue
        for kind, text in pieces(message.content):
            if kind != "text":
                shown.append((kind, text))
            elif message.role == "user":
                told.append(text)
    return "\n".join(told), shown


def _unasked(seen: View) -> View:
    """The view with the searches that were put as questions as they would be put otherwise."""
    queries = (match[1] if (match := _ASKED_SO.fullmatch(query)) else query for query in seen.queries)
    return structs.replace(seen, queries=tuple(queries))
