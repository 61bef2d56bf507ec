"""Trees of texts and where they are cut: counted by hand, and by trying everything."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mempo_trainers.scoring.tree import Price, cut, grow, in_order, shared
from scoring_help import ids, texts

Text = NDArray[np.int64]


def ordered(made: list[Text]) -> list[Text]:
    return [made[i] for i in in_order(made)]


def runs(made: list[Text], price: Price, most: int = 10**9) -> list[tuple[int, int]]:
    lengths = np.array([len(text) for text in made])
    return [(run.start, run.stop) for run in cut(lengths, shared(made), price, most)]


# --- The tree ----------------------------------------------------------------------------------------------


def test_a_tree_written_down_by_hand() -> None:
    """1-2-3, and 1-2-4-5, and 1-6, and 1-2 which begins the first two."""
    made = ordered([ids(1, 6), ids(1, 2, 4, 5), ids(1, 2, 3), ids(1, 2)])
    assert [text.tolist() for text in made] == [[1, 2], [1, 2, 3], [1, 2, 4, 5], [1, 6]]
    assert shared(made).tolist() == [0, 2, 2, 1]
    tree, paths = grow(made)
    assert tree.tokens_N.tolist() == [1, 2, 3, 4, 5, 6]
    assert tree.depth_N.tolist() == [0, 1, 2, 2, 3, 1]
    assert tree.end_N.tolist() == [6, 5, 3, 5, 5, 6]
    assert [path.tolist() for path in paths] == [[0, 1], [0, 1, 2], [0, 1, 3, 4], [0, 5]]


def test_ids_beyond_a_byte_and_beyond_65535_are_ordered_as_numbers() -> None:
    made = ordered([ids(151_643), ids(256), ids(255, 9), ids(65_536), ids(255)])
    assert [text.tolist() for text in made] == [[255], [255, 9], [256], [65_536], [151_643]]


def test_no_texts_are_no_trees() -> None:
    assert shared([]).tolist() == []
    assert cut(np.zeros(0, np.int64), np.zeros(0, np.int64), Price(1, 1), 9) == []


@given(texts())
def test_a_node_for_each_different_beginning(made: list[Text]) -> None:
    tree, paths = grow(ordered(made))
    beginnings = {tuple(text[:n]) for text in made for n in range(1, len(text) + 1)}
    assert len(tree.tokens_N) == len(beginnings)
    for text, path in zip(ordered(made), paths, strict=True):
        assert tree.tokens_N[path].tolist() == text.tolist()
        assert tree.depth_N[path].tolist() == list(range(len(text)))


@given(texts())
def test_a_node_sees_its_own_beginning_and_nothing_else(made: list[Text]) -> None:
    tree, paths = grow(ordered(made))
    sees = {(q, k) for q in range(len(tree.end_N)) for k in range(q + 1) if q < tree.end_N[k]}
    above = {(q, k) for path in paths for i, q in enumerate(path.tolist()) for k in path[: i + 1].tolist()}
    assert sees == above


# --- Cutting -----------------------------------------------------------------------------------------------


def test_a_plan_counted_by_hand() -> None:
    """Two rollouts after a prompt of 4: histories of 10 and 16 tokens each, which share 10.

    One tree a rollout: 16 nodes, 16 x 16 pairs; one for both: 4 + 12 + 12 = 28 nodes, 784 pairs. Alone:
    10 and 16 tokens, 55 and 136 pairs.
    """
    lengths, alike = np.array([10, 16, 10, 16]), np.array([0, 10, 4, 10])
    costs = {
        "alone": 52 + 382,  # by a token and a pair at 1 each
        "a tree a rollout": 32 + 512,
        "one tree": 28 + 784,
    }
    assert min(costs, key=costs.__getitem__) == "alone"
    assert cut(lengths, alike, Price(1, 1), 100) == [range(i, i + 1) for i in range(4)]
    # tokens at 20: alone 1,040 + 382 = 1,422; a tree a rollout 640 + 512 = 1,152; one tree 560 + 784 = 1,344
    assert cut(lengths, alike, Price(20, 1), 100) == [range(0, 2), range(2, 4)]
    # tokens at 100: 5,582; 3,712; 3,584
    assert cut(lengths, alike, Price(100, 1), 100) == [range(0, 4)]
    # the same with room for 27 nodes
    assert cut(lengths, alike, Price(100, 1), 27) == [range(0, 2), range(2, 4)]
    # with room for none but texts by themselves
    assert cut(lengths, alike, Price(100, 1), 15) == [range(i, i + 1) for i in range(4)]
    # what a mask hides is free: one tree has 136 + 136 - 10 pairs, a tree a rollout 136 + 136
    assert cut(lengths, alike, Price(1, 1, sparse=True), 100) == [range(0, 4)]


def cost(made: list[Text], parts: list[tuple[int, int]], price: Price) -> float:
    """By growing the trees, and counting."""
    total = 0.0
    for start, stop in parts:
        tree, _ = grow(made[start:stop])
        nodes = len(tree.tokens_N)
        seen = int((tree.depth_N + 1).sum())
        total += nodes * price.token + price.pair * (seen if price.sparse or stop - start == 1 else nodes**2)
    return total


def partitions(count: int) -> list[list[tuple[int, int]]]:
    found = []
    for cuts in range(2 ** (count - 1)):
        at = [0, *(i + 1 for i in range(count - 1) if cuts >> i & 1), count]
        found.append(list(pairwise(at)))
    return found


@settings(max_examples=60)
@given(texts(), st.integers(0, 30), st.booleans(), st.integers(3, 40))
def test_no_other_cut_is_cheaper(made: list[Text], token: int, sparse: bool, most: int) -> None:
    made, price = ordered(made)[:7], Price(token, 1.0, sparse)
    found = runs(made, price, most)
    allowed = [
        parts
        for parts in partitions(len(made))
        if all(b - a == 1 or len(grow(made[a:b])[0].tokens_N) <= most for a, b in parts)
    ]
    assert found in allowed
    assert cost(made, found, price) == pytest.approx(min(cost(made, parts, price) for parts in allowed))


def test_equal_texts_are_read_once() -> None:
    made = [ids(*range(30))] * 50
    assert runs(made, Price(100, 1)) == [(0, 50)]
    assert len(grow(made)[0].tokens_N) == 30
