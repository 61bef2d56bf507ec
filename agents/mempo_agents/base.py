"""What an agent is: a function from what is in view to what it writes next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

from mempo_env.types import Completion, Segment


class Context(Struct, frozen=True):
    """What one episode shows its agent before a round.

    Attributes:
        segments: The visible segments, in order: `info["segments"]`.
        question_id: Which question it is; tells nothing about the answer.
        seed: The episode's, from which all its draws come: equal contexts of two episodes differ in it.
    """

    segments: tuple[Segment, ...]
    question_id: str
    seed: int = 0

    @property
    def prompt(self) -> str:
        """The whole prompt, as the environment renders it."""
        return "\n".join(segment.text for segment in self.segments)


class Agent(Protocol):
    """An agent plays any number of episodes at once and remembers nothing between rounds.

    All that it knows of an episode is in the context it is given: memory is what the environment carries
    over, so that no agent can keep a secret notebook. The same contexts give the same completions, in any
    batch.
    """

    @property
    def name(self) -> str:
        """What to call it in tables."""
        ...

    @property
    def env_kwargs(self) -> Mapping[str, Any]:
        """Keyword arguments of the environment that it needs (context, memory, system_prompt)."""
        ...

    @property
    def fingerprint(self) -> str:
        """Changes whenever its behaviour does (its version, prompt, model)."""
        ...

    def act(self, contexts: Sequence[Context]) -> Sequence[Completion | str | Exception]:
        """Write the next round of each episode.

        An exception in place of a completion ends that episode alone: a ModelError for its own reason, a
        TimeoutError as "timeout", any other as "agent_error", as does what is no text or holds what can't be
        stored. An attribute `calls` of it holds the calls of the round that were answered. If it raises, or
        does not write one thing for each context, it is asked again for one context at a time, so that this
        too ends single episodes.
        """
        ...
