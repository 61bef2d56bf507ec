"""A fixed rule: what each search returned is summarised into a bank, which is read for the questions.

The plainest memory with retrieval, as in MemoryBank: Enhancing Large Language Models with Long-Term Memory
(arXiv 2305.10250), and the baseline of most papers on memory.

Differences: a summary of each round, in the paper of each day and of all days; reads go by the questions, in
the paper by the last message; nothing is forgotten with time; no portrait of a user.
"""

from __future__ import annotations

from mempo_agents.base import Context
from mempo_agents.models.base import Model
from mempo_agents.notes import (
    BAR,
    UNGATED,
    acting,
    lines,
    questions,
    read,
    recalled,
    recalls,
    taking_in,
    undone,
    with_operations,
)
from mempo_agents.prompts import ACT, TASK
from mempo_agents.rounds import ModelAgent, Round, kinds

K = 4
"""Summaries that are read for each question."""

PROMPT = f"""\
{TASK}
You see in <mem> those of your notes that are most like the question; the passages themselves are gone.
Do {ACT}"""

SUMMARISE = """\
Below are a question, notes of earlier steps in <mem>, a search, and the passages that it returned.
Summarise the step inside <mem> ... </mem>: what the passages add to the notes that matters to the question,
what follows from both, and a search that was in vain. Each line is to be understood alone. Leave it empty if
there is nothing to add, and write nothing else."""


def play(context: Context) -> Round:
    """A call that summarises what the last search returned, if there was one, and one that acts."""
    lost = undone(context.segments)
    notes = [*recalled(recalls(context.segments)).values(), *lost.notes]
    new: list[str] = []
    if kinds(context.segments, "information"):
        summary = lines((yield taking_in(SUMMARISE, notes, context)))
        new = [BAR.join(summary)] if summary else []
    action = yield from acting([*notes, *new], context)
    reads = [read(question, K) for question in questions(context.segments)]
    return with_operations(lost.operations, new, reads, action)


def rag_memory_agent(model: Model) -> ModelAgent:
    """The agent."""
    kwargs = {"context": "last_step", "memory": UNGATED, "system_prompt": PROMPT}
    return ModelAgent(name="rag_memory", play=play, model=model, env_kwargs=kwargs, version=2)
