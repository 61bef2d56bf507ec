"""The last step, and a memory that is rewritten in each round, in the same call as thought and action.

MemPO: self-memory policy optimisation for long-horizon agents (arXiv 2603.00680), whose round is that of the
environment, whose prompt is the environment's own.

Differences: the words of the prompt.
"""

from __future__ import annotations

from mempo_agents.models.base import Model
from mempo_agents.rounds import ModelAgent, one_call


def mempo_agent(model: Model) -> ModelAgent:
    """The agent."""
    kwargs = {"context": "last_step", "memory": "inline"}
    return ModelAgent(name="mempo", play=one_call, model=model, env_kwargs=kwargs)
