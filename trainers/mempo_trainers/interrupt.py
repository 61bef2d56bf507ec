"""Ctrl-C that lets a step end first."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def held(told: str) -> Iterator[Callable[[], bool]]:
    """Hold the first Ctrl-C of the block back; the second one interrupts as ever.

    Yields whether there was one. Where Ctrl-C is somebody else's, or the thread is none that gets signals,
    it stays as it is.

    Args:
        told: What to say on stderr when it comes.
    """
    asked = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        print(f"\n{told}", file=sys.stderr, flush=True)  # noqa: T201

    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield lambda: False
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
