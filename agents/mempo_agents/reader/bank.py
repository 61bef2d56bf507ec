"""How the reader uses a memory bank: one entry a question, which the question itself finds again.

    3. Where was Aldo Verne born? | Aldo Verne :: He was born in 1901. | ? Aldo Verne birthplace
    3. Where was Aldo Verne born? | = Marrow Bay

It goes through the questions in order. A round replaces the entry of the question in hand and reads it back,
so that the next round sees it; once all are done a round reads every entry, and the next one answers.
"""

from __future__ import annotations

import re

from msgspec import structs

from mempo_agents.reader.policy import ANSWER, UNKNOWN, Note, go_on
from mempo_agents.view import View, write_answers, write_search

_BAR = " | "
_STORED = f"{ANSWER}(stored)"
_NUMBER = re.compile(r"(\d{1,4})\. ")
_NEAREST = 3  # entries that one read returns, for questions may be much alike


def play(view: View, semicolons: bool = False) -> str:
    """A round with operations on the bank: its search, or the answers (with semicolons if so asked)."""
    entries = (*view.facts, *(text for _, text in view.entries))
    known = tuple(dict.fromkeys(note for text in entries for note in read_entry(text)))
    hand = _in_hand(view)
    answered = {i for i, note in known if note.startswith(ANSWER)}
    before = 0 if view.last_round else hand  # in the last round what is not known is guessed
    stored = tuple((i, _STORED) for i in range(before) if i not in answered)
    step = go_on(structs.replace(view, notes=(*stored, *known)))
    all_read = len(view.reads) > 1
    if view.last_round or (not step.query and (not stored or all_read)):
        answers = (UNKNOWN if ANSWER + answer == _STORED else answer for answer in step.answers)
        return write_answers(tuple(answers), semicolons=semicolons)
    changed = dict.fromkeys(i for i, note in step.notes if (i, note) not in (*stored, *known))
    writes = [_write(view, i, [text for j, text in step.notes if j == i]) for i in changed]
    last_chance = view.rounds_left == 2
    wanted = range(len(view.questions)) if last_chance or not step.query else [step.notes[-1][0]]
    reads = [f'<memory_read k="{_NEAREST}"> {_head(view, i)} </memory_read>' for i in wanted]
    return "\n".join([*writes, *reads, write_search(step.query or view.questions[-1])])


def read_entry(text: str) -> list[Note]:
    """The notes of an entry; none if it is of another form."""
    head, *notes = text.split(_BAR)
    number = _NUMBER.match(head)
    return [(int(number[1]) - 1, note) for note in notes] if number else []


def _head(view: View, i: int) -> str:
    return f"{i + 1}. {view.questions[i].replace('|', '/')}"


def _in_hand(view: View) -> int:
    """The question that the last read was for."""
    number = _NUMBER.match(view.reads[-1]) if view.reads else None
    return min(int(number[1]), len(view.questions)) - 1 if number else 0


def _write(view: View, i: int, notes: list[str]) -> str:
    """Store the notes of a question, in place of the entry it has."""
    text = _BAR.join([_head(view, i), *(note.replace("|", "/") for note in notes)])
    ids = [id for id, entry in view.entries if entry.startswith(f"{i + 1}. ")]
    if ids:
        return f'<memory_merge ids="{ids[-1]}"> {text} </memory_merge>'
    return f"<memory_write> {text} </memory_write>"
