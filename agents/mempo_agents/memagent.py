"""The retrieved text is read in chunks into a memory that is overwritten; then the memory alone acts.

MemAgent: Reshaping Long-Context LLM with Multi-Conv RL-based Memory Agent (arXiv 2507.02259).

Differences: a chunk is one passage of the last search, in the paper it is 5,000 tokens of one long
document; the search that brought it is shown with it, and one in vain is read as a chunk, too; the paper
answers once after the last chunk, here each round ends with a search or an answer.
"""

from __future__ import annotations

from mempo_agents.base import Context
from mempo_agents.models.base import Model
from mempo_agents.prompts import ACT, TASK
from mempo_agents.rounds import ENDS, ModelAgent, Round, composed, kinds, remembered, remembering, said
from mempo_agents.ruled import in_force, told, with_memory
from mempo_agents.view import read_information, write_information

READ = """\
You read the passages of a search one at a time, to answer a question later from your memory alone. Below
are the question, your memory in <mem>, the search, and one passage. Rewrite the memory inside
<mem> ... </mem>: keep what it says and will be needed, add what the passage says to the question, or that the
search was in vain, leave out the rest. Write nothing else."""

PROMPT = f"""\
{TASK}
You see your memory in <mem>, which has what was found so far; the passages themselves are gone.
Do {ACT}"""


def play(context: Context) -> Round:
    """A call for each passage of the last search, or for the word that there was none, and one that acts."""
    memory = in_force(context)
    asked = kinds(context.segments, "question")
    search = kinds(context.segments, "call")
    for segment in kinds(context.segments, "information"):
        chunks = [write_information([article]) for article in read_information(segment.text)]
        for chunk in chunks or [segment.text]:
            passage = said("information", chunk, context)
            prompt = (said("system", READ, context), *asked, *memory, *search, passage)
            memory = remembered((yield remembering(prompt)), context) or memory
    always = kinds(context.segments, "system", "question")
    action = yield composed((*always, *memory, *told(context.segments)), ENDS)
    return with_memory(memory, action)


def memagent_agent(model: Model) -> ModelAgent:
    """The agent."""
    kwargs = {"context": "last_step", "memory": "inline", "system_prompt": PROMPT}
    return ModelAgent(name="memagent", play=play, model=model, env_kwargs=kwargs, version=2)
