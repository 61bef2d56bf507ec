"""Agents and models of a user's own, by "module:thing"."""

from __future__ import annotations

import inspect
from typing import Any

from mempo_env.errors import ConfigError
from mempo_env.imported import imported


def own(name: str, what: str, parts: tuple[str, ...]) -> Any:
    """The thing that a name names, or what a class or function of that name makes without arguments.

    Args:
        name: "module:thing"; the module is looked for in the working folder too.
        what: "agent" or "model", for the message.
        parts: Attributes that it must have.

    Raises:
        ConfigError: if it can't be imported, or lacks a part.
    """
    found = imported(name, what)
    made = found() if inspect.isclass(found) or inspect.isfunction(found) else found
    missing = [part for part in parts if not hasattr(made, part)]
    if missing:
        raise ConfigError(f"{what} {name!r}: wanted {', '.join(parts)}; it has no {', '.join(missing)}")
    return made
