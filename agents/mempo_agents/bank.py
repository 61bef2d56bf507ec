"""The last step, and a memory bank whose operations the model decides on, in the same call as the action.

No paper: the environment's memory bank and the environment's prompt.
"""

from __future__ import annotations

from mempo_agents.models.base import Model
from mempo_agents.rounds import ModelAgent, one_call


def bank_agent(model: Model) -> ModelAgent:
    """The agent."""
    kwargs = {"context": "last_step", "memory": "bank"}
    return ModelAgent(name="bank", play=one_call, model=model, env_kwargs=kwargs)
