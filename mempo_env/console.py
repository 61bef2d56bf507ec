"""The terminal as everything here prints to it: text is text."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def console(width: int | None = None, *, stderr: bool = False) -> Console:
    """A console that takes no text for more than it is: brackets are no markup, `:b` is no emoji.

    Args:
        width: Columns where the output is no terminal; None: 80.
        stderr: Whether it is the standard error.
    """
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(
        stderr=stderr,
        highlight=False,
        markup=False,
        emoji=False,
        width=None if stream.isatty() else width,
    )
