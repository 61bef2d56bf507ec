"""Agents and models of a user's own, by "module:thing"."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from mempo_env.errors import ConfigError, lookup
from mempo_env.imported import imported
from mempo_env.types import storable

T = TypeVar("T")

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


def lookup_or_own(table: Mapping[str, T], name: str, what: str) -> T:
    """Return `table[name]`, or raise a ConfigError that also says how one of a user's own is named."""
    try:
        return lookup(table, name, what)
    except ConfigError as error:
        thing = _first_thing(Path(f"{name}.py"))
        example = f", as in {name}:{thing}" if thing else ""
        raise ConfigError(f"{error}; one of your own is named module:thing{example}") from None


def _first_thing(file: Path) -> str:
    """What a source file in the working folder defines first, a class before a function; "" without one."""
    try:
        nodes = ast.parse(file.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return ""
    kinds = (ast.ClassDef, ast.FunctionDef)
    return next((node.name for kind in kinds for node in nodes if isinstance(node, kind)), "")


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
