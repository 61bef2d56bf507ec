"""The cache in front of a retriever changes no ranking and asks nothing twice."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mempo_env.errors import RetrieverError
from mempo_env.retrieval import CachedRetriever, Retriever
from mempo_env.types import Hit


class Counting:
    """Hits that tell query and k; it remembers its calls."""

    fingerprint = "counting"

    def __init__(self) -> None:
        self.calls: list[tuple[list[str], int]] = []

    def search(self, queries: Sequence[str], k: int) -> list[tuple[Hit, ...]]:
        self.calls.append((list(queries), k))
        return [tuple(Hit(f"{query}-{i}", "", "", i, 1.0) for i in range(k)) for query in queries]


def test_each_distinct_query_is_asked_once_and_all_in_one_call() -> None:
    behind = Counting()
    cached = CachedRetriever(behind)
    found = cached.search(["a", "b", "a", "c"], 2)
    assert [hits[0].id for hits in found] == ["a-0", "b-0", "a-0", "c-0"]
    assert cached.search(["c", "d", "a"], 2) == Counting().search(["c", "d", "a"], 2)
    assert cached.search(["a", "b"], 2) == Counting().search(["a", "b"], 2)
    assert behind.calls == [(["a", "b", "c"], 2), (["d"], 2)]


def test_rankings_of_another_length_are_other_rankings() -> None:
    behind = Counting()
    cached = CachedRetriever(behind)
    assert [len(cached.search(["a"], k)[0]) for k in (3, 1, 5, 3)] == [3, 1, 5, 3]
    assert [k for _, k in behind.calls] == [3, 1, 5]


def test_what_was_used_least_recently_is_forgotten() -> None:
    behind = Counting()
    cached = CachedRetriever(behind, size=2)
    for query in ("a", "b", "a", "c", "a", "b"):
        cached.search([query], 1)
    assert [queries for queries, _ in behind.calls] == [["a"], ["b"], ["c"], ["b"]]


def test_a_batch_larger_than_the_cache_is_answered_whole() -> None:
    cached = CachedRetriever(Counting(), size=2)
    names = [str(i) for i in range(10)]
    assert cached.search(names, 1) == Counting().search(names, 1)
    with pytest.raises(ValueError, match="at least 1"):
        CachedRetriever(Counting(), size=0)


@given(st.lists(st.tuples(st.lists(st.sampled_from("abcdef"), max_size=5), st.integers(1, 3)), max_size=20))
def test_it_answers_as_the_retriever_itself(batches: list[tuple[list[str], int]]) -> None:
    cached = CachedRetriever(Counting(), size=3)
    for queries, k in batches:
        assert cached.search(queries, k) == Counting().search(queries, k)


def test_errors_are_not_kept() -> None:
    class Recovering(Counting):
        def search(self, queries: Sequence[str], k: int) -> list[tuple[Hit, ...]]:
            if not self.calls:
                self.calls.append(([], 0))
                raise RetrieverError("down")
            return super().search(queries, k)

    cached = CachedRetriever(Recovering())
    with pytest.raises(RetrieverError):
        cached.search(["a"], 1)
    assert cached.search(["a"], 1)[0][0].id == "a-0"


def test_a_retriever_that_answers_too_little_is_named() -> None:
    """A client that returns [] for a failed call makes the caller index into nothing."""

    class Silent(Counting):
        def search(self, queries: Sequence[str], k: int) -> list[tuple[Hit, ...]]:
            return []

    with pytest.raises(RetrieverError, match=r"one ranking for each of 2 queries, got 0 from Silent"):
        CachedRetriever(Silent()).search(["a", "b"], 1)


def test_threads_get_the_right_rankings() -> None:
    cached = CachedRetriever(Counting(), size=5)
    names = [str(i % 13) for i in range(2_000)]
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda name: cached.search([name], 1)[0][0].id, names))
    assert found == [f"{name}-0" for name in names]


def test_it_copies_to_itself_and_pickles_empty() -> None:
    cached = CachedRetriever(Counting(), size=7)
    cached.search(["a"] * 3, 1)
    assert copy.copy(cached) is cached and copy.deepcopy(cached) is cached
    assert isinstance(cached, Retriever) and cached.fingerprint == "counting"
    again = pickle.loads(pickle.dumps(cached))
    again.search(["a"], 1)
    assert again.size == 7 and len(again.retriever.calls) == len(cached.retriever.calls) + 1
