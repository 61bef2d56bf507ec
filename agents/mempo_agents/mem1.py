"""One internal state, rewritten each round, and nothing else kept but the last search.

MEM1: Learning to Synergize Memory and Reasoning for Efficient Long-Horizon Agents (arXiv 2506.15841).

Differences: the state is written in `<mem>`, in the paper in a tag of its own; a thought that is written
beside it is not shown again; passages come in `<information>` and the rounds left in the environment's
hint.
"""

from __future__ import annotations

from mempo_agents.base import Context
from mempo_agents.models.base import Model
from mempo_agents.prompts import ACT, TASK
from mempo_agents.rounds import ENDS, ModelAgent, Round, composed
from mempo_agents.ruled import without_thoughts

PROMPT = f"""\
{TASK}
All that you carry from round to round is one internal state, in which you reason and remember at once. You
see it, your last search and what that returned; everything else is gone. In each round rewrite your state
inside <mem> ... </mem>: what is known, what follows from it, what is still to be found and how. Then do
{ACT}"""


def play(context: Context) -> Round:
    """A round of one call."""
    return (yield composed(without_thoughts(context.segments), ENDS))


def mem1_agent(model: Model) -> ModelAgent:
    """The agent."""
    kwargs = {"context": "last_step", "memory": "inline", "system_prompt": PROMPT}
    return ModelAgent(name="mem1", play=play, model=model, env_kwargs=kwargs, version=2)
