"""Agents and models of a user's own, by "module:thing"."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from mempo_env.errors import ConfigError
from mempo_env.imported import imported
from mempo_env.types import storable

_PARTS: dict[str, tuple[type, str]] = {
    "name": (str, "a text"),
    "fingerprint": (str, "a text"),
    "env_kwargs": (Mapping, "keyword arguments of the environment by name"),
}
"""What parts must be; others are methods."""


def own(name: str, what: str, parts: tuple[str, ...], gifts: Mapping[str, Any] | None = None) -> Any:
    """The thing that a name names, or what a class or function of that name makes.

    Args:
        name: "module:thing"; the module is looked for in the working folder too.
        what: "agent" or "model", for the message.
        parts: Attributes that it must have.
        gifts: By name, arguments for a class or function that has parameters of these names.

    Raises:
        ConfigError: if it can't be imported, wants other arguments, or a part is missing or no such thing.
    """
    found = imported(name, what)
    made = (
        _made(found, name, what, gifts or {})
        if inspect.isclass(found) or inspect.isfunction(found)
        else found
    )
    missing = [part for part in parts if not hasattr(made, part)]
    if missing:
        raise ConfigError(f"{what} {name!r}: wanted {', '.join(parts)}; it has no {', '.join(missing)}")
    for part in parts:
        _check_part(f"{part} of {what} {name!r}", part, getattr(made, part))
    return made


def _check_part(place: str, part: str, value: Any) -> None:
    """Refuse a part that no result could hold, or that can't be called."""
    kind, wanted = _PARTS.get(part, (object, "a method"))
    if not isinstance(value, kind) or (kind is object and not callable(value)):
        raise ConfigError(f"{place}: wanted {wanted}, got {value!r}")
    if isinstance(value, str) and not (value and value == storable(value)):
        raise ConfigError(f"{place}: wanted a text of whole characters that is not empty, got {value!r}")


def _made(make: Callable[..., Any], name: str, what: str, gifts: Mapping[str, Any]) -> Any:
    """What a class or function makes of the gifts that it takes; a ConfigError if it wants more."""
    signature = inspect.signature(make)
    given = {gift: value for gift, value in gifts.items() if gift in signature.parameters}
    try:
        signature.bind(**given)
    except TypeError as error:
        source = " or ".join(["nothing", *gifts])
        hint = f"; a round is played by ModelAgent(play={make.__name__}, ...)"
        raise ConfigError(
            f"{what} {name!r}: wanted {what}, or what makes one from {source}, got {make.__name__}{signature}"
            f" ({error}){hint if inspect.isgeneratorfunction(make) else ''}"
        ) from None
    return make(**given)
