"""A memory bank: entries that a policy writes, reads, merges and discards by operations of its own.

Nothing is deleted: merged and discarded entries stay as tombstones, for credit needs to know what was there.
A bank belongs to one episode: the environment makes it, and no keyword takes one.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
import numpy as np
from msgspec import Meta
from msgspec.structs import replace

from mempo_env.errors import ConfigError, StateError
from mempo_env.imported import imported
from mempo_env.memory.base import answered
from mempo_env.memory.joining import join
from mempo_env.memory.operations import Fault, refusal
from mempo_env.memory.rendering import render_recall, render_status
from mempo_env.memory.similarity import Space, Vectors, check_capacity, embedder
from mempo_env.settings import MOST, Count, Settings, Share, Whole
from mempo_env.tokens import TokenCounter
from mempo_env.types import Answer, BankRecord, Entry, EntryState, Operation, Search

Eviction: TypeAlias = Literal["least_used", "least_recent", "oldest"]

_EVICTIONS: dict[Eviction, Callable[[Entry], tuple[int, ...]]] = {
    "least_used": lambda entry: (entry.access_count, entry.last_access_round),
    "least_recent": lambda entry: (entry.last_access_round,),
    "oldest": lambda entry: (entry.created_round,),
}
ROUNDING = 1e-6
"""Of a cosine of float32 vectors: that of a text with itself may be a little below 1."""


class BankConfig(Settings, frozen=True):
    """The settings of a memory bank.

    Attributes:
        capacity: Active entries at most, at least 1; a write beyond it evicts one.
        eviction: Which one goes: "least_used" by (access count, last access), "least_recent" by last access,
            or the "oldest"; ties by id.
        duplicate: Similarity (cosine) to an active entry from which on a write counts as a duplicate, above
            0; above 1: never.
        on_duplicate: What then happens: "refuse" it, or "merge" it into the entry it is like.
        novelty: The second gate, "module:function": called with (new text, nearest entry's text, similarity),
            a write is refused if it returns False. None: no second gate.
        embed: What similarity is: "ngrams" (hashed character n-grams), "sentence-transformers/NAME", or
            "module:function" from N texts to an array (N, D).
        k: Entries that a read returns unless it says otherwise.
        max_k: Entries that a read may ask for at most.
        pool: Nearest entries among which a read chooses.
        relevance: lambda of maximal marginal relevance (Carbonell and Goldstein 1998), in [0, 1]: 1 takes the
            nearest, less avoids entries that say the same.
        merge_tokens: Longest text that merging joins as it is; above it the summariser is asked.
        summarise: "module:function" from (text, tokens allowed) to a shorter text. None: sentences that occur
            twice go, then the first ones.
        check_after: Rounds without a write after which the hint says that a memory check is due; 0: never.
        titles: Newest entries whose titles the prompt shows.
    """

    capacity: Count = 64
    eviction: Eviction = "least_used"
    duplicate: Annotated[float, Meta(gt=0, le=MOST)] = 0.86
    on_duplicate: Literal["refuse", "merge"] = "refuse"
    novelty: str | None = None
    embed: str = "ngrams"
    k: Count = 4
    max_k: Count = 6
    pool: Count = 24
    relevance: Share = 0.5
    merge_tokens: Count = 120
    summarise: str | None = None
    check_after: Whole = 4
    titles: Whole = 5

    def __post_init__(self) -> None:
        """Refuse what no bank can do."""
        super().__post_init__()
        for name, least in (("max_k", "k"), ("pool", "max_k")):
            if getattr(self, name) < getattr(self, least):
                raise ConfigError(
                    f"{name}: wanted at least {least}, {getattr(self, least)}, got {getattr(self, name)}"
                )
        check_capacity(self.capacity)


class Bank:
    """The bank of one episode.

    Attributes:
        config: Its settings.
        entries: Every entry ever made; entry i has the id i + 1.
        log: Every operation, in order, and what came of it.
        tokens: Tokens in active entries.
    """

    def __init__(
        self, config: BankConfig, count: TokenCounter, episode_id: str = "", space: Space | None = None
    ) -> None:
        self.config = config
        self.entries: list[Entry] = []
        self.log: list[BankRecord] = []
        self.tokens = 0
        self._count, self._episode_id = count, episode_id
        self._space = Space(embedder(config.embed)) if space is None else space
        self._novel = _named(config.novelty, "novelty", (bool, np.bool_), "True or False")
        summarise = _named(config.summarise, "summarise", str, "a text")
        self._join = partial(join, limit=config.merge_tokens, count=count, summarise=summarise)
        self._goes_first: list[tuple[tuple[int, ...], int]] = []  # heap; what has changed since is skipped

    def __len__(self) -> int:
        return len(self._space)

    def copy(self) -> Bank:
        """An independent bank in the same state."""
        twin = Bank(self.config, self._count, self._episode_id)
        twin.entries, twin.log, twin.tokens = self.entries.copy(), self.log.copy(), self.tokens
        twin._space, twin._goes_first = self._space.copy(), self._goes_first.copy()
        return twin

    def active(self) -> list[Entry]:
        """Active entries by id."""
        return [entry for entry in self.entries if entry.state == "active"]

    # --- One round --------------------------------------------------------------------------------------

    def update(self, action: Search | Answer, round: int) -> str | Fault:
        """Do the operations of a round in order, and return what the agent is shown of them.

        An entry's text is shown once, so that many reads show no more than the bank holds.
        A fault (an id that is not there, too large a k) leaves the bank half done: work on a copy.
        """
        told: list[str] = []
        shown: set[int] = set()
        for operation in action.operations:
            fault = self.fault(operation)
            if fault is not None:
                return fault
            match operation.kind:
                case "write":
                    self.write(operation.text, round)
                    record = self.log[-1]
                    if not record.accepted:
                        told.append(refusal(record))
                case "read":
                    found = self.read(operation.text, round, operation.k)
                    told.append(render_recall(operation.text, found, shown))
                    shown.update(entry.id for entry in found)
                case "merge":
                    self.merge(operation.ids, round, operation.text)
                case "discard":
                    for id in operation.ids:
                        self.discard(id, round)
        return "\n".join(told)

    def fault(self, operation: Operation) -> Fault | None:
        """Why an operation cannot be done now; None if it can."""
        if operation.k is not None and not 1 <= operation.k <= self.config.max_k:
            return Fault("k_too_large", f"k is from 1 to {self.config.max_k}, got {operation.k}")
        if len(set(operation.ids)) < len(operation.ids):
            return Fault("bad_parameter", "an entry is named twice")
        if operation.kind == "merge" and len(operation.ids) + bool(operation.text) < 2:
            return Fault("bad_parameter", "a merge needs two entries or more, or one and its new text")
        for id in operation.ids:
            if not 1 <= id <= len(self.entries):
                return Fault("unknown_id", f"there is no entry [{id}]")
            entry = self.entries[id - 1]
            if entry.state != "active":
                where = "" if entry.merged_into is None else f" into [{entry.merged_into}]"
                return Fault("unknown_id", f"entry [{id}] is not there any more: it was {entry.state}{where}")
        return None

    def _check(self, operation: Operation) -> None:
        if (fault := self.fault(operation)) is not None:
            raise ConfigError(f"memory bank: {fault.detail}")

    # --- Operations -------------------------------------------------------------------------------------

    def write(self, text: str, round: int) -> int | None:
        """Store a text unless a gate refuses it; the id of the entry that has it now, None if none has."""
        nearest = self._space.nearest(text, 1)
        if nearest:
            id, similarity = nearest[0]
            if similarity >= self.config.duplicate - ROUNDING:
                if self.config.on_duplicate == "merge":
                    merged = self._join([self.entries[id - 1].text, text])
                    return self._replace([id], merged, round, "write", why="merged")
                self._note(round, "write", (id,), accepted=False, why="duplicate", tokens=self._count(text))
                return None
            if self._novel is not None and not self._novel(text, self.entries[id - 1].text, similarity):
                self._note(round, "write", (id,), accepted=False, why="not_novel", tokens=self._count(text))
                return None
        entry, vector = self._new(text, round)
        if len(self) >= self.config.capacity:
            self._evict(round)
        self._add(entry, vector)
        self._note(round, "write", (entry.id,), tokens=entry.tokens)
        return entry.id

    def read(self, query: str, round: int, k: int | None = None) -> list[Entry]:
        """The k entries to a query by similarity, then maximal marginal relevance; marks them as used.

        Raises:
            ConfigError: if k is not from 1 to `max_k`.
        """
        self._check(Operation(kind="read", text=query, k=k))
        k = self.config.k if k is None else k
        pool = self._space.nearest(query, self.config.pool)
        ids = [pool[i][0] for i in self._diverse(pool, min(k, len(pool)))]
        found = []
        for id in ids:
            entry = self.entries[id - 1]
            entry = replace(entry, access_count=entry.access_count + 1, last_access_round=round)
            self._put(entry)
            found.append(entry)
        self._note(round, "read", tuple(ids), tokens=sum(entry.tokens for entry in found))
        return found

    def _diverse(self, pool: Sequence[tuple[int, float]], k: int) -> list[int]:
        """Indices of k of the pool by maximal marginal relevance, the first the nearest.

        Each next one has the greatest lambda cos(entry, query) - (1 - lambda) max cos(entry, one chosen).
        """
        if k == 0:
            return []
        weight = self.config.relevance
        relevant_N = weight * np.array([cosine for _, cosine in pool])
        between_NN = self._space.between([id for id, _ in pool])
        chosen = [0]
        repeated_N = between_NN[0].copy()
        while len(chosen) < k:
            value_N = relevant_N - (1 - weight) * repeated_N
            value_N[chosen] = -np.inf
            best = int(np.argmax(value_N))
            chosen.append(best)
            np.maximum(repeated_N, between_NN[best], out=repeated_N)
        return chosen

    def merge(self, ids: Sequence[int], round: int, text: str = "") -> int:
        """Replace active entries by one with the text, by default theirs joined; the new entry's id.

        Raises:
            ConfigError: if an entry is not there or named twice, or there is nothing to merge.
        """
        self._check(Operation(kind="merge", text=text, ids=tuple(ids)))
        joined = text or self._join([self.entries[id - 1].text for id in ids])
        return self._replace(ids, joined, round, "merge")

    def discard(self, id: int, round: int) -> None:
        """Take an active entry out of use; a ConfigError if it is not there."""
        self._check(Operation(kind="discard", ids=(id,)))
        self._retire(id, "discarded")
        self._note(round, "discard", (id,), tokens=self.entries[id - 1].tokens)

    # --- How they are done ------------------------------------------------------------------------------

    def _new(self, text: str, round: int) -> tuple[Entry, Vectors]:
        """The next entry and its vector; nothing is changed yet, for what is the user's may fail here."""
        entry = Entry(
            id=len(self.entries) + 1,
            text=text,
            tokens=self._count(text),
            created_round=round,
            last_access_round=round,
            episode_id=self._episode_id,
        )
        return entry, self._space.vector(text)

    def _add(self, entry: Entry, vector: Vectors) -> None:
        self.entries.append(entry)
        self._space.add(entry.id, vector)
        self.tokens += entry.tokens
        heapq.heappush(self._goes_first, (self._order(entry), entry.id))

    def _put(self, entry: Entry) -> None:
        """Store a changed active entry."""
        self.entries[entry.id - 1] = entry
        heapq.heappush(self._goes_first, (self._order(entry), entry.id))

    def _retire(self, id: int, state: EntryState, into: int | None = None) -> None:
        entry = self.entries[id - 1]
        self.entries[id - 1] = replace(entry, state=state, merged_into=into)
        self._space.remove(id)
        self.tokens -= entry.tokens

    def _replace(self, ids: Sequence[int], text: str, round: int, kind: Any, why: Any = "") -> int:
        """Let one new entry stand for several, with the uses that they had."""
        entry, vector = self._new(text, round)
        old = [self.entries[id - 1] for id in ids]
        for id in ids:
            self._retire(id, "merged", into=entry.id)
        self._add(entry, vector)
        used = sum(entry.access_count for entry in old)
        if used:
            self._put(replace(entry, access_count=used))
        self._note(round, kind, (*ids, entry.id), why=why, tokens=entry.tokens)
        return entry.id

    def _evict(self, round: int) -> None:
        while True:
            order, id = heapq.heappop(self._goes_first)
            entry = self.entries[id - 1]
            if entry.state == "active" and self._order(entry) == order:
                break
        self._retire(id, "discarded")
        self._note(round, "evict", (id,), why="evicted", tokens=entry.tokens)

    def _order(self, entry: Entry) -> tuple[int, ...]:
        return _EVICTIONS[self.config.eviction](entry)

    def _note(
        self,
        round: int,
        kind: Any,
        ids: tuple[int, ...],
        *,
        accepted: bool = True,
        why: Any = "",
        tokens: int,
    ) -> None:
        self.log.append(BankRecord(round, kind, ids, accepted, why, tokens))

    # --- What is told of it -----------------------------------------------------------------------------

    def show(self) -> str:
        """What the prompt shows of it: counts, and the titles of the newest entries."""
        gone = [entry.state for entry in self.entries]
        newest: list[Entry] = []
        for entry in reversed(self.entries):
            if len(newest) == self.config.titles:
                break
            if entry.state == "active":
                newest.append(entry)
        return render_status(len(self), gone.count("merged"), gone.count("discarded"), newest)

    def text(self) -> str:
        """All that its active entries say, a line each."""
        return "\n".join(entry.text for entry in self.entries if entry.state == "active")

    def done(self, round: int) -> tuple[BankRecord, ...]:
        """The lines of the log that a round wrote, the last one or one before it."""
        start = len(self.log)
        while start and self.log[start - 1].round >= round:
            start -= 1
        return tuple(record for record in self.log[start:] if record.round == round)

    def check_is_due(self, round: int) -> bool:
        """Whether nothing was written in the last `check_after` rounds, up to this one."""
        after = self.config.check_after
        written = max((r.round for r in reversed(self.log) if r.kind in ("write", "merge")), default=0)
        return 0 < after <= round - written

    def state(self) -> dict[str, Any]:
        """The bank as plain data, for `revived`."""
        return {"entries": msgspec.to_builtins(self.entries), "log": msgspec.to_builtins(self.log)}

    @classmethod
    def revived(
        cls, config: BankConfig, count: TokenCounter, episode_id: str, state: Mapping[str, Any] | None
    ) -> Bank:
        """The bank that `state` was taken of (None: a new one); a StateError if it is of another episode."""
        bank = cls(config, count, episode_id)
        if state is None:
            return bank
        bank.entries = msgspec.convert(state["entries"], list[Entry])
        bank.log = msgspec.convert(state["log"], list[BankRecord])
        for number, entry in enumerate(bank.entries, 1):
            if entry.id != number:
                raise StateError(f"memory bank: wanted entry [{number}], got one with the id {entry.id}")
            if entry.episode_id != episode_id:
                raise StateError(
                    f"memory bank: wanted entries of episode {episode_id!r}, got one of {entry.episode_id!r}"
                )
            if entry.state == "active":
                bank._space.add(entry.id, bank._space.vector(entry.text))
                bank.tokens += entry.tokens
                heapq.heappush(bank._goes_first, (bank._order(entry), entry.id))
        return bank

    def expect(self, texts: Iterable[str]) -> None:
        """Say which texts will be written or read for soon, so that they are compared in one go."""
        self._space.expect(list(texts))


def _named(name: str | None, what: str, kind: Any, wanted: str) -> Any:
    """The user's function of that name, which must return something of a kind; None if there is none."""
    if name is None:
        return None
    return partial(answered, kind, wanted, f"memory bank: {what} {name!r}", imported(name, what))
