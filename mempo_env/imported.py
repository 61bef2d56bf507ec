"""Things of a user's own by name: "module:thing", looked for in the working folder too."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from mempo_env.errors import ConfigError


def imported(name: str, what: str) -> Any:
    """The thing that a "module:thing" names; a ConfigError that says what failed if it can't be imported."""
    module, _, thing = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        return getattr(importlib.import_module(module), thing)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{what} {name!r}: wanted module:thing that can be imported; {error}") from None
