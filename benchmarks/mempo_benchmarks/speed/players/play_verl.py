"""verl's GRPO, each segment a row as in its trainer, so that its statistics are those of segments."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def start() -> dict[str, float]:
    """Seconds of the import."""
    began = time.perf_counter()
    import verl.trainer.ppo.core_algos  # noqa: F401

    return {"import": time.perf_counter() - began}


def advantages(file: str, estimator: str) -> Callable[[], float]:
    """One batch; returns one of the advantages."""
    function, arguments = _prepared(file, estimator)
    return lambda: float(function(*arguments)[0][0, 0])


def first_tokens(file: str, estimator: str) -> list[float]:
    """The advantage of the first token of every segment."""
    function, arguments = _prepared(file, estimator)
    found: list[float] = function(*arguments)[0][:, 0].tolist()
    return found


def _prepared(file: str, estimator: str) -> tuple[Any, tuple[Any, ...]]:
    """The function, and its rewards, mask and groups: the outcome on the last token of each segment."""
    import numpy as np
    import torch
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    with np.load(file) as held:
        rollout_B = held["rollout_R"][held["round_B"]]
        mask = torch.from_numpy(held["roles_BK"] != 0).float()
        outcomes = torch.from_numpy(held["outcome_N"][rollout_B]).float()
        groups = held["question_N"][rollout_B]
    rewards = torch.zeros_like(mask)
    rewards[torch.arange(len(mask)), mask.sum(1).long() - 1] = outcomes
    return get_adv_estimator_fn(estimator), (rewards, mask, groups)
