"""Agents that are a pure function of one context, so the same in any batch, process and order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mempo_agents.base import Context


@dataclass
class Scripted:
    """An agent without a model.

    Attributes:
        write: What it writes next, a pure function of what is in view.
        name: What to call it in tables.
        fingerprint: Changes whenever `write` does.
        env_kwargs: Keyword arguments of the environment that it needs.
    """

    write: Callable[[Context], str | Exception]
    name: str
    fingerprint: str
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def act(self, contexts: Sequence[Context]) -> list[str | Exception]:
        """Write the next round of each episode."""
        return [self.write(context) for context in contexts]
