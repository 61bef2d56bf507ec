"""Texts as token ids: those of contexts, roles of what was written, answers to be scored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from mempo_env.types import Action, Invalid, Span
from mempo_trainers.credit.data import ROLES, THINK
from mempo_trainers.policies.base import Responses

Ids: TypeAlias = NDArray[np.int64]
"""Token ids of one text."""


class Ragged(Struct, frozen=True, eq=False):
    """Things of different lengths, one a row: indexed by arrays of rows, joined by +."""

    rows: tuple[Any, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows)

    def __getitem__(self, rows_b: NDArray[Any]) -> Ragged:
        return Ragged(tuple(self.rows[i] for i in np.arange(len(self.rows))[rows_b].tolist()))

    def __add__(self, more: Ragged) -> Ragged:
        return Ragged(self.rows + more.rows)


class View(Struct, frozen=True, eq=False):
    """A context to score answers in: its ids, and for each objective the ids before its answer and of it."""

    context: Ids
    answers: tuple[tuple[Ids, Ids], ...]


def plain_responses(texts: Sequence[Ids]) -> Responses:
    """Texts as responses of which every token counts."""
    tokens_BK = np.zeros((len(texts), max(map(len, texts), default=0)), np.int64)
    roles_BK = np.zeros(tokens_BK.shape, np.int8)
    for row, ids in enumerate(texts):
        tokens_BK[row, : len(ids)], roles_BK[row, : len(ids)] = ids, THINK
    return Responses(tokens_BK, roles_BK, np.zeros(tokens_BK.shape, np.float32))


def buckets(lengths: Sequence[int] | Ids, most: int) -> list[Ids]:
    """Split rows, shortest first, so that rows times longest is at most `most` (or one row)."""
    parts: list[list[int]] = []
    for row in np.argsort(lengths, kind="stable").tolist():
        if not parts or lengths[row] * (len(parts[-1]) + 1) > most:
            parts.append([])
        parts[-1].append(row)
    return [np.array(part, np.int64) for part in parts]


def token_roles(starts: Sequence[int], action: Action) -> list[int]:
    """The role of each token: that of the span which holds its first character.

    In an invalid round nothing was stored, searched or answered: all of it is thought. So is an end of text
    that follows nothing; one that follows something belongs to it.

    Args:
        starts: In which character each token starts.
        action: What was read in the text.
    """
    return span_roles(starts, () if isinstance(action, Invalid) else action.spans)


def span_roles(starts: Sequence[int], spans: Sequence[Span]) -> list[int]:
    """The role of each token by spans that cover the text; without any, all of it is thought."""
    if not spans:
        return [THINK] * len(starts)
    roles, i = [], 0
    for start in starts:
        while i + 1 < len(spans) and start >= spans[i].end:
            i += 1
        roles.append(ROLES[spans[i].role])
    return roles
