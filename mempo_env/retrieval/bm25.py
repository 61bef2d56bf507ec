"""The default retriever: BM25 by tantivy, an index on disk that many processes share.

tantivy keeps only rows; titles and texts come from the corpus. Its parameters are fixed, k1 = 1.2 and b =
0.75; its inverse document frequency is ln(1 + (N - n + 0.5) / (n + 0.5)), and it rounds passage lengths to
one byte.
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
from tantivy import Document, Index, Occur, Query, Schema, SchemaBuilder

from mempo_env.errors import IndexFault, MempoError, RetrieverError
from mempo_env.files import BAD_JSON, atomic_file, digest
from mempo_env.progress import progress
from mempo_env.retrieval import analysis
from mempo_env.retrieval.corpus import Corpus
from mempo_env.retrieval.manifest import MANIFEST_FILE, Recipe, check_manifest, write_manifest
from mempo_env.types import Hit

K1, B = 1.2, 0.75
"""Parameters of BM25, as tantivy has them."""

NOISE = 2e-6
"""Scores that differ by less than this share count as equal.

tantivy adds the scores of the terms in 32 bits and in an order that depends on where a passage lies, so equal
passages may differ in the last digits. This is some times the rounding error of such a sum, and far below any
difference that means something."""

_SLACK = 5  # hits fetched beyond k, among which ties are looked for
_PARTS = 7  # commits of a large index; from eight on tantivy would merge them, at times of its own choosing
_MIN_PART = 200_000  # passages of a commit
_HEAP = 2_000_000_000  # bytes the writer may use before it writes to disk unasked
_MIN_HEAP = 50_000_000


def _schema() -> Schema:
    builder = SchemaBuilder()
    builder.add_text_field("body", tokenizer_name="mempo", index_option="freq")
    builder.add_unsigned_field("row", fast=True)
    return builder.build()


def _recipe(corpus: Corpus) -> Recipe:
    return Recipe(
        "bm25-1", f"tantivy {version('tantivy')}", analysis.VERSION, corpus.fingerprint, len(corpus)
    )


def _remedy(folder: Path) -> str:
    return f"build it with `mempo index build {folder.parent}`"


@contextmanager
def _explained(kind: type[MempoError], what: str) -> Iterator[None]:
    """Turn what tantivy raises into an error of ours; its panics have a type that can't be imported."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, ValueError) or type(error).__name__ == "PanicException":
            raise kind(f"{what}: {error}") from None
        raise


# --- Building ----------------------------------------------------------------------------------------------


def build_index(corpus: Corpus, folder: Path) -> bool:
    """Build the index of a corpus in a folder, unless it is there; returns whether there was something to do.

    It may be killed at any time: the next call goes on after the last finished part, and as the size of the
    corpus alone decides where parts begin, the index ranks like one that was built in one go. `manifest.json`
    is written last, and without it the index does not open. If two processes build the same index, the second
    waits for the first.

    Args:
        corpus: The passages.
        folder: Where the index goes; what is there and is no part of it is left alone.
    """
    folder.mkdir(parents=True, exist_ok=True)
    recipe = _recipe(corpus)
    with _locked(folder / "build.lock"):
        try:
            check_manifest(folder, recipe, "", verify=True)
            return False
        except IndexFault:
            (folder / MANIFEST_FILE).unlink(missing_ok=True)
        with _explained(IndexFault, f"{folder}: it could not be written"):
            _fill(_unfinished(folder, recipe), corpus)
        (folder / "recipe.json").unlink()  # first, so that what is finished is never taken for a part
        write_manifest(folder, recipe, [f"tantivy/{name}" for name in _names(folder / "tantivy")])
    return True


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the only lock on a path; the system lets go of it when a process dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _unfinished(folder: Path, recipe: Recipe) -> Index:
    """The index that a killed build of the same recipe left, or else a new one."""
    note, store = folder / "recipe.json", folder / "tantivy"
    try:
        if msgspec.json.decode(note.read_bytes(), type=Recipe) == recipe:
            with _explained(IndexFault, str(store)):
                return _register(Index.open(str(store)))
    except (OSError, IndexFault, *BAD_JSON):
        pass
    shutil.rmtree(store, ignore_errors=True)
    store.mkdir()
    with atomic_file(note) as out:
        out.write(msgspec.json.encode(recipe))
    return _register(Index(_schema(), path=str(store)))


def _register(index: Index) -> Index:
    index.register_tokenizer("mempo", analysis.ANALYZER)
    return index


def _fill(index: Index, corpus: Corpus) -> None:
    """Add the passages that an index lacks, in order, with one thread, in parts of a fixed size."""
    index.reload()
    done, total = index.searcher().num_docs, len(corpus)
    part = max(_MIN_PART, -(-total // _PARTS))
    writer = index.writer(max(_MIN_HEAP, min(_HEAP, total * 1_000)), num_threads=1)
    with progress("indexing", total, done, "passages") as advance:
        for start in range(done, total, part):
            end = min(start + part, total)
            for row in range(start, end):
                document = Document()
                document.add_text("body", analysis.body(corpus[row]))
                document.add_unsigned("row", row)
                writer.add_document(document)
                if row % 1_000 == 999:
                    advance(1_000)
            writer.commit()
            advance((end - start) % 1_000)
    writer.wait_merging_threads()
    index.reload()


def _names(store: Path) -> list[str]:
    return [path.name for path in store.iterdir() if not path.name.endswith(".lock")]


# --- Searching ---------------------------------------------------------------------------------------------


class BM25Index:
    """A retriever over an index of `build_index`, or one in memory.

    Hits are ordered by (-score, row); passages whose scores differ by less than `NOISE` share the highest of
    them. It copies to itself, pickles by folder and fingerprint, and may be used by several threads and by
    forked processes.
    """

    def __init__(self, index: Index, corpus: Corpus, folder: Path | None) -> None:
        """Take an index that holds every row of the corpus; use `open` or `of`."""
        index.config_reader("manual")
        index.reload()
        self.corpus = corpus
        self.folder = folder
        self._schema = index.schema
        self._searcher = index.searcher()
        self._fingerprint = digest(msgspec.json.encode(_recipe(corpus)))

    @classmethod
    def open(cls, folder: Path, corpus: Corpus, verify: bool = False) -> BM25Index:
        """Open an index that was built of a corpus.

        Args:
            folder: Where `build_index` put it.
            corpus: The corpus it was built of.
            verify: Compare the digests of all files first, which reads them all.

        Raises:
            IndexFault: if it is missing, unfinished, truncated, edited or of another corpus.
        """
        folder = Path(folder).resolve()
        check_manifest(folder, _recipe(corpus), _remedy(folder), verify)
        with _explained(IndexFault, f"{folder}: tantivy cannot open it; {_remedy(folder)}"):
            return cls(_register(Index.open(str(folder / "tantivy"))), corpus, folder)

    @classmethod
    def of(cls, corpus: Corpus) -> BM25Index:
        """Make an index in memory."""
        index = _register(Index(_schema()))
        _fill(index, corpus)
        return cls(index, corpus, None)

    @property
    def fingerprint(self) -> str:
        """Names corpus, engine and analysis."""
        return self._fingerprint

    def search(self, queries: Sequence[str], k: int) -> list[tuple[Hit, ...]]:
        """Rank passages for each query; any text will do, and no known term means no hits.

        Raises:
            RetrieverError: if the index or the corpus was changed by hand in a way that no check sees.
        """
        with _explained(RetrieverError, f"{self.folder or 'index in memory'}: it cannot be searched"):
            return [self._hits(query, k) for query in queries]

    def _hits(self, query: str, k: int) -> tuple[Hit, ...]:
        counts = analysis.query_terms(query)
        if not counts or k < 1:
            return ()
        clauses = [(Occur.Should, self._clause(term, count)) for term, count in counts.items()]
        parsed, enough = Query.boolean_query(clauses), min(k, len(self.corpus))
        limit = enough + _SLACK
        while True:
            found = self._searcher.search(parsed, limit, count=False).hits
            rows: list[Any] = self._searcher.fast_field_values("row", [address for _, address in found])
            ranked = settle_ties([(score, row) for (score, _), row in zip(found, rows, strict=True)])
            if len(found) < limit or found[-1][0] < ranked[enough - 1][0] * (1 - NOISE):
                return tuple([self._hit(row, score) for score, row in ranked[:enough]])
            limit *= 8

    def _clause(self, term: str, count: int) -> Query:
        query = Query.term_query(self._schema, "body", term, index_option="freq")
        return query if count == 1 else Query.boost_query(query, float(count))

    def _hit(self, row: int, score: float) -> Hit:
        passage = self.corpus[row]
        return Hit(passage.id, passage.title, passage.text, row, score)

    def __copy__(self) -> BM25Index:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> BM25Index:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return (
            (BM25Index.of, (self.corpus,))
            if self.folder is None
            else (BM25Index.open, (self.folder, self.corpus))
        )


def settle_ties(scored: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    """Order (score, row) pairs by (-score, row), where scores within `NOISE` of a higher one take its value.

    Args:
        scored: Pairs by falling score.
    """
    ranked, head = [], float("inf")
    for score, row in scored:
        if score < head * (1 - NOISE):
            head = score
        ranked.append((-head, row))
    return [(-score, row) for score, row in sorted(ranked)]
