"""What a retriever is, and the cache in front of one."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock
from typing import Any, Protocol, runtime_checkable

from msgspec.structs import replace

from mempo_env.errors import RetrieverError
from mempo_env.types import Hit, storable


@runtime_checkable
class Retriever(Protocol):
    """Anything that ranks passages for queries.

    `search` returns, for each query, at most `k` hits ordered by (-score, row); fewer when fewer passages
    share a term with the query, none for a query without a known term. The same query gives the same hits for
    every batch, process and rebuild, and the hits for k are the first k of those for k + 1. It raises
    `RetrieverError` after bounded time if it cannot answer, and is safe to call from several threads.
    """

    @property
    def fingerprint(self) -> str:
        """Names what decides the ranking: corpus, kind of index and its parameters."""
        ...

    def search(self, queries: Sequence[str], k: int) -> list[tuple[Hit, ...]]:
        """Rank passages for each query."""
        ...


class CachedRetriever:
    """A least-recently-used cache of rankings; each distinct missing query is asked once, all in one call.

    Args:
        retriever: The retriever behind it.
        size: Rankings kept, at least 1.
    """

    def __init__(self, retriever: Retriever, size: int = 16_384) -> None:
        if size < 1:
            raise ValueError(f"wanted a cache of at least 1 ranking, got {size}")
        self.retriever = retriever
        self.size = size
        self._rankings: OrderedDict[tuple[str, int], tuple[Hit, ...]] = OrderedDict()
        self._lock = Lock()

    @property
    def fingerprint(self) -> str:
        """That of the retriever behind it: a cache changes no ranking."""
        return self.retriever.fingerprint

    def search(self, queries: Sequence[str], k: int) -> list[tuple[Hit, ...]]:
        """Rank passages for each query, from the cache where it can."""
        with self._lock:
            found = {query: hits for query in queries if (hits := self._known(query, k)) is not None}
        missing = [query for query in dict.fromkeys(queries) if query not in found]
        if missing:
            rankings = self.retriever.search(missing, k)
            if len(rankings) != len(missing):
                raise RetrieverError(
                    f"wanted one ranking for each of {len(missing)} queries, got {len(rankings)} from "
                    f"{type(self.retriever).__name__}; mend its search()"
                )
            found.update(zip(missing, rankings, strict=True))
            with self._lock:
                self._keep(missing, k, rankings)
        return [found[query] for query in queries]

    def _known(self, query: str, k: int) -> tuple[Hit, ...] | None:
        hits = self._rankings.get((query, k))
        if hits is not None:
            self._rankings.move_to_end((query, k))
        return hits

    def _keep(self, queries: Sequence[str], k: int, rankings: Sequence[tuple[Hit, ...]]) -> None:
        for query, hits in zip(queries, rankings, strict=True):
            self._rankings[query, k] = hits
        while len(self._rankings) > self.size:
            self._rankings.popitem(last=False)

    def __copy__(self) -> CachedRetriever:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> CachedRetriever:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return CachedRetriever, (self.retriever, self.size)


def ask(retriever: Retriever, queries: Sequence[str], k: int) -> Sequence[Sequence[Hit]] | Exception:
    """The hits of each query, or the fault of a retriever that could not answer: data, not a crash."""
    try:
        rankings = retriever.search(queries, k)
    except (RetrieverError, OSError) as fault:
        return fault
    try:
        found = [tuple(map(_sound, ranking)) for ranking in rankings]
    except (TypeError, AttributeError, ValueError) as fault:
        return RetrieverError(f"wanted a sequence of Hits for each query, got something else: {fault}")
    if len(found) != len(queries):
        return RetrieverError(f"wanted a ranking for each of {len(queries)} queries, got {len(found)}")
    return found


def _sound(hit: Hit) -> Hit:
    """The hit, with text that can be stored; a ValueError if it is none, or its score no number."""
    if not isinstance(hit, Hit) or not math.isfinite(hit.score):
        raise ValueError(f"{hit!r:.80}")
    if hit.title.isascii() and hit.text.isascii():
        return hit
    return replace(hit, title=storable(hit.title), text=storable(hit.text))
