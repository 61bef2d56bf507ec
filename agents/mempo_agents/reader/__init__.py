"""An agent that reads: one reader without a model, in four regimes of memory."""

from mempo_agents.reader.policy import REGIMES, reader_agent

__all__ = ["REGIMES", "reader_agent"]
