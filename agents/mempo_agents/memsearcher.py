"""Question and memory alone are kept; after each search a second message asks for the memory to be updated.

MemSearcher: Training LLMs to Reason, Search and Manage Memory via End-to-End Reinforcement Learning (arXiv
2511.02805).

Differences: the memory is updated at the start of the next round, when the passages are there, in the same
conversation as the search; it is written in `<mem>`.
"""

from __future__ import annotations

from mempo_agents.base import Context
from mempo_agents.models.base import Message, Model, Prompt
from mempo_agents.prompts import ACT, TASK
from mempo_agents.rounds import (
    ENDS,
    MEMORY_ENDS,
    ModelAgent,
    Round,
    composed,
    joined,
    kinds,
    remembered,
    said,
)
from mempo_agents.ruled import in_force, told, with_memory

PROMPT = f"""\
{TASK}
You see your memory in <mem>, which has what was found so far; all else is gone.
Think inside <think> ... </think>, then do {ACT}"""

UPDATE = """\
Update the memory with what this says to the question, and keep all of it that will still be needed; you
will see nothing else. Write it inside <mem> ... </mem>, and nothing more."""


def play(context: Context) -> Round:
    """A call that updates the memory if a search returned something, and one that acts."""
    system, question = kinds(context.segments, "system"), kinds(context.segments, "question")
    found, memory = kinds(context.segments, "information"), in_force(context)
    if found:
        written = kinds(context.segments, "think", "call")
        update = (said("system", UPDATE, context),)
        chat = (
            *(Message("system", segment.text) for segment in system),
            Message("user", joined((*question, *memory))),
            Message("assistant", joined(written)),
            Message("user", joined((*found, *update))),
        )
        shown = (*system, *question, *memory, *written, *found, *update)
        memory = remembered((yield Prompt(chat, shown, MEMORY_ENDS, role="mem")), context) or memory
    action = yield composed((*system, *question, *memory, *told(context.segments)), ENDS)
    return with_memory(memory, action)


def memsearcher_agent(model: Model) -> ModelAgent:
    """The agent."""
    kwargs = {"context": "last_step", "memory": "inline", "system_prompt": PROMPT}
    return ModelAgent(name="memsearcher", play=play, model=model, env_kwargs=kwargs, version=2)
