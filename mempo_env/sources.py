"""From the names that `gym.make` takes to question sets, corpora and retrievers, opened once a process."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from mempo_env.errors import ConfigError
from mempo_env.questions.prepared import open_corpus
from mempo_env.questions.set import QuestionSet
from mempo_env.retrieval import is_address, open_retriever
from mempo_env.retrieval.base import CachedRetriever, Retriever
from mempo_env.retrieval.corpus import Corpus


def resolve(dataset: Any, corpus: Any, retriever: Any) -> tuple[QuestionSet, Corpus | None, Retriever]:
    """Open what an environment needs.

    Args:
        dataset: "synthetic", the folder of a prepared data set, or a QuestionSet.
        corpus: A Corpus, a folder that holds corpus.jsonl, or None for the data set's own.
        retriever: A name or URL that `open_retriever` knows, or an object with `search`.
    """
    questions = _questions(dataset)
    passages, folder = _passages(corpus, questions)
    if not isinstance(retriever, str):
        if not callable(getattr(retriever, "search", None)):
            raise ConfigError(
                f"retriever: wanted a name, a URL or an object with search(), got {retriever!r}"
            )
        return questions, passages, retriever
    return questions, passages, _retriever(retriever, passages, folder)


def _questions(dataset: Any) -> QuestionSet:
    if isinstance(dataset, QuestionSet):
        return dataset
    if dataset == "synthetic":
        from mempo_env.questions.world import synthetic

        return synthetic()
    if isinstance(dataset, (str, os.PathLike)):
        folder = Path(dataset).resolve()
        manifest = folder / "manifest.json"
        if not manifest.is_file():
            raise ConfigError(
                f"dataset: wanted 'synthetic', a folder made by `mempo data prepare`, or a QuestionSet, got "
                f"{str(dataset)!r}, which holds no manifest.json"
            )
        return _load(folder, manifest.stat().st_mtime_ns)
    raise ConfigError(f"dataset: wanted 'synthetic', a folder or a QuestionSet, got {type(dataset).__name__}")


@lru_cache(maxsize=16)
def _load(folder: Path, changed_ns: int) -> QuestionSet:
    return QuestionSet.load(folder)


def _passages(corpus: Any, questions: QuestionSet) -> tuple[Corpus | None, Path | None]:
    if isinstance(corpus, Corpus):
        return corpus, None
    folder = questions.folder if corpus is None else Path(corpus).resolve()
    file = None if folder is None else folder / "corpus.jsonl"
    if file is None or not file.is_file():
        if corpus is not None:
            raise ConfigError(f"corpus: wanted a Corpus or a folder with corpus.jsonl, got {corpus!r}")
        return None, None
    return _open(file.parent, file.stat().st_mtime_ns), file.parent


@lru_cache(maxsize=16)
def _open(folder: Path, changed_ns: int) -> Corpus:
    return open_corpus(folder)


def _retriever(name: str, corpus: Corpus | None, folder: Path | None) -> Retriever:
    if corpus is None or folder is None or is_address(name):
        return CachedRetriever(open_retriever(name, corpus, folder))
    return _shared(name, corpus.fingerprint, folder)


@lru_cache(maxsize=16)
def _shared(name: str, fingerprint: str, folder: Path) -> Retriever:
    file = folder / "corpus.jsonl"
    return CachedRetriever(open_retriever(name, _open(folder, file.stat().st_mtime_ns), folder))
