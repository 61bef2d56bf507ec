"""The last k steps, and nothing else: what a history that is cut to a window keeps."""

from __future__ import annotations

from mempo_agents.models.base import Model
from mempo_agents.rounds import ModelAgent, one_call

STEPS = 2
"""Steps that `window` keeps; `window(4)` keeps 4."""


def window_agent(model: Model, k: int = STEPS) -> ModelAgent:
    """The agent that sees the last k steps, at least 1."""
    name = "window" if k == STEPS else f"window({k})"
    kwargs = {"context": k, "memory": "none"}
    return ModelAgent(name=name, play=one_call, model=model, env_kwargs=kwargs)
