"""Facts are extracted from what was found; each is added, completes or replaces a stored one, or is dropped.

Mem0: Building Production-Ready AI Agents with Scalable Long-Term Memory (arXiv 2504.19413), the version
without a graph.

Differences: facts are extracted from a search and its passages, in the paper from the last messages and a
running summary; a fact is compared with the 4 most like it, in the paper with 10; a read of the bank is
answered in the next round, so the facts of a round are compared and stored in the round after, and are in
view until then; DELETE puts the fact in the place of the one that it proves wrong, in the paper it only
removes that one; the text of an UPDATE is asked for in a call of its own.
"""

from __future__ import annotations

import re
from collections.abc import Generator

from msgspec import Struct

from mempo_agents.base import Context
from mempo_agents.models.base import Model, Prompt
from mempo_agents.notes import (
    FACTS,
    UNGATED,
    acting,
    deciding,
    discarded,
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
"""Facts that are read for each question, for the search, and for each new fact."""

PROMPT = f"""\
{TASK}
You see in <mem> those facts that you stored that are most like the question and your last search; the
passages themselves are gone. Do {ACT}"""

EXTRACT = """\
Below are a question, facts that are known in <mem>, a search, and the passages that it returned.
Extract the facts that the passages add and that matter to the question, what follows from them and those that
are known, and a search that was in vain. Write them inside <mem> ... </mem>, one a line, each to be
understood alone. Leave it empty if there are none, and write nothing else."""

CHOOSE = """\
Below are a new fact in <memory_write> and the stored ones most like it in <memory_recall>, with numbers.
Write ADD if it is new, UPDATE and the number of the one that it completes, DELETE and the number of the one
that it proves wrong, or NONE if it is known, inside <mem> ... </mem>, and nothing else."""

MERGE = """\
Merge the notes in <memory_recall> and <memory_write> into one that says all that they say, on one line inside
<mem> ... </mem>, and write nothing else."""

_CHOICE = re.compile(r"\W*(ADD|UPDATE|DELETE|NONE)\b(.*)", re.DOTALL)


class Decision(Struct, frozen=True):
    """What is done about a fact: texts to store, and operations on the entry of the id, if there is one."""

    new: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    id: int | None = None


def decide(fact: str, similar: dict[int, str], context: Context) -> Generator[Prompt, str, Decision]:
    """Ask what to do about a fact; an answer that is none of the four, or has no such number, adds it."""
    choice, id = (
        ("ADD", None) if not similar else chosen((yield deciding(CHOOSE, similar, fact, context)), similar)
    )
    if choice == "NONE":
        return Decision()
    if id is not None and choice == "DELETE":
        return Decision((fact,), (discarded(id),), id)
    if id is not None and choice == "UPDATE":
        text = " ".join(lines((yield deciding(MERGE, {id: similar[id]}, fact, context))))
        if text:
            return Decision((), (rewritten(id, text),), id)
    return Decision((fact,))


def chosen(text: str, similar: dict[int, str]) -> tuple[str, int | None]:
    """What a call chose, and for which entry; nothing that it did not see is ever changed."""
    match = _CHOICE.match(inside(text, "mem"))
    if match is None:
        return "ADD", None
    return match[1], next(iter(ids_in(match[2], similar)), None)


def play(context: Context) -> Round:
    """Calls that decide on the facts of the round before, one that extracts new ones, and one that acts."""
    facts, lost = waiting(context.segments), undone(context.segments)
    new: tuple[str, ...] = ()
    decisions: list[Decision] = []
    for fact in facts:
        taken = {decision.id for decision in decisions}
        similar = {id: text for id, text in fact.entries.items() if id not in taken}
        decisions.append((yield from decide(fact.query, similar, context)))
    stored = recalled(recalls(context.segments)).values()
    notes = [*stored, *(fact.query for fact in facts), *lost.notes]
    if kinds(context.segments, "information"):
        new = lines((yield for_later(taking_in(EXTRACT, notes, context))))[:FACTS]
    action = yield from acting([*notes, *new], context)
    asked = (*lost.facts, *new, *questions(context.segments), *searched(action))
    reads = [read(query, K) for query in asked]
    changed = [*lost.operations, *(operation for decision in decisions for operation in decision.changed)]
    return with_operations(changed, [text for decision in decisions for text in decision.new], reads, action)


def mem0_agent(model: Model) -> ModelAgent:
    """The agent."""
    kwargs = {"context": "last_step", "memory": UNGATED, "system_prompt": PROMPT}
    return ModelAgent(name="mem0", play=play, model=model, env_kwargs=kwargs, version=2)
