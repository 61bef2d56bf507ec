"""Notes with keywords; a new one is linked with similar ones, and both take over what they say of each other.

A-MEM: Agentic Memory for LLM Agents (arXiv 2502.12110).

Differences: a note is a fact and its keywords, in the paper also tags and a description of its context; 4
notes are read at a time, in the paper 10; a link is the keywords that two notes share from then on, so that
what finds one finds the other, for an entry that is rewritten gets another id; which notes are linked the
model says, what they take over follows from it; a read of the bank is answered in the next round, so a note
is linked and stored in the round after the one that made it.
"""

from __future__ import annotations

from collections.abc import Iterable

from mempo_agents.base import Context
from mempo_agents.models.base import Model
from mempo_agents.notes import (
    BAR,
    FACTS,
    UNGATED,
    acting,
    deciding,
    for_later,
    ids_in,
    lines,
    questions,
    read,
    recalled,
    recalls,
    rewritten,
    searched,
    taking_in,
    undone,
    waiting,
    with_operations,
)
from mempo_agents.prompts import ACT, TASK
from mempo_agents.rounds import ModelAgent, Round, inside, kinds

K = 4
"""Notes that are read for each question, for the search, and for each new note."""
KEYWORDS = 12
"""Keywords of a note at most; the first ones stay."""

PROMPT = f"""\
{TASK}
You see in <mem> those of your notes that are most like the question and your last search, with others that
were linked with them; the passages themselves are gone. Do {ACT}"""

EXTRACT = """\
Below are a question, notes in <mem>, a search, and the passages that it returned.
Extract the facts that the passages add and that matter to the question, what follows from them and the notes,
and a search that was in vain. Write them inside <mem> ... </mem>, one a line, each to be understood alone.
Leave it empty if there are none, and write nothing else."""

NAME = """\
Write the keywords of the note in <memory_write>, the names and things that it is about, the most important
first, with commas between them, inside <mem> ... </mem>, and nothing else."""

LINK = """\
Below are a new note in <memory_write> and the stored ones most like it in <memory_recall>, with numbers.
Write the numbers of the notes that belong together with the new one, because they are about the same things
or one leads to the other, inside <mem> ... </mem>, or NONE, and nothing else."""

_MARK = f"{BAR}keywords: "


def play(context: Context) -> Round:
    """Calls that link the notes of the round before, some that make new ones, and one that acts."""
    stored: list[str] = []
    evolved: dict[int, str] = {}
    made, lost = waiting(context.segments), undone(context.segments)
    for one in made:
        note, similar = one.query, {id: evolved.get(id, text) for id, text in one.entries.items()}
        answer = inside((yield deciding(LINK, similar, note, context)), "mem") if similar else ""
        for id in ids_in(answer, similar):
            evolved[id] = linked(similar[id], keywords(note))
            note = linked(note, keywords(similar[id]))
        stored.append(note)
    notes = [*recalled(recalls(context.segments)).values(), *(one.query for one in made), *lost.notes]
    notes = [note.split(_MARK)[0] for note in notes]
    new: list[str] = []
    if kinds(context.segments, "information"):
        for fact in lines((yield for_later(taking_in(EXTRACT, notes, context))))[:FACTS]:
            named = " ".join(lines((yield for_later(deciding(NAME, {}, fact, context)))))
            new.append(linked(fact, named.split(",")))
    action = yield from acting([*notes, *(note.split(_MARK)[0] for note in new)], context)
    reads = [read(query, K) for query in (*lost.facts, *new, *questions(context.segments), *searched(action))]
    changed = [*lost.operations, *(rewritten(id, note) for id, note in evolved.items())]
    return with_operations(changed, stored, reads, action)


def keywords(note: str) -> list[str]:
    """The keywords of a note."""
    return note.partition(_MARK)[2].split(", ")


def linked(note: str, more: Iterable[str]) -> str:
    """The note with more keywords, each once."""
    words = dict.fromkeys(word.strip() for word in (*keywords(note), *more))
    kept = [word for word in words if word][:KEYWORDS]
    return note.split(_MARK)[0] + (_MARK + ", ".join(kept) if kept else "")


def amem_agent(model: Model) -> ModelAgent:
    """The agent."""
    kwargs = {"context": "last_step", "memory": UNGATED, "system_prompt": PROMPT}
    return ModelAgent(name="amem", play=play, model=model, env_kwargs=kwargs, version=2)
