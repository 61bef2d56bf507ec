"""Scores of views, each thing asked once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mempo_trainers.credit.data import Floats
from mempo_trainers.tokens import Ids, Ragged


def score_once(views: Ragged, means: Callable[[list[Ids], list[Ids]], Floats]) -> Floats:
    """The score (R, J) of each objective's answer in each `View` or None; NaN where there is none.

    Rollouts of a group say much alike, so equal pairs are asked once.

    Args:
        views: What is scored.
        means: Tells the mean log-probs (M,) of M answers, each after its context.
    """
    asked: dict[tuple[bytes, bytes], tuple[Ids, Ids]] = {}
    places: list[tuple[int, int, tuple[bytes, bytes]]] = []
    for r, view in enumerate(views):
        for j, (before, answer) in enumerate(() if view is None else view.answers):
            context = np.concatenate([view.context, before])
            key = context.tobytes(), answer.tobytes()
            asked.setdefault(key, (context, answer))
            places.append((r, j, key))
    scores_RJ = np.full((len(views), max((j + 1 for _, j, _ in places), default=1)), np.nan)
    if asked:
        contexts, answers = map(list, zip(*asked.values(), strict=True))
        known = dict(zip(asked, means(contexts, answers).tolist(), strict=True))
        for r, j, key in places:
            scores_RJ[r, j] = known[key]
    return scores_RJ
