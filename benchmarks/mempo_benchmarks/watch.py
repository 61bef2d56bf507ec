"""An agent that is watched while it plays: how far it is, and how long its episodes take."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence

from mempo_agents.base import Agent, Context
from mempo_env.types import Completion


class Watched:
    """Plays as the agent does.

    Episodes that are played together share the wall time of their rounds equally: of one of them alone
    nobody can tell. From one round to the next all counts: the agent, the retriever, what is written.
    """

    def __init__(self, agent: Agent, told: Callable[[str], None]) -> None:
        """Watch an agent whose episodes are of different questions; `told` hears of each round."""
        self.name, self.env_kwargs, self.fingerprint = agent.name, agent.env_kwargs, agent.fingerprint
        self._agent, self._told = agent, told
        self._playing: set[str] = set()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._last = time.monotonic()
        self._rounds = 0

    def act(self, contexts: Sequence[Context]) -> Sequence[Completion | str | Exception]:
        """Write the next round of each episode."""
        self._share()
        self._playing = {context.question_id for context in contexts}
        written = self._agent.act(contexts)
        self._rounds += len(contexts)
        self._told(self.told)
        return written

    @property
    def told(self) -> str:
        """How far it is."""
        return f"{self.name}, {self._rounds:,} rounds"

    def ended(self, question_id: str) -> float:
        """Seconds that an episode took, which has ended."""
        self._share()
        self._playing.discard(question_id)
        return self._seconds.pop(question_id, 0.0)

    def _share(self) -> None:
        if self._playing:
            now = time.monotonic()
            for question_id in self._playing:
                self._seconds[question_id] += (now - self._last) / len(self._playing)
            self._last = now
