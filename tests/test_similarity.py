"""Vectors of texts, and the nearest of many, exactly and by faiss's graph."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mempo_env.errors import ConfigError
from mempo_env.memory import similarity
from mempo_env.memory.similarity import Space, embedder, hashed_ngrams, unit_rows


def cosine(a: str, b: str) -> float:
    x, y = unit_rows(hashed_ngrams([a, b]), 2)
    return float(x @ y)


def test_alike_is_near_and_other_things_are_not() -> None:
    fact = "Aldo Verne was born in Marrow Bay in 1901."
    assert cosine(fact, fact) == pytest.approx(1, abs=1e-6)
    assert cosine(fact, "ALDO VERNE was born in Marrow Bay in 1901") > 0.9
    assert cosine(fact, "Aldo Verne was born, in 1901, in Marrow Bay.") > 0.9
    assert cosine(fact, "The river Sool flows through the province of Tark.") < 0.5
    assert cosine("Curaçao", "curacao") == pytest.approx(1, abs=1e-6)


@given(st.text(min_size=1).filter(str.strip))
def test_every_text_has_a_vector(text: str) -> None:
    assert np.isfinite(unit_rows(hashed_ngrams([text]), 1)).all()


def test_vectors_are_the_same_in_every_process() -> None:
    """Typed from a first run: crc32 depends on no seed of Python's."""
    row = hashed_ngrams(["town"])[0]
    assert row.sum() == pytest.approx(10.0) and np.flatnonzero(row).tolist() == EXPECTED


EXPECTED = [38, 89, 97, 105, 115, 125, 161, 164, 201, 251]


@pytest.mark.parametrize("bad", [np.zeros((1, 3)), np.full((1, 3), np.nan), np.ones((2, 3)), np.ones(3)])
def test_an_embedder_that_failed_is_no_vector_of_zeros(bad: np.ndarray) -> None:
    with pytest.raises(ConfigError, match="embedder: wanted"):
        unit_rows(bad, 1)


def test_an_unknown_embedder_gets_a_guess() -> None:
    with pytest.raises(ConfigError, match="did you mean 'ngrams'"):
        embedder("ngram")


def random_vectors(texts: list[str]) -> np.ndarray:
    return np.stack([np.random.default_rng(int(text)).normal(size=24) for text in texts])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=60), st.integers(1, 5), st.booleans())
def test_nearest_equals_sorting_all(steps: list[tuple[bool, int]], n: int, ahead: bool) -> None:
    space, held = Space(random_vectors), {}
    if ahead:
        space.expect([str(i) for i in range(0, 31, 2)])
    for add, i in steps:
        if add and i not in held:
            space.add(i, space.vector(str(i)))
            held[i] = random_vectors([str(i)])[0]
        elif not add and i in held:
            space.remove(i)
            del held[i]
    for query in ("3", "4"):
        target = random_vectors([query])[0]
        cosines = {i: v @ target / np.linalg.norm(v) / np.linalg.norm(target) for i, v in held.items()}
        wanted = sorted(cosines, key=lambda i: (-cosines[i], i))[:n]
        found = space.nearest(query, n)
        assert [i for i, _ in found] == wanted
        assert [c for _, c in found] == pytest.approx([cosines[i] for i in wanted], abs=1e-5)
        assert [i for i, _ in space.copy().nearest(query, n)] == wanted


def test_the_graph_finds_what_sorting_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("faiss", reason="the approximate index is faiss's")
    exact, graph = Space(random_vectors), Space(random_vectors)
    for i in range(1500):
        exact.add(i, exact.vector(str(i)))
    monkeypatch.setattr(similarity, "EXACT_UP_TO", 500)
    for i in range(1500):
        graph.add(i, graph.vector(str(i)))
    assert graph._graph is not None and exact._graph is None
    for i in range(0, 1500, 3):
        exact.remove(i)
        graph.remove(i)
    hits = [
        len({i for i, _ in exact.nearest(str(q), 10)} & {i for i, _ in graph.nearest(str(q), 10)})
        for q in range(5000, 5100)
    ]
    assert np.mean(hits) / 10 > 0.95
    found = graph.nearest("7", 1500)
    assert len(found) == len(graph) == 1000 and found[0][0] == 7, "asked for all, it gives all that are left"
    assert not {i for i, _ in found} & set(range(0, 1500, 3)), "and none that was taken out"
