"""What a memory is to the environment, and what a class of your own needs to be one."""

from __future__ import annotations

import inspect
import json
import traceback
from collections.abc import Callable, Sequence
from copy import copy
from functools import lru_cache
from typing import Any, ParamSpec, Protocol, TypeVar

from mempo_env.errors import ConfigError, MemoryFault
from mempo_env.memory.operations import Fault
from mempo_env.tokens import TokenCounter
from mempo_env.types import Answer, BankRecord, Search, storable

P = ParamSpec("P")
T = TypeVar("T")


def called(name: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What a function of the user's returns; if it raises, a MemoryFault that names it and the line."""
    try:
        return function(*args, **kwargs)
    except MemoryError:
        raise
    except Exception as error:
        told = "".join(traceback.format_exception_only(error)).strip()
        frame = traceback.extract_tb(error.__traceback__)[-1]
        raise MemoryFault(f"{name} raised {told} ({frame.filename}:{frame.lineno})") from error


def answered(
    kind: type[Any] | tuple[type[Any], ...], wanted: str, name: str, function: Callable[..., Any], *args: Any
) -> Any:
    """What a function of the user's returns, of a kind; a MemoryFault that names it if it is of another."""
    value = called(name, function, *args)
    if not isinstance(value, kind):
        raise MemoryFault(f"{name}: wanted {wanted}, got {type(value).__name__}")
    return value


class Memory(Protocol):
    """A memory of your own: `gym.make(..., memory=MyMemory)`, where the class has these methods.

    The environment makes one for each episode, `MyMemory()`, and for each write another one by
    `MyMemory(state=m.state())`: two episodes cannot share one, and what one does not tell in `state`, or does
    not take up in `__init__(self, state=None)`, is gone. So a class is tried with one write when the first
    environment is made with it, and refused if what it tells then is not what one made from that tells, or if
    a new one knows of it.
    One that raises in a round ends that episode alone, with the stop reason "memory_error", which is not the
    policy's fault (`mask_episode`).
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

        After a fault the store may be half changed: work on a copy. A MemoryFault where code of the user's,
        which may run here and nowhere else, failed.
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
    """A user's memory, as the environment keeps it: at rest, as what it shows and what its state is.

    Code of the user's runs where one is made, and in `update`, and nowhere else.

    Raises:
        MemoryFault: if it cannot be made, shown or kept.
    """

    def __init__(self, make: Callable[..., Memory], count: TokenCounter, state: Any = None) -> None:
        self._make, self._count = make, count
        self._rest(self._made(state))

    def _made(self, state: Any) -> Memory:
        given = {} if state is None else {"state": state}
        return called(f"memory: {self._make.__name__}()", self._make, **given)

    def _rest(self, memory: Memory) -> None:
        """Read off it all that is kept of it."""
        name = f"memory: {self._make.__name__}"
        shown = called(f"{name}.show()", memory.show)
        if not isinstance(shown, str):
            raise MemoryFault(f"memory: wanted a text from show(), got {type(shown).__name__}")
        self._state = _as_json(called(f"{name}.state()", memory.state))
        self._shown = storable(shown)
        self.tokens = self._count(self._shown)

    def update(self, action: Search | Answer, round: int) -> str:
        """Hand over what was written, if anything was."""
        if action.memory is not None:
            memory = self._made(self.state())
            called(f"memory: {self._make.__name__}.write()", memory.write, action.memory, round)
            self._rest(memory)
        return ""

    def show(self) -> str:
        """Its own words."""
        return self._shown

    text = show

    def done(self, round: int) -> Sequence[BankRecord]:
        """Nothing: it takes no operations."""
        return ()

    def check_is_due(self, round: int) -> bool:
        """Never."""
        return False

    def state(self) -> Any:
        """Its state, sent through JSON, so that nothing is shared."""
        return json.loads(self._state)

    def copy(self) -> Own:
        """Another one in the same state."""
        return copy(self)


def _as_json(state: Any) -> str:
    """A state as JSON text, which is read back as what it was."""
    try:
        text = json.dumps(state, allow_nan=False, ensure_ascii=False)
        text.encode()
        _check_keys(state)
    except (TypeError, ValueError, RecursionError) as error:
        raise MemoryFault(f"memory: wanted plain JSON data from state(): {error}") from None
    return text


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
            "memory: wanted 'inline', 'bank', 'none', a BankConfig, or a class (or 'module:Class') with "
            "write(), show() and state() (the class, not an object: each episode has its own), got "
            f"{make!r}{lacks}"
        )
    name = make.__name__
    try:
        inspect.signature(make).bind()
        inspect.signature(make).bind(state=None)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"memory: wanted a class that is made by {name}() and by {name}(state=...): {error}"
        ) from None
    told, kept, before, after = _restored(make)
    if json.loads(before) != json.loads(after):
        raise ConfigError(
            f"memory: wanted a class whose {name}() is always new, but one told {before}, and another "
            f"{after} after a write to the first: keep what is written in `self`, or else episodes share it"
        )
    if json.loads(told) != json.loads(kept):
        raise ConfigError(
            f"memory: wanted a class whose {name}(state=...) takes up what state() told: that was {told} "
            f"after a write, and {kept} in one made from it; else each write and each fork begins anew"
        )
    return make


@lru_cache(maxsize=64)
def _restored(make: Callable[..., Memory]) -> tuple[str, str, str, str]:
    """The states, as JSON text, of a memory after a write, of one made from it, of new ones before and after.

    No state where the class fails on the way: that is told by the episode in which it happens.
    """
    try:
        memory = make()
        before = _as_json(memory.state())
        memory.write("a note", 1)
        told = _as_json(memory.state())
        kept = _as_json(make(state=json.loads(told)).state())
        return told, kept, before, _as_json(make().state())
    except Exception:
        return "null", "null", "null", "null"
