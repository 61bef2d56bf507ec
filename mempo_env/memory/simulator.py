"""What a memory bank with other settings would have kept: streams of operations replayed without a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from time import perf_counter
from typing import Any

import numpy as np
from msgspec import Struct

from mempo_env.memory.bank import Bank, BankConfig
from mempo_env.memory.similarity import Space, Vectors, embedder, unit_rows
from mempo_env.memory.streams import Event, Stream
from mempo_env.scoring import contains, normalise
from mempo_env.tokens import TokenCounter, count_words
from mempo_env.types import BankRecord

AT_ONCE = 256
"""Operations whose texts are compared with the bank in one product."""

TOO_MANY_MERGES = 0.3
"""Share of writes that merge, or are refused as duplicates, above which practice doubts the threshold."""


class Replayed(Struct, frozen=True, kw_only=True):
    """What came of a stream.

    Attributes:
        operations: How many were replayed.
        writes: How many of them were writes.
        recall: Share of the phrases that reads needed which they brought back, in [0, 1]; None: none needed.
        held: Share of these that the bank held at that time, found by the read or not; None likewise.
        hits: Share of the reads with needs that brought back at least one of them; None likewise.
        stale: Share of the reads for what had changed that brought back a value of before; None: nothing had.
        reading: Tokens that a read brought back, on average; None: no reads.
        merges: Share of the writes that became part of another entry, or were refused as its duplicate.
        evictions: Entries that had to go.
        entries: Active entries after a round, on average.
        tokens: Tokens in active entries after a round, on average.
        lost: Merges and discards that meant an entry of which nothing stands any more: it was evicted,
            discarded, or refused when it was written. What was merged stands for each of its parts.
        seconds: Time that the replay took.
    """

    operations: int
    writes: int
    recall: float | None
    held: float | None
    hits: float | None
    stale: float | None
    reading: float | None
    merges: float
    evictions: int
    entries: float
    tokens: float
    lost: int
    seconds: float


def vectors_of(streams: Sequence[Stream], embed: str) -> Callable[[Sequence[str]], Any]:
    """An embedder that has the vectors of all texts in the streams at hand, and computes those of others."""
    texts = list(dict.fromkeys(event.text for stream in streams for event in stream if event.text))
    compute = embedder(embed)
    known: dict[str, Vectors] = {}
    for start in range(0, len(texts), 4096):
        part = texts[start : start + 4096]
        known.update(zip(part, unit_rows(compute(part), len(part)), strict=True))

    def look_up(wanted: Sequence[str]) -> Any:
        return np.stack(
            [known[text] if text in known else unit_rows(compute([text]), 1)[0] for text in wanted]
        )

    return look_up


def replay(
    stream: Stream,
    config: BankConfig,
    *,
    embed: Callable[[Sequence[str]], Any] | None = None,
    count: TokenCounter = count_words,
) -> Replayed:
    """Do the operations of a stream on a bank with these settings, and measure what came back.

    Args:
        stream: The operations.
        config: Settings of the bank.
        embed: In place of the config's own (`vectors_of`).
        count: Counts tokens.
    """
    start = perf_counter()
    run = _Run(Bank(config, count, space=None if embed is None else Space(embed)))
    ends = [i for i, (a, b) in enumerate(pairwise(stream)) if a.round != b.round] + [len(stream) - 1]
    last_of_round = set(ends)
    for i, event in enumerate(stream):
        if i % AT_ONCE == 0:
            run.bank.expect(e.text for e in stream[i : i + AT_ONCE] if e.kind in ("write", "read"))
        run.do(i, event)
        if i in last_of_round:
            run.entries += len(run.bank)
            run.tokens += run.bank.tokens
    rounds = max(1, len(ends) if stream else 0)
    writes = sum(event.kind == "write" for event in stream)
    merged = sum(r.kind == "write" and r.why in ("duplicate", "merged") for r in run.bank.log)
    return Replayed(
        operations=len(stream),
        writes=writes,
        recall=_share(run.found, run.needed),
        held=_share(run.in_bank, run.needed),
        hits=_share(run.hit, run.asked),
        stale=_share(run.misled, run.changed),
        reading=_share(run.shown, run.reads),
        merges=merged / writes if writes else 0.0,
        evictions=sum(r.kind == "evict" for r in run.bank.log),
        entries=run.entries / rounds,
        tokens=run.tokens / rounds,
        lost=run.lost,
        seconds=perf_counter() - start,
    )


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


class _Run:
    """A replay under way: the bank, who holds which phrase, and the counts."""

    def __init__(self, bank: Bank) -> None:
        self.bank = bank
        self.made: dict[int, int] = {}  # event -> entry it made
        self.holds: dict[int, tuple[str, ...]] = {}  # active entry -> phrases
        self.holders: Counter[str] = Counter()  # phrase -> active entries that hold it
        self.needed = self.found = self.in_bank = self.asked = self.hit = self.changed = self.misled = 0
        self.reads = self.shown = self.lost = 0
        self.entries = self.tokens = 0.0

    def do(self, index: int, event: Event) -> None:
        """Do one operation."""
        seen = len(self.bank.log)
        made: int | None = None
        if event.kind == "write":
            made = self.bank.write(event.text, event.round)
        elif event.kind == "read":
            self._read(event)
        else:
            standing = [self._standing(index) for index in event.of]
            ids = [id for id in dict.fromkeys(standing) if id is not None]
            if event.kind == "discard":
                for id in ids:
                    self.bank.discard(id, event.round)
            elif len(ids) > 1 or (ids and event.text):
                made = self.bank.merge(ids, event.round, event.text)
            self.lost += None in standing
        if made is not None:
            self.made[index] = made
        for record in self.bank.log[seen:]:
            self._follow(record, event.holds)

    def _standing(self, index: int) -> int | None:
        """The active entry that stands for what an event made; None if nothing does."""
        id = self.made.get(index)
        while id is not None and self.bank.entries[id - 1].state == "merged":
            id = self.bank.entries[id - 1].merged_into
        return id if id is not None and self.bank.entries[id - 1].state == "active" else None

    def _follow(self, record: BankRecord, phrases: tuple[str, ...]) -> None:
        """Note who holds which phrase after one line of the log."""
        if not record.accepted or record.kind == "read":
            return
        if record.kind in ("discard", "evict"):
            self._drop(record.ids[0])
            return
        *old, new = record.ids
        if record.kind == "merge" or old:
            phrases = tuple(dict.fromkeys((*phrases, *(p for id in old for p in self.holds[id]))))
            norm = normalise(self.bank.entries[new - 1].text)
            phrases = tuple(phrase for phrase in phrases if contains(norm, normalise(phrase)))
        for id in old:
            self._drop(id)
        self.holds[new] = phrases
        self.holders.update(phrases)

    def _drop(self, id: int) -> None:
        self.holders.subtract(self.holds.pop(id))

    def _read(self, event: Event) -> None:
        entries = self.bank.read(event.text, event.round, event.k)
        self.reads += 1
        self.shown += sum(entry.tokens for entry in entries)
        if not event.needs:
            return
        brought = {phrase for entry in entries for phrase in self.holds[entry.id]}
        found = sum(phrase in brought for phrase in event.needs)
        self.asked += 1
        self.hit += found > 0
        self.needed += len(event.needs)
        self.found += found
        self.in_bank += sum(self.holders[phrase] > 0 for phrase in event.needs)
        self.changed += bool(event.outdated)
        self.misled += not brought.isdisjoint(event.outdated)
