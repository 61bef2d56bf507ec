"""Our estimators of credit, on arrays from a file."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mempo_trainers.credit import Trajectories, make


def advantages(file: str, estimator: str) -> Callable[[], float]:
    """One batch; returns one of the advantages."""
    with np.load(file) as held:
        trajectories = Trajectories(**held)
    estimate = make(estimator)

    def run() -> float:
        return float(estimate(trajectories).advantages_BK[0, 0])

    return run


def first_tokens(file: str, estimator: str) -> list[float]:
    """The advantage of the first token of every segment."""
    with np.load(file) as held:
        found: list[float] = make(estimator)(Trajectories(**held)).advantages_BK[:, 0].tolist()
    return found
