"""How alike two texts are: vectors of texts, and the nearest among many."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mempo_env.errors import MemoryFault, MissingExtra, lookup
from mempo_env.imported import imported
from mempo_env.memory.base import called
from mempo_env.scoring import fold

Vectors: TypeAlias = NDArray[np.float32]
Embed: TypeAlias = Callable[[Sequence[str]], Any]
"""From N texts to an array (N, D), one row a text; rows are scaled to unit length by who uses them."""

NGRAM_DIM, NGRAM_SIZES = 256, (3, 4, 5)
_WORD = re.compile(r"\w+")

MORE_SLOTS = 1024

EXACT_UP_TO = 10_000
"""Entries up to which every one is compared; beyond, faiss's HNSW graph finds the nearest."""


@lru_cache(maxsize=65_536)
def _buckets(word: str) -> tuple[int, ...]:
    """Where the n-grams of a word, and the word itself, are counted."""
    padded = f" {word} "
    grams = [padded[i : i + n] for n in NGRAM_SIZES for i in range(len(padded) - n + 1)]
    return tuple(zlib.crc32(gram.encode("utf-8", "replace")) % NGRAM_DIM for gram in (*grams, padded))


def _words(text: str) -> list[str]:
    """Words in folded form; of a text without any, what else stands in it."""
    folded = fold(text).casefold()
    return _WORD.findall(folded) or folded.split() or [text]


def hashed_ngrams(texts: Sequence[str]) -> Vectors:
    """Hashed character n-grams of the words of each text: works offline, the same on every machine.

    Case and diacritics are folded; n-grams of 3, 4 and 5 characters do not cross words; counts enter by their
    square root, so that a word repeated does not outshout the rest. Sentences about different things have a
    similarity of 0.3 to 0.5 (they share function words), two orders of the same words about 1. It knows
    letters, not meaning: "born in 1901" and "born in 1902" are 0.94.

    Args:
        texts: N texts.

    Returns:
        An array (N, 256), not negative.
    """
    rows = [
        np.bincount([i for word in _words(text) for i in _buckets(word)], minlength=NGRAM_DIM)
        for text in texts
    ]
    return np.sqrt(np.array(rows, np.float32).reshape(len(texts), NGRAM_DIM))


def _sentence_transformers(name: str) -> Embed:
    """A model of sentence-transformers by its name or folder."""
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        raise MissingExtra("sentence-transformers", "dense") from None
    model = SentenceTransformer(name)
    return lambda texts: model.encode(list(texts), convert_to_numpy=True, show_progress_bar=False)


EMBEDDERS: dict[str, Embed] = {"ngrams": hashed_ngrams}


@lru_cache(maxsize=8)
def embedder(name: str) -> Embed:
    """The embedder of that name: "ngrams", "sentence-transformers/NAME", or "module:function" of your own."""
    if name.startswith("sentence-transformers/"):
        return _sentence_transformers(name.removeprefix("sentence-transformers/"))
    if ":" in name:
        return partial(called, f"embedder {name!r}", imported(name, "embedder"))
    return lookup(EMBEDDERS, name, "embedder")


def unit_rows(vectors: Any, n: int) -> Vectors:
    """Rows scaled to length 1; a MemoryFault if an embedder did not return n finite ones that are not 0."""
    try:
        rows = np.asarray(vectors, np.float32)
    except (TypeError, ValueError) as error:
        raise MemoryFault(f"embedder: wanted an array ({n}, D) of numbers for {n} texts: {error}") from None
    if rows.ndim != 2 or len(rows) != n:
        raise MemoryFault(f"embedder: wanted an array ({n}, D) for {n} texts, got shape {rows.shape}")
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    if not np.isfinite(lengths).all() or not lengths.all():
        raise MemoryFault("embedder: wanted finite vectors that are not 0, got one that says nothing")
    scaled: Vectors = rows / lengths
    return scaled


class Space:
    """Texts under small whole numbers, and which of them are nearest to another text (cosine).

    Up to `EXACT_UP_TO` texts all are compared; beyond, an approximate index (faiss's HNSW) takes over.
    """

    def __init__(self, embed: Embed) -> None:
        self.embed = embed
        self._vectors: Vectors = np.zeros((0, 0), np.float32)  # one row a slot
        self._ids = np.zeros(0, np.int64)  # of each slot; -1: free
        self._closed: Vectors = np.zeros(0, np.float32)  # 0, or minus infinity where a slot is free
        self._slots: dict[int, int] = {}
        self._free: list[int] = []
        self._coming: dict[str, int] = {}  # texts compared in advance -> row
        self._coming_vectors: Vectors = self._vectors
        self._compared: Vectors = self._vectors  # (rows of coming texts, slots)
        self._graph: _Graph | None = None

    def __len__(self) -> int:
        return len(self._slots)

    def copy(self) -> Space:
        """An independent space with the same texts."""
        twin = Space(self.embed)
        twin._vectors, twin._ids, twin._closed = self._vectors.copy(), self._ids.copy(), self._closed.copy()
        twin._slots, twin._free = dict(self._slots), list(self._free)
        if self._graph is not None:
            twin._graph = _Graph(twin._vectors, twin._slots)
        return twin

    def expect(self, texts: Sequence[str]) -> None:
        """Compare texts that will be asked for or added soon in one product: the same results, sooner."""
        distinct = list(dict.fromkeys(texts))
        self._coming = {text: i for i, text in enumerate(distinct)}
        self._coming_vectors = self._embedded(distinct) if distinct else self._vectors[:0]
        self._compared = self._vectors[:0]
        if distinct and len(self._vectors) and self._graph is None:
            self._compared = self._coming_vectors @ self._vectors.T

    def vector(self, text: str) -> Vectors:
        """The vector (D,) of a text, of length 1."""
        row = self._coming.get(text)
        rows = self._embedded([text]) if row is None else self._coming_vectors[row : row + 1]
        vector: Vectors = rows[0]
        return vector

    def _embedded(self, texts: Sequence[str]) -> Vectors:
        """The vectors (N, D) of some texts; a MemoryFault if D is not that of those that are there."""
        rows, wanted = unit_rows(self.embed(texts), len(texts)), self._vectors.shape[1]
        if wanted and rows.shape[1] != wanted:
            raise MemoryFault(
                f"embedder: wanted {wanted} numbers for a text, as for those before, got {rows.shape[1]}"
            )
        return rows

    def add(self, id: int, vector: Vectors) -> None:
        """Put the `vector` of a text in under a number that is not in use."""
        if not self._free:
            self._grow(len(vector))
        slot = self._free.pop()
        self._slots[id], self._ids[slot], self._closed[slot] = slot, id, 0.0
        self._vectors[slot] = vector
        if len(self._compared):
            self._compared[:, slot] = self._coming_vectors @ vector
        if self._graph is not None:
            self._graph.add(id, vector)
        elif len(self) > EXACT_UP_TO:
            self._graph = _Graph(self._vectors, self._slots)
            self._compared = self._vectors[:0]

    def remove(self, id: int) -> None:
        """Take a text out."""
        slot = self._slots.pop(id)
        self._ids[slot], self._closed[slot] = -1, -np.inf
        self._free.append(slot)
        if self._graph is not None and self._graph.remove(id):
            self._graph = _Graph(self._vectors, self._slots)

    def nearest(self, text: str, n: int) -> list[tuple[int, float]]:
        """The n nearest as (number, cosine), nearest first, ties by number; fewer if there are fewer."""
        n = min(n, len(self))
        if n == 0:
            return []
        if self._graph is not None:
            return self._graph.nearest(self.vector(text), n)
        row = self._coming.get(text)
        if row is None or not len(self._compared):
            cosines = self._vectors @ self.vector(text)
        else:
            cosines = self._compared[row]
        cosines = cosines + self._closed
        if n == 1:
            best = float(cosines.max())
            return [(int(self._ids[cosines == best].min()), best)]
        least = np.partition(cosines, -n)[-n]
        slots = np.flatnonzero(cosines >= least)
        found = [(int(self._ids[slot]), float(cosines[slot])) for slot in slots]
        return sorted(found, key=lambda pair: (-pair[1], pair[0]))[:n]

    def between(self, ids: Sequence[int]) -> Vectors:
        """Cosines (N, N) between N of the texts."""
        vectors = self._vectors[[self._slots[id] for id in ids]]
        product: Vectors = vectors @ vectors.T
        return product

    def _grow(self, dim: int) -> None:
        """Make more slots: twice as many, up to `MORE_SLOTS` at a time."""
        old = len(self._ids)
        new = old + max(16, min(old, MORE_SLOTS))
        vectors, compared = np.zeros((new, dim), np.float32), self._compared
        if old:
            vectors[:old] = self._vectors
        self._vectors = vectors
        self._ids = np.concatenate([self._ids, np.full(new - old, -1)])
        self._closed = np.concatenate([self._closed, np.full(new - old, -np.inf, np.float32)])
        self._free = list(range(new - 1, old - 1, -1))
        if self._coming and self._graph is None:
            self._compared = np.zeros((len(self._coming), new), np.float32)
            self._compared[:, : compared.shape[1]] = compared if len(compared) else 0.0


class _Graph:
    """faiss's HNSW over the vectors of a space; what was removed stays in it, unseen, for a while."""

    def __init__(self, vectors: Vectors, slots: dict[int, int]) -> None:
        faiss = _faiss()
        self._numbers = list(slots)  # number of each node, in the order in which they were added
        self._alive = set(slots)
        self._index = faiss.IndexHNSWFlat(vectors.shape[1], 16, faiss.METRIC_INNER_PRODUCT)
        self._index.hnsw.efConstruction = 80
        self._index.add(np.ascontiguousarray(vectors[list(slots.values())]))

    def add(self, id: int, vector: Vectors) -> None:
        self._numbers.append(id)
        self._alive.add(id)
        self._index.add(vector[None])

    def remove(self, id: int) -> bool:
        """Forget a number; whether so many are forgotten that the graph should be made anew."""
        self._alive.discard(id)
        return len(self._numbers) > 2 * len(self._alive)

    def nearest(self, vector: Vectors, n: int) -> list[tuple[int, float]]:
        wanted = min(2 * n + 16, len(self._numbers))
        while True:
            self._index.hnsw.efSearch = max(64, 2 * wanted)
            cosines, nodes = self._index.search(vector[None], wanted)
            found = {
                self._numbers[node]: float(c)
                for node, c in zip(nodes[0], cosines[0], strict=True)
                if node >= 0
            }
            pairs = [(id, c) for id, c in found.items() if id in self._alive]
            if len(pairs) >= n or wanted == len(self._numbers):
                return sorted(pairs, key=lambda pair: (-pair[1], pair[0]))[:n]
            wanted = min(4 * wanted, len(self._numbers))


def _faiss() -> Any:
    try:
        import faiss
    except ImportError:
        raise MissingExtra("faiss-cpu", "dense") from None
    return faiss


def check_capacity(capacity: int) -> None:
    """A MissingExtra now, not in the middle of an episode, if so many entries need faiss, which lacks."""
    if capacity > EXACT_UP_TO:
        _faiss()
