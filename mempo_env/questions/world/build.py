"""From a specification to a world: articles and questions as streams, and as a prepared folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from msgspec import Struct

from mempo_env.errors import ConfigError, DataError, IndexFault
from mempo_env.files import cache_folder, digest
from mempo_env.progress import progress
from mempo_env.questions.prepared import CORPUS, encode, open_corpus, prepared
from mempo_env.questions.set import QuestionSet
from mempo_env.questions.world.ask import Finder, ask
from mempo_env.questions.world.cluster import Cluster, cluster
from mempo_env.questions.world.facts import CLUSTERS, SIZE
from mempo_env.types import Hit, Passage, Question

TOP_K = 3
"""A name counts as findable if its article is among so many hits."""

Search = Callable[[Sequence[str], int], list[tuple[Hit, ...]]]
"""Ranks the passages of the whole world for each query."""


class WorldSpec(Struct, frozen=True, kw_only=True):
    """Which world: the same specification gives the same articles and questions, everywhere.

    A cluster of fifty articles is the same whatever the size of the world, so a larger one with the same seed
    goes on where the smaller ends.

    Attributes:
        articles: How many, rounded up to whole clusters; from 150 on there is something in each split.
        questions: How many, spread evenly over the clusters; fewer if a cluster has no more, which takes some
            thousands a cluster.
        seed: Other seeds have other names and facts; at least 0.

    Raises:
        ConfigError: if a number is out of range.
    """

    articles: int = 2_000
    questions: int = 3_000
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.articles <= CLUSTERS * SIZE:
            raise ConfigError(f"articles: wanted 1 to {CLUSTERS * SIZE:,}, got {self.articles}")
        if self.questions < 1:
            raise ConfigError(f"questions: wanted 1 or more, got {self.questions}")
        if self.seed < 0:
            raise ConfigError(f"seed: wanted 0 or more, got {self.seed}")

    @property
    def clusters(self) -> int:
        """How many clusters the world has."""
        return -(-self.articles // SIZE)


def articles(spec: WorldSpec) -> Iterator[Passage]:
    """The articles of a world, cluster by cluster; memory does not grow with it."""
    for number in range(spec.clusters):
        yield from cluster(spec.seed, number).passages.values()


def questions(spec: WorldSpec, search: Search) -> Iterator[Question]:
    """The questions of a world, cluster by cluster; every hop of theirs can be found by its name.

    Args:
        spec: Which world.
        search: Ranks the passages of the whole world. A question is only made if, for everything it names and
            for everything on the way to its answer, a search for the name has the article among three hits.
    """
    for number in range(spec.clusters):
        wanted = (number + 1) * spec.questions // spec.clusters - number * spec.questions // spec.clusters
        if wanted:
            part = cluster(spec.seed, number)
            yield from ask(part, wanted, _finder(part, search), spec.seed)


def _finder(part: Cluster, search: Search) -> Finder:
    """Searches for each name of a cluster when it is first relied upon."""
    ids = {
        name: part.passages[entity.name].id for entity in part.entities.values() for name in entity.answers
    }
    found: dict[str, bool] = {}

    def finds(names: Collection[str]) -> bool:
        new = list(dict.fromkeys(name for name in names if name not in found))
        for name, hits in zip(new, search(new, TOP_K) if new else [], strict=True):
            found[name] = any(hit.id == ids[name] for hit in hits)
        return all(found[name] for name in names)

    return finds


def prepare_world(spec: WorldSpec, out: Path) -> None:
    """Write a world as a prepared folder with its search index, whole or not at all; any size, by streaming.

    Raises:
        DataError: if the folder exists and holds anything else.
    """
    from mempo_env.retrieval import INDEX_FOLDER
    from mempo_env.retrieval.bm25 import BM25Index, build_index
    from mempo_env.retrieval.corpus import Corpus

    with prepared(out, "synthetic", "synthetic") as writer:
        with progress("articles", spec.clusters * SIZE) as advance:
            for passage in articles(spec):
                writer.passage(passage)
                advance(1)
        writer.flush()
        corpus = Corpus.open(writer.folder / CORPUS)
        index = writer.folder / INDEX_FOLDER
        build_index(corpus, index)
        search = BM25Index.open(index, corpus).search
        with progress("questions", spec.questions) as advance:
            for question in questions(spec, search):
                writer.question(question, "synthetic")
                advance(1)


def synthetic(spec: WorldSpec | None = None) -> QuestionSet:
    """The questions of a world; made once and kept in the cache folder, with articles and search index.

    Args:
        spec: Which world; by default the embedded one of 2,000 articles and 3,000 questions.

    Raises:
        ConfigError: if the cache folder cannot be written.
    """
    return _embedded(spec or WorldSpec())


@lru_cache(maxsize=4)
def _embedded(spec: WorldSpec) -> QuestionSet:
    folder = cache_folder() / f"synthetic-{digest(_code(), encode(spec))}"
    try:
        return _whole(folder)
    except (DataError, IndexFault):  # not made yet, or damaged
        try:
            shutil.rmtree(folder, ignore_errors=True)
            prepare_world(spec, folder)
        except OSError as error:
            raise ConfigError(
                f"{folder.parent}: wanted to keep the synthetic world here: {error}; set MEMPO_CACHE to "
                "a folder that can be written"
            ) from None
    return _whole(folder)


def _code() -> str:
    """Of the sources that make a world: one that other code has made is another one."""
    return digest(*(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))))


def _whole(folder: Path) -> QuestionSet:
    """The questions of a kept world, once its corpus and index have passed their checks as well."""
    from mempo_env.retrieval import INDEX_FOLDER
    from mempo_env.retrieval.bm25 import BM25Index

    questions = QuestionSet.load(folder)
    BM25Index.open(folder / INDEX_FOLDER, open_corpus(folder))
    return questions
