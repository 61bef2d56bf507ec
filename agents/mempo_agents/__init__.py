"""Agents that play the environment."""

from mempo_agents.base import Agent, Context
from mempo_agents.table import AGENTS, make_agent

__all__ = ["AGENTS", "Agent", "Context", "make_agent"]
