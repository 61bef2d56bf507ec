"""The benchmarks of retrieval: their measures by hand, and that they run."""

from __future__ import annotations

import json
from math import log2
from pathlib import Path

import pytest

from mempo_benchmarks.retrieval_quality import ndcg_at_k, quality, recall_at_k
from mempo_benchmarks.speed import retrieval
from mempo_env.errors import DataError
from mempo_env.retrieval.bm25 import BM25Index
from mempo_env.retrieval.corpus import Corpus
from mempo_env.types import Evidence, Passage, Question

GOLD = frozenset({"A", "B"})


@pytest.mark.parametrize(
    ("titles", "k", "recall", "ndcg"),
    [
        (["A", "x", "B"], 3, 1.0, 1.5 / (1 + 1 / log2(3))),  # (1 / log2 2 + 1 / log2 4) / ideal = 0.91972
        (["A", "x", "B"], 2, 0.5, 1.0 / (1 + 1 / log2(3))),  # 0.61315
        (["B", "A"], 10, 1.0, 1.0),
        (["A", "A", "A"], 3, 0.5, 0.6131471927654584),  # a title that comes again gains nothing
        (["x", "y"], 2, 0.0, 0.0),
        ([], 10, 0.0, 0.0),
        (["B"], 1, 0.5, 1.0),  # with k = 1 no order is better
    ],
)
def test_measures_are_those_of_the_formula(titles: list[str], k: int, recall: float, ndcg: float) -> None:
    assert recall_at_k(titles, GOLD, k) == pytest.approx(recall)
    assert ndcg_at_k(titles, GOLD, k) == pytest.approx(ndcg)


def test_quality_is_a_mean_over_questions_with_evidence() -> None:
    index = BM25Index.of(Corpus.of([Passage("1", "Peart", "drummer"), Passage("2", "Rush", "band")]))
    found = Question(id="1", text="drummer", answers=("x",), evidence=(Evidence("1", "Peart"),))
    missed = Question(id="2", text="zebra", answers=("x",), evidence=(Evidence("2", "Rush"),))
    unjudged = Question(id="3", text="band", answers=("x",))
    got = quality(index, [found, missed, unjudged], 10)
    assert (got.questions, got.recall, got.ndcg) == (2, 0.5, 0.5)
    with pytest.raises(DataError, match="wanted questions with evidence"):
        quality(index, [unjudged], 10)


def test_invented_passages_are_the_same_for_a_seed_and_look_like_text() -> None:
    made = list(retrieval.passages(300, seed=3))
    assert made == list(retrieval.passages(300, seed=3)) != list(retrieval.passages(300, seed=4))
    words = [word for passage in made for word in passage.text.split()]
    function = sum(word in retrieval.FUNCTION_WORDS for word in words) / len(words)
    assert 0.37 < function < 0.45
    assert len(set(words)) > 3_000  # a long tail: at 0.58 x 24,000 content words of a Zipf law
    assert len({passage.id for passage in made}) == 300
    assert all(question.endswith("?") for question in retrieval.questions(made[:20]))


def test_growth_and_extrapolation_are_powers_of_the_size() -> None:
    rows = [{"passages": 10, "cost": 2.0, "none": None}, {"passages": 1_000, "cost": 20.0, "none": None}]
    assert retrieval.growth(rows[0], rows[1], "cost") == pytest.approx(0.5)
    assert retrieval.extrapolate(rows, "cost", 100_000) == pytest.approx(200.0)
    assert retrieval.growth(rows[0], rows[1], "none") is None


def test_the_benchmark_measures_every_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--sizes", "2000", "500", "--queries", "20", "--out", str(tmp_path)]
    assert retrieval.main(arguments) == 0
    held = json.loads((tmp_path / "retrieval.json").read_text())
    assert [row["passages"] for row in held["rows"]] == [500, 2_000]
    assert all(row["cpu_p99_ms"] >= row["cpu_p50_ms"] > 0 and row["index_mb"] > 0 for row in held["rows"])
    assert "tantivy" in held["versions"]
    assert "grows as n^" in capsys.readouterr().out
