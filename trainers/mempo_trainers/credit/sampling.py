"""Dynamic sampling: which questions teach something, and how others are generated in place of the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from mempo_env.errors import ConfigError
from mempo_trainers.credit.data import Flags, Trajectories

T = TypeVar("T")


def keep_groups(advantages_BK: NDArray[np.floating], trajectories: Trajectories) -> Flags:
    """1 = some token of the question has an advantage, (Q,) in the order of `np.unique(question_N)`.

    A group is dropped only if *every* token's final advantage is 0. Its outcomes may be tied: where nobody
    succeeds yet, the memory term is all that there is to learn from.

    Source: the dynamic sampling of DAPO: An Open-Source LLM Reinforcement Learning System at Scale (arXiv
    2503.14476), which drops by the outcome.
    """
    questions, which_N = np.unique(trajectories.question_N, return_inverse=True)
    alive_B = (advantages_BK != 0).any(axis=1)
    return np.bincount(which_N[trajectories.rollout_B[alive_B]], minlength=len(questions)) > 0


class Filled(Struct, frozen=True):
    """What a batch cost, counted in groups.

    Attributes:
        generated: Groups that were generated.
        kept: Those in the batch.
        dropped: Those that taught nothing.
        wasted: dropped / generated, in [0, 1].
    """

    generated: int
    kept: int
    dropped: int
    wasted: float


def fill(
    generate: Callable[[int], Sequence[T]],
    keep: Callable[[Sequence[T]], Sequence[bool] | Flags],
    wanted: int,
    extra: int,
) -> tuple[tuple[T, ...], Filled]:
    """Generate groups until a batch is full of such as teach something, or the budget is spent.

    Only what is missing is generated each time, so no good group is thrown away; the batch is short, or even
    empty, where the budget did not suffice.

    Args:
        generate: Makes that many groups (rollouts of one question each), new ones at each call.
        keep: Which of some groups to keep, see `keep_groups`.
        wanted: Groups of a full batch, at least 1.
        extra: Groups that may be generated beyond that, at least 0.
    """
    if wanted < 1 or extra < 0:
        raise ConfigError(
            f"wanted a batch of at least 1 and at least 0 extra groups, got {wanted} and {extra}"
        )
    batch: list[T] = []
    generated = 0
    while len(batch) < wanted and generated < wanted + extra:
        count = min(wanted - len(batch), wanted + extra - generated)
        groups = generate(count)
        if len(groups) != count:
            raise ConfigError(f"generate: wanted {count} groups, got {len(groups)}")
        generated += count
        batch += [group for group, kept in zip(groups, keep(groups), strict=True) if kept]
    dropped = generated - len(batch)
    return tuple(batch), Filled(generated, len(batch), dropped, dropped / generated)
