"""What merging makes of the texts of entries: one text that says what they say, as far as it may be long."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

from mempo_env.errors import MemoryFault
from mempo_env.tokens import TokenCounter
from mempo_env.types import storable

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


def join(
    texts: Sequence[str], limit: int, count: TokenCounter, summarise: Callable[[str, int], str] | None = None
) -> str:
    """The texts one after the other, without what is said already; shorter where that is too long.

    Args:
        texts: Of the entries, in order.
        limit: Tokens up to which they are joined as they are.
        count: Counts tokens.
        summarise: Makes it shorter, from (text, tokens allowed); None: `trim`.

    Raises:
        MemoryFault: if nothing is left of it.
    """
    joined = ""
    for text in texts:
        if text not in joined:
            joined = f"{joined} {text}".lstrip()
    if count(joined) <= limit:
        return joined
    if summarise is None:
        return trim(joined, limit, count)
    shorter = storable(summarise(joined, limit)).strip()
    if not shorter:
        raise MemoryFault("memory bank: summarise: wanted a text that says something, got an empty one")
    return shorter


def trim(text: str, limit: int, count: TokenCounter) -> str:
    """The last sentences of a text that fit into the limit, none of them twice; at least the last, cut."""
    sentences = list(dict.fromkeys(reversed(_SENTENCE_END.split(text.strip()))))
    kept: list[str] = []
    left: float = limit
    for sentence in sentences:
        left -= count(sentence)
        if left < 0:
            break
        kept.append(sentence)
    if kept:
        return " ".join(reversed(kept))
    words = sentences[0].split()
    while len(words) > 1 and count(" ".join(words)) > limit:
        words = words[: max(1, math.floor(len(words) * limit / count(" ".join(words))))]
    return " ".join(words)
