"""Corpora, search indexes and retrieval servers."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from mempo_env.errors import ConfigError, IndexFault, lookup
from mempo_env.retrieval.base import CachedRetriever, Retriever

if TYPE_CHECKING:
    from mempo_env.retrieval.corpus import Corpus

__all__ = ["RETRIEVERS", "CachedRetriever", "Retriever", "open_retriever"]

INDEX_FOLDER = "index"
"""Where a data folder keeps its index."""

SMALL = 20_000
"""A corpus of fewer passages is indexed on the spot, in under a second."""


def open_retriever(name: str, corpus: Corpus | None = None, folder: Path | None = None) -> Retriever:
    """Open a retriever by name.

    Args:
        name: "bm25" (tantivy), "rank_bm25" (the reference, for small corpora), or the address of a server
            that speaks the Search-R1 protocol, "http://..." or "https://..."; several, separated by commas,
            for servers that stand in for each other.
        corpus: The passages to rank; a server has its own.
        folder: The data folder, whose `index` holds the index; by default that of the corpus. A missing index
            of a small corpus is built there, or in memory where that is not possible.

    Raises:
        ConfigError: if there is no such retriever, or a corpus is needed and missing.
        IndexFault: if the index of a large corpus is missing or does not fit the corpus.
    """
    if is_address(name):
        from mempo_env.retrieval.http import HTTPRetriever

        return HTTPRetriever(name.split(","))
    opener = lookup(RETRIEVERS, name, "retriever")
    if corpus is None:
        raise ConfigError(
            f"the retriever {name!r} ranks the passages of a corpus, got none: "
            "prepare the data with `mempo data prepare ... --corpus FILE`, or give corpus= (--corpus)"
        )
    return opener(corpus, folder or (corpus.path.parent if corpus.path else None))


def is_address(name: str) -> bool:
    """Whether the name of a retriever is the address of a server."""
    return name.lower().startswith(("http://", "https://"))


def _bm25(corpus: Corpus, folder: Path | None) -> Retriever:
    from mempo_env.retrieval.bm25 import BM25Index, build_index

    if folder is None:
        return BM25Index.of(corpus)
    index = Path(folder) / INDEX_FOLDER
    try:
        return BM25Index.open(index, corpus)
    except IndexFault:
        if len(corpus) >= SMALL:
            raise
    if not os.access(folder, os.W_OK):
        return BM25Index.of(corpus)
    build_index(corpus, index)
    return BM25Index.open(index, corpus)


def _rank_bm25(corpus: Corpus, folder: Path | None) -> Retriever:
    from mempo_env.retrieval.reference import RankBM25

    return RankBM25(corpus)


RETRIEVERS: dict[str, Callable[[Corpus, Path | None], Retriever]] = {"bm25": _bm25, "rank_bm25": _rank_bm25}
"""Retrievers by name."""
