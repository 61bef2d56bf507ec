"""Texts laid together where they begin alike, and how to cut them into trees: counting, without a network."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from msgspec import Struct

from mempo_trainers.credit.data import Ints
from mempo_trainers.tokens import Ids


class Tree(Struct, frozen=True, eq=False):
    """The N different beginnings of some texts, each text's tokens one below the other, depth first.

    All that stands below a node follows it without a gap. So node q has k above it, or is k, exactly if
    k <= q < end_N[k].

    Attributes:
        tokens_N: Token ids.
        depth_N: Tokens above each: its position in every text that it belongs to.
        end_N: Where the nodes below each end, itself counted.
    """

    tokens_N: Ids
    depth_N: Ints
    end_N: Ints


class Price(Struct, frozen=True):
    """What a pass of a network costs, in any unit.

    Attributes:
        token: Of a token.
        pair: Of a token that looks at a token.
        sparse: Whether pairs that a tree's mask hides cost nothing; a dense mask pays for all N x N.
    """

    token: float
    pair: float
    sparse: bool = False


def in_order(texts: Sequence[Ids]) -> list[int]:
    """Places of the texts by their ids, so that those that begin alike stand side by side."""
    return sorted(range(len(texts)), key=lambda i: texts[i].astype(">i8").tobytes())


def shared(texts: Sequence[Ids]) -> Ints:
    """How many tokens each text begins with as the one before it does; 0 for the first."""
    alike = [_alike(one, two) for one, two in pairwise(texts)]
    return np.array([0, *alike][: len(texts)], np.int64)


def _alike(one: Ids, two: Ids) -> int:
    length = min(len(one), len(two))
    differ = one[:length] != two[:length]
    return int(differ.argmax()) if differ.any() else length


def grow(texts: Sequence[Ids]) -> tuple[Tree, list[Ints]]:
    """The tree of texts that are in order, and the node of each token of each text.

    Args:
        texts: As `in_order` puts them.
    """
    alike_S = shared(texts)
    new_S = np.array([len(text) for text in texts]) - alike_S
    end_N, path, paths = np.zeros(new_S.sum(), np.int64), np.zeros(0, np.int64), []
    start = 0
    for alike, new in zip(alike_S, new_S, strict=True):
        end_N[path[alike:]] = start
        path = np.concatenate([path[:alike], np.arange(start, start + new)])
        paths.append(path)
        start += new
    end_N[path] = start
    fresh = list(zip(texts, alike_S, strict=True))
    tree = Tree(
        tokens_N=np.concatenate([text[alike:] for text, alike in fresh]),
        depth_N=np.concatenate([np.arange(alike, len(text)) for text, alike in fresh]),
        end_N=end_N,
    )
    return tree, paths


def cut(lengths_S: Ints, shared_S: Ints, price: Price, most_nodes: int) -> list[range]:
    """The cheapest way to cut texts that are in order into trees, each of texts that stand side by side.

    A tree of one text is that text, whose causal mask costs half of its pairs, and which can be read in a
    batch with others; if that is cheapest for all, nothing is shared. Every choice between that and one tree
    of all is weighed: for each text, the cheapest last tree that ends with it.

    Args:
        lengths_S: Tokens of each text, at least one.
        shared_S: With how many of them it begins as the text before it does.
        price: Of a pass.
        most_nodes: Nodes of a tree of several texts at most.

    Returns:
        Which texts are in each tree.
    """
    new_S = lengths_S - shared_S
    seen_S = _pairs(lengths_S) - _pairs(shared_S)
    nodes_S1, pairs_S1 = (np.concatenate([[0], np.cumsum(each)]) for each in (new_S, seen_S))
    best_S1, last_S = np.zeros(len(lengths_S) + 1), np.zeros(len(lengths_S), np.int64)
    for end in range(1, len(lengths_S) + 1):
        first = np.arange(end)  # of the tree that ends here; its own beginning belongs to it, too
        nodes = nodes_S1[end] - nodes_S1[first] + shared_S[:end]
        pairs = pairs_S1[end] - pairs_S1[first] + _pairs(shared_S[:end])
        if not price.sparse:
            pairs = np.where(first == end - 1, pairs, nodes**2)
        cost = best_S1[:end] + nodes * price.token + pairs * price.pair
        cost[(nodes > most_nodes) & (first < end - 1)] = np.inf
        last_S[end - 1] = cost.argmin()
        best_S1[end] = cost.min()
    runs, end = [], len(lengths_S)
    while end:
        runs.append(range(int(last_S[end - 1]), end))
        end = runs[-1].start
    return runs[::-1]


def _pairs(lengths: Ints) -> Ints:
    """Of a causal mask over so many tokens."""
    return lengths * (lengths + 1) // 2
