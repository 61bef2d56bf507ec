"""Memory that an agent keeps by a rule: the call that acts has no say in it, and its failure loses nothing.

Such an agent writes its memory in calls of their own, and puts it before what the acting call wrote. That
call's own memory tags are made inert. Where its action cannot be read, the environment stores nothing of the
round and shows its text in the next one, from which the agent takes up what it had put there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import structs

from mempo_agents.base import Context
from mempo_agents.rounds import kinds, remembered
from mempo_env.protocol import neutralise, parse
from mempo_env.tokens import count_words
from mempo_env.types import Invalid, Segment

_READ = re.compile(r"<\s*memory_read\b", re.ASCII | re.IGNORECASE)
_PUT = re.compile(r"(?:<mem>\n.*?</mem>\n|<memory_[^\n]*\n)*", re.DOTALL)


def with_memory(memory: Sequence[Segment], action: str) -> str:
    """The text of a round that stores a memory, if there is any, and acts."""
    return "\n".join([*(segment.text for segment in memory), inert(action)])


def inert(text: str, bank: bool = False, reads: bool = False) -> str:
    """What an acting call wrote, with all that would write or ask a memory made inert.

    Args:
        text: Any text; its search or answer, or what is wrong with it, stays as it is.
        bank: Whether the memory is a bank.
        reads: Whether the call may read the bank.
    """
    pieces: list[str] = []
    acted = False  # what stands after the action is dropped by the environment
    for span in parse(text, bank=bank).spans:
        piece = text[span.start : span.end]
        acted = acted or span.role in ("call", "answer")
        owned = span.role == "mem" and not acted and not (reads and _READ.match(piece))
        pieces.append(neutralise(piece) if owned else piece)
    return "".join(pieces)


def put_before(text: str) -> tuple[str, str]:
    """(what the agent put before the action of a round, what the acting call wrote)."""
    match = _PUT.match(text)
    at = match.end() if match else 0
    return text[:at], text[at:]


def unread(segments: Sequence[Segment], bank: bool = False) -> str:
    """What the agent put before an action in view that could not be read; "" if there is none.

    Where the memory itself was refused, as one that is too long, there is nothing to take up again.
    """
    last = kinds(segments, "invalid")[-1:]
    texts = (segment.text for segment in last if isinstance(parse(segment.text, bank=bank), Invalid))
    return "".join(put_before(text)[0] for text in texts)


def in_force(context: Context) -> tuple[Segment, ...]:
    """The memory, also one whose round came to nothing because its action could not be read."""
    lost = unread(context.segments)
    return (remembered(lost, context) if lost else ()) or kinds(context.segments, "mem")


def told(segments: Sequence[Segment]) -> tuple[Segment, ...]:
    """What the environment says of the last round: an action that could not be read, an error, the hint."""
    shown = []
    for segment in kinds(segments, "invalid", "error", "hint"):
        rest = put_before(segment.text)[1] if segment.kind == "invalid" else segment.text
        shown.append(_cut(segment, rest))
    return tuple(shown)


def without_thoughts(segments: Sequence[Segment]) -> tuple[Segment, ...]:
    """All but thoughts, which are left out of a round that could not be read, too."""
    shown = []
    for segment in segments:
        text = segment.text
        if segment.kind == "invalid":
            text = "".join(text[s.start : s.end] for s in parse(text).spans if s.role != "think")
        if segment.kind != "think" and text:
            shown.append(_cut(segment, text))
    return tuple(shown)


def _cut(segment: Segment, text: str) -> Segment:
    """The segment with less text; the very same where all is left."""
    return segment if text == segment.text else structs.replace(segment, text=text, tokens=count_words(text))
