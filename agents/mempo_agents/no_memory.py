"""The last step, and nothing else: the baseline that tells what a memory is worth."""

from __future__ import annotations

from mempo_agents.models.base import Model
from mempo_agents.rounds import ModelAgent, one_call


def no_memory_agent(model: Model) -> ModelAgent:
    """The agent."""
    kwargs = {"context": "last_step", "memory": "none"}
    return ModelAgent(name="no_memory", play=one_call, model=model, env_kwargs=kwargs)
