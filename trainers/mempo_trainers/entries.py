"""Entries of memory banks in frozen episodes: which tokens wrote them, which rounds used them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence

import numpy as np
from msgspec import Struct

from mempo_env.types import Call, Episode, Round, Span
from mempo_trainers.credit.data import Ints


class Entries(Struct, frozen=True, eq=False):
    """Fields of `credit.data.Trajectories` of these names."""

    entry_BK: Ints
    used_UC: Ints
    merged_MC: Ints


class _Written(Struct, frozen=True):
    """What the policy wrote of its own into a bank, by name, and where in the round's text it stands.

    `into` is the entry that it became a part of, together with older ones, `parts`; None: it is one itself.
    """

    span: Span
    name: Hashable | None
    into: Hashable | None = None
    parts: tuple[Hashable, ...] = ()


def read_entries(
    played: Sequence[Episode],
    calls: Sequence[tuple[int, Call, Round]],
    starts: Callable[[Sequence[int]], Sequence[int]],
    width: int,
) -> Entries | None:
    """What was written into memory banks and used.

    None unless each episode that counts has a bank, and the policy itself wrote what was done to it: of an
    agent that works on a bank by rules nobody knows which of its tokens made an entry.

    A text that is written is an entry. What becomes of it by a merge, its own or that of a write too like
    another entry, is made of it and of the older ones. A round uses the entries that the one before it read:
    what a read brings up is seen by the next text only.

    Args:
        played: The episodes, B segments of R rounds in all.
        calls: Of each segment: its round's place in the R axis, its ids, its round.
        starts: In which character of their text some ids start.
        width: K, tokens of a segment's response.
    """
    if any(e.settings.get("memory") != "bank" for e in played if not e.mask_episode):
        return None
    rounds = [(i, round) for i, episode in enumerate(played) for round in episode.rounds]
    worked = {r for r, (i, round) in enumerate(rounds) if round.operations and not played[i].mask_episode}
    if worked - {r for r, call, round in calls if call.output_ids == round.token_ids}:
        return None
    number: dict[Hashable, int] = {}

    def numbered(name: Hashable) -> int:
        return number.setdefault(name, len(number))

    entry_BK = np.full((len(calls), width), -1, np.int64)
    for row, (r, call, round) in enumerate(calls):
        if call.output_ids != round.token_ids:
            continue
        at_K = np.array(starts(call.output_ids), np.int64)
        for written in _written(rounds[r][0], round):
            if written.name is not None:
                inside_K = (at_K >= written.span.start) & (at_K < written.span.end)
                entry_BK[row, : len(at_K)][inside_K] = numbered(written.name)
    merged = [
        (numbered(written.into), numbered(part))
        for i, round in rounds
        for written in _written(i, round)
        if written.into is not None
        for part in (*written.parts, *([] if written.name is None else [written.name]))
    ]
    used = [
        (r + 1, numbered((i, id)))
        for r, (i, round) in enumerate(rounds[:-1])
        if rounds[r + 1][0] == i
        for id in _read(round)
    ]
    return Entries(entry_BK, _pairs(used), _pairs(merged))


def _written(i: int, round: Round) -> Iterator[_Written]:
    """What a round of episode i wrote, operation by operation; what a bank refused is left out."""
    records = iter([record for record in round.operations if record.kind != "evict"])
    spans = (span for span in round.action.spans if span.role == "mem")
    for n, (operation, span, record) in enumerate(zip(round.action.operations, spans, records, strict=False)):
        own = (i, round.number, n)
        ids = [(i, id) for id in record.ids]
        match record.kind:
            case "write" if record.accepted and record.why == "merged":
                yield _Written(span, own, ids[-1], tuple(ids[:-1]))
            case "write" if record.accepted:
                yield _Written(span, ids[0])
            case "merge":
                yield _Written(span, own if operation.text else None, ids[-1], tuple(ids[:-1]))
            case "discard":
                for _ in operation.ids[1:]:
                    next(records)


def _read(round: Round) -> set[int]:
    return {id for record in round.operations if record.kind == "read" for id in record.ids}


def _pairs(rows: Sequence[tuple[int, int]]) -> Ints:
    return np.array(sorted(set(rows)), np.int64).reshape(-1, 2)
