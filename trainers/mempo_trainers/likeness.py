"""How alike the rollouts of a group are."""

from __future__ import annotations

import numpy as np

from mempo_trainers.credit.data import NOT_GENERATED, Floats, Ints
from mempo_trainers.policies.base import Rollouts


def edit_distance(rollouts: Rollouts) -> float:
    """Mean edit distance between two rollouts of a group, in [0, 1]; 0 if no group has two.

    A rollout is the sequence of what was written in its segments; two of them are as far apart as the
    insertions, deletions and replacements of segments that lead from one to the other (Levenshtein 1966),
    over the length of the longer. 0: all write the same, so no advantage can tell them apart.
    """
    data = rollouts.data
    written_BK = np.where(data.roles_BK != NOT_GENERATED, rollouts.responses.tokens_BK, -1)
    text_B = np.unique(written_BK, axis=0, return_inverse=True)[1].reshape(-1)
    size_N = np.bincount(data.rollout_B, minlength=len(data.question_N))
    texts_NT = np.full((len(size_N), int(size_N.max(initial=0))), -1)
    start_N = np.cumsum(size_N) - size_N
    order_B = np.argsort(data.rollout_B, kind="stable")
    texts_NT[data.rollout_B[order_B], np.arange(len(text_B)) - start_N[data.rollout_B[order_B]]] = text_B[
        order_B
    ]
    a_P, b_P = _pairs(np.where(data.masked_N, -1, data.question_N))
    if not len(a_P):
        return 0.0
    longer_P = np.maximum(np.maximum(size_N[a_P], size_N[b_P]), 1)
    return float((levenshtein(texts_NT[a_P], texts_NT[b_P], size_N[a_P], size_N[b_P]) / longer_P).mean())


def _pairs(group_N: Ints) -> tuple[Ints, Ints]:
    """All pairs i < j of one group; -1 is none."""
    first, second = np.nonzero(np.triu(group_N[:, None] == group_N, 1))
    kept = group_N[first] >= 0
    return first[kept], second[kept]


def levenshtein(a_PT: Ints, b_PT: Ints, length_a_P: Ints, length_b_P: Ints) -> Floats:
    """Edit distances (P,) of P pairs of sequences, each of its own length.

    D(i, j) = min(D(i-1, j) + 1, D(i, j-1) + 1, D(i-1, j-1) + 1[a_i != b_j]),  D(i, 0) = i, D(0, j) = j
    """
    pairs, steps = a_PT.shape
    distance = np.zeros((steps + 1, steps + 1, pairs))
    distance[:, 0], distance[0, :] = np.arange(steps + 1)[:, None], np.arange(steps + 1)[:, None]
    for i in range(1, steps + 1):
        for j in range(1, steps + 1):
            replaced = distance[i - 1, j - 1] + (a_PT[:, i - 1] != b_PT[:, j - 1])
            distance[i, j] = np.minimum(np.minimum(distance[i - 1, j], distance[i, j - 1]) + 1, replaced)
    return distance[length_a_P, length_b_P, np.arange(pairs)]
