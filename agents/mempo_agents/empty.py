"""The floor: answers at once, with something that is never right."""

from __future__ import annotations

from mempo_agents.base import Context
from mempo_agents.scripted import Scripted
from mempo_agents.view import look, write_answers

VERSION = 1
"""Raised whenever the behaviour changes."""

NOTHING = "-"
"""Punctuation alone: it has no word in common with any answer, so that F1 is 0 as well."""


def write(context: Context) -> str:
    """Answer every question with nothing."""
    return write_answers([NOTHING] * len(look(context).questions))


def empty_agent() -> Scripted:
    """The agent."""
    return Scripted(write, "empty", f"empty-{VERSION}")
