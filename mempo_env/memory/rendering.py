"""What an agent is shown of a memory bank."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from mempo_env.protocol import one_line
from mempo_env.types import Entry

TITLE_WORDS = 8
"""Words of an entry that stand for it in the prompt."""

SHOWN = "(shown above)"
"""What stands in place of the text of an entry that an earlier read of the round has shown."""


def render_status(active: int, merged: int, discarded: int, newest: Sequence[Entry]) -> str:
    """What the prompt shows of a memory bank: counts, and the titles of the newest entries."""
    counts = f'entries="{active}" merged="{merged}" discarded="{discarded}"'
    lines = [f"[{entry.id}] {_title(entry.text)}" for entry in newest]
    if active > len(newest):
        lines.append(f"and {active - len(newest)} older")
    return "\n".join([f"<memory_bank {counts}>", *lines, "</memory_bank>"])


def _title(text: str) -> str:
    words = one_line(text).split()
    return " ".join(words[:TITLE_WORDS]) + (" …" if len(words) > TITLE_WORDS else "")


def render_recall(query: str, entries: Sequence[Entry], shown: Collection[int] = ()) -> str:
    """The entries that one read of the bank returned, each on a line after its id.

    The text of those whose ids are in `shown`, by an earlier read of the round, is not said again.
    """
    texts = ((e.id, SHOWN if e.id in shown else one_line(e.text)) for e in entries)
    lines = [f"[{id}] {text}" for id, text in texts] or ["Nothing is stored."]
    return "\n".join([f"<memory_recall> {one_line(query)}", *lines, "</memory_recall>"])
