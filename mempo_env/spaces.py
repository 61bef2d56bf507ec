"""The space of Unicode text."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Space


class UnicodeText(Space[str]):
    """All texts of at most `max_length` characters.

    gymnasium's own Text is defined by a character set: the default one holds neither a space nor "é", and one
    of all of Unicode takes seconds to build and megabytes to pickle.
    """

    def __init__(self, max_length: int = 1 << 24, seed: int | np.random.Generator | None = None) -> None:
        super().__init__(dtype=str, seed=seed)
        self.max_length = max_length

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> str:
        """Draw a search for a random word, or an answer: text that an environment can act on."""
        word = "".join(map(chr, self.np_random.integers(97, 123, size=self.np_random.integers(2, 9))))
        tag = ("search", "answer")[int(self.np_random.integers(2))]
        return f"<{tag}>{word}</{tag}>"[: self.max_length]

    def contains(self, x: Any) -> bool:
        """Whether x is a text that is not too long."""
        return isinstance(x, str) and len(x) <= self.max_length

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnicodeText) and self.max_length == other.max_length

    def __hash__(self) -> int:
        return hash((UnicodeText, self.max_length))

    def __repr__(self) -> str:
        return f"UnicodeText({self.max_length})"

    @property
    def is_np_flattenable(self) -> bool:
        """Text is not an array."""
        return False
