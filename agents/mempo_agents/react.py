"""The whole history: every step stays in view.

ReAct: Synergizing Reasoning and Acting in Language Models (arXiv 2210.03629).

Differences: no examples in the prompt; a step is written with the tags of the environment, and rendered into
one message of the user, not as turns.
"""

from __future__ import annotations

from mempo_agents.models.base import Model
from mempo_agents.rounds import ModelAgent, one_call


def react_agent(model: Model) -> ModelAgent:
    """The agent."""
    kwargs = {"context": "full", "memory": "none"}
    return ModelAgent(name="react", play=one_call, model=model, env_kwargs=kwargs)
