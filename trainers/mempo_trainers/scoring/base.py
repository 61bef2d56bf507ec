"""What a scorer is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from msgspec import Struct

from mempo_env.errors import ConfigError
from mempo_trainers.credit.data import Floats
from mempo_trainers.tokens import Ids


class Asked(Struct, frozen=True, eq=False):
    """An answer whose log-probs are wanted, given all that stands before it.

    Attributes:
        context: Token ids before the answer, at least one.
        answer: Token ids of the answer, at least one.
    """

    context: Ids
    answer: Ids

    @property
    def read(self) -> Ids:
        """What a network must read: all but the last token, which nothing depends on."""
        ids: Ids = np.concatenate([self.context, self.answer])[:-1]
        return ids


class Scorer(Protocol):
    """Tells how likely answers are."""

    @property
    def name(self) -> str:
        """What it is called in `scoring.table`."""
        ...

    @property
    def fallback(self) -> str:
        """Why it took the place of the one that was wanted; empty if it did not."""
        ...

    def logprobs(self, asked: Sequence[Asked]) -> list[Floats]:
        """The log-prob of each answer's tokens (nats, at temperature 1, over all tokens), in order.

        They are without gradients, with dropout off, and NaN for an answer that could not be scored.

        Raises:
            ConfigError: for an empty context or answer, or one beyond the network's positions.
        """
        ...


def check_asked(asked: Sequence[Asked], positions: int | None) -> None:
    """ConfigError if a context or answer is empty, or the two are longer than a network's positions."""
    for i, one in enumerate(asked):
        if not len(one.context) or not len(one.answer):
            raise ConfigError(
                f"answer {i}: wanted a context and an answer of at least one token each, got "
                f"{len(one.context)} and {len(one.answer)}: put a system message, or a first token, before it"
            )
        length = len(one.context) + len(one.answer)
        if positions is not None and length > positions:
            raise ConfigError(
                f"answer {i}: wanted a context and an answer within the {positions:,} positions of the "
                f"network, got {length:,} tokens: allow fewer rounds, or use a longer network"
            )
