"""How well the default index finds the supporting titles of questions, beside an independent BM25.

    mempo data prepare hotpotqa FILE --corpus MORE_PASSAGES --out DIR
    python -m mempo_benchmarks.retrieval_quality DIR

Both engines get the same terms, k1 and b. They differ in passage lengths (exact or rounded to one byte) and
in floating-point precision, so the figures must agree within 0.02.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import version
from math import log2
from pathlib import Path

from msgspec import Struct

from mempo_env.errors import DataError
from mempo_env.questions.set import QuestionSet
from mempo_env.retrieval import RETRIEVERS, Retriever, open_retriever
from mempo_env.retrieval.corpus import CORPUS_FILE, Corpus
from mempo_env.types import Question


def recall_at_k(titles: Sequence[str], gold: frozenset[str], k: int) -> float:
    """Share of the gold titles among the first k: |gold ∩ titles[:k]| / |gold|, in [0, 1].

    Args:
        titles: Titles in the order in which they were found.
        gold: At least one.
        k: At least 1.
    """
    return len(gold.intersection(titles[:k])) / len(gold)


def ndcg_at_k(titles: Sequence[str], gold: frozenset[str], k: int) -> float:
    """Normalised discounted cumulative gain with gains of 1 for gold titles, in [0, 1].

    DCG = sum over ranks r = 1..k of gain_r / log2(r + 1), divided by that of the best order (Järvelin and
    Kekäläinen 2002, with the logarithm of trec_eval's ndcg_cut). A title that comes again gains nothing.

    Args:
        titles: Titles in the order in which they were found.
        gold: At least one.
        k: At least 1.
    """
    firsts = {title: rank for rank, title in reversed(list(enumerate(titles[:k], 1))) if title in gold}
    best = sum(1 / log2(rank + 1) for rank in range(1, min(k, len(gold)) + 1))
    return sum(1 / log2(rank + 1) for rank in firsts.values()) / best


class Quality(Struct, frozen=True):
    """Means over the questions that have evidence."""

    questions: int
    recall: float
    ndcg: float


def quality(retriever: Retriever, questions: Sequence[Question], k: int) -> Quality:
    """Search with the text of each question that has evidence; DataError if none has."""
    judged = [question for question in questions if question.evidence]
    if not judged:
        raise DataError("wanted questions with evidence, got none: retrieval cannot be judged without")
    gold = [frozenset(evidence.title for evidence in question.evidence) for question in judged]
    rankings = retriever.search([question.text for question in judged], k)
    found = [[hit.title for hit in hits] for hits in rankings]
    n = len(judged)
    return Quality(
        questions=n,
        recall=sum(recall_at_k(titles, wanted, k) for titles, wanted in zip(found, gold, strict=True)) / n,
        ndcg=sum(ndcg_at_k(titles, wanted, k) for titles, wanted in zip(found, gold, strict=True)) / n,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Print Recall@k and nDCG@k of every engine over a prepared folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="DIR", help="prepared folder with questions and corpus")
    parser.add_argument("--k", type=int, default=10, help="hits a question")
    options = parser.parse_args(argv)
    questions = QuestionSet.load(options.folder)
    corpus = Corpus.open(options.folder / CORPUS_FILE)
    made = ", ".join(f"{name} {version(name)}" for name in ("mempo", "tantivy", "rank-bm25"))
    sys.stdout.write(f"{len(corpus):,} passages, k = {options.k}; {made}\n")
    for name in RETRIEVERS:
        got = quality(open_retriever(name, corpus, options.folder), questions, options.k)
        sys.stdout.write(
            f"{name:10s} Recall@{options.k} {got.recall:.4f}  nDCG@{options.k} {got.ndcg:.4f}  "
            f"({got.questions} questions)\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
