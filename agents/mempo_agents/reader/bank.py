"""How the reader uses a memory bank."""

from __future__ import annotations

from mempo_agents.view import View


def play(view: View) -> str:
    """A round with operations on the bank."""
    raise NotImplementedError
