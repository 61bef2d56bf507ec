"""Answers scored by the server that also generates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from msgspec import Struct

from mempo_agents.models.base import ModelError
from mempo_trainers.credit.data import Floats
from mempo_trainers.scoring.base import Asked, check_asked


class Scoring(Protocol):
    """A model that can be asked for log-probs."""

    def score(
        self, asked: Sequence[tuple[Sequence[int], Sequence[int]]]
    ) -> Sequence[tuple[float, ...] | ModelError]:
        """Log-probs of the second ids of each pair after the first, at temperature 1."""
        ...


class ServerScorer(Struct, frozen=True, eq=False):
    """Asks a model's `score`; a server that keeps what it has read shares beginnings by itself.

    An answer whose call failed is NaN throughout: it leaves the pool, and the step goes on.

    Attributes:
        model: `SGLang`, or any other with that method.
        fallback: Empty.
    """

    model: Scoring
    fallback: str = ""
    name: str = "server"

    def logprobs(self, asked: Sequence[Asked]) -> list[Floats]:
        """As `Scorer` says.

        Raises:
            ModelError: if a server tells another number of log-probs than were asked for.
        """
        check_asked(asked, None)
        told = self.model.score([(one.context.tolist(), one.answer.tolist()) for one in asked])
        return [_read(one, each) for one, each in zip(asked, told, strict=True)]


def _read(asked: Asked, told: tuple[float, ...] | ModelError) -> Floats:
    if isinstance(told, ModelError):
        return np.full(len(asked.answer), np.nan)
    if len(told) != len(asked.answer):
        raise ModelError(f"score: wanted {len(asked.answer)} log-probs, one a token, got {len(told)}")
    return np.array(told, np.float64)
