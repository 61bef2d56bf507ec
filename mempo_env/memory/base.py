"""What a memory is to the environment, and what a class of your own needs to be one."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from mempo_env.errors import ConfigError
from mempo_env.memory.operations import Fault
from mempo_env.tokens import TokenCounter
from mempo_env.types import Answer, BankRecord, Search, storable


class Memory(Protocol):
    """A memory of your own: `gym.make(..., memory=MyMemory)`, with a class that has these three methods.

    The environment makes one for each episode, `MyMemory()`, and copies it by `MyMemory(state=m.state())`:
    two episodes cannot share one.
    """

    def write(self, text: str, round: int) -> None:
        """Take what the agent wrote into `<mem>` in this round (1 for the first)."""
        ...

    def show(self) -> str:
        """The text that the coming prompt shows of it; "" for none."""
        ...

    def state(self) -> Any:
        """All that it holds as plain JSON data."""
        ...


class Store(Protocol):
    """A memory that the environment keeps for one episode, other than text in the prompt."""

    @property
    def tokens(self) -> int:
        """Tokens it holds."""
        ...

    def update(self, action: Search | Answer, round: int) -> str | Fault:
        """Do what the action asks of it; what the agent is told of that, or why it cannot be done.

        After a fault the store may be half changed: work on a copy.
        """
        ...

    def show(self) -> str:
        """What the coming prompt shows of it."""
        ...

    def text(self) -> str:
        """All that it holds."""
        ...

    def done(self, round: int) -> Sequence[BankRecord]:
        """What was done in a round."""
        ...

    def check_is_due(self, round: int) -> bool:
        """Whether the agent should be reminded to look after it."""
        ...

    def state(self) -> Any:
        """All that decides its future, as plain JSON data."""
        ...

    def copy(self) -> Store:
        """An independent one in the same state."""
        ...


MakeStore = Callable[[str, Any], Store]
"""Makes the store of an episode from its id and a state (None: a new one)."""


class Own:
    """A user's memory, as the environment keeps it."""

    def __init__(self, make: Callable[..., Memory], count: TokenCounter, state: Any = None) -> None:
        self._make, self._count = make, count
        self._memory = make() if state is None else make(state=state)

    @property
    def tokens(self) -> int:
        """Tokens of what it shows."""
        return self._count(self.show())

    def update(self, action: Search | Answer, round: int) -> str:
        """Hand over what was written, if anything was."""
        if action.memory is not None:
            self._memory.write(action.memory, round)
            self.show()
            self.state()  # what cannot be shown or kept is found before the round counts
        return ""

    def show(self) -> str:
        """Its own words."""
        shown = self._memory.show()
        if not isinstance(shown, str):
            raise ConfigError(f"memory: wanted a text from show(), got {type(shown).__name__}")
        return storable(shown)

    text = show

    def done(self, round: int) -> Sequence[BankRecord]:
        """Nothing: it takes no operations."""
        return ()

    def check_is_due(self, round: int) -> bool:
        """Never."""
        return False

    def state(self) -> Any:
        """Its state, sent through JSON, so that nothing is shared."""
        state = self._memory.state()
        try:
            text = json.dumps(state, allow_nan=False, ensure_ascii=False)
            text.encode()
            _check_keys(state)
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(f"memory: wanted plain JSON data from state(): {error}") from None
        return json.loads(text)

    def copy(self) -> Own:
        """Another one, made from its state."""
        return Own(self._make, self._count, self.state())


def _check_keys(value: Any) -> None:
    """A TypeError for a key that JSON would turn into a text."""
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"keys are texts, got {key!r}")
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for one in value:
            _check_keys(one)


def check_own(make: Any) -> Callable[..., Memory]:
    """The class, or a ConfigError that says what it lacks."""
    missing = [name for name in ("write", "show", "state") if not callable(getattr(make, name, None))]
    if not isinstance(make, type) or missing:
        lacks = f" without {missing[0]}()" if missing and isinstance(make, type) else ""
        raise ConfigError(
            "memory: wanted 'inline', 'bank', 'none', a BankConfig, or a class with write(), show() and "
            f"state() (the class, not an object: each episode has its own), got {make!r}{lacks}"
        )
    name = make.__name__
    try:
        inspect.signature(make).bind()
        inspect.signature(make).bind(state=None)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"memory: wanted a class that is made by {name}() and by {name}(state=...): {error}"
        ) from None
    return make
