"""How alike rollouts are: edit distances against a slow twin."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mempo_trainers.credit import Trajectories
from mempo_trainers.likeness import edit_distance, levenshtein
from mempo_trainers.policies.base import Rollouts
from train_help import TASK, played, wild


def slow(a: list[int], b: list[int]) -> int:
    """By recursion over the first letters."""
    if not a or not b:
        return len(a) + len(b)
    if a[0] == b[0]:
        return slow(a[1:], b[1:])
    return 1 + min(slow(a[1:], b), slow(a, b[1:]), slow(a[1:], b[1:]))


def distance(a: list[int], b: list[int]) -> float:
    size = max(len(a), len(b), 1)
    rows = [np.array([row + [-1] * (size - len(row))]) for row in (a, b)]
    return float(levenshtein(*rows, np.array([len(a)]), np.array([len(b)]))[0])


@pytest.mark.parametrize(
    "a, b, wanted", [("kitten", "sitting", 3), ("saturday", "sunday", 3), ("", "abc", 3), ("abc", "abc", 0)]
)
def test_known_distances(a: str, b: str, wanted: int) -> None:
    """The two examples of Wagner and Fischer's algorithm that every textbook has."""
    assert distance([*map(ord, a)], [*map(ord, b)]) == wanted


@settings(deadline=None)
@given(st.lists(st.integers(0, 2), max_size=5), st.lists(st.integers(0, 2), max_size=5))
def test_distances_are_those_of_the_slow_twin(a: list[int], b: list[int]) -> None:
    assert distance(a, b) == slow(a, b)


def rolled(group: int) -> Rollouts:
    envs = TASK.envs(8)
    return played(wild(envs, size=0.1), envs, group=group)


def test_the_mean_is_over_pairs_of_one_group() -> None:
    rollouts = rolled(4)
    data, tokens = rollouts.data, rollouts.responses.tokens_BK
    written = [
        tuple((k, token) for k, token in enumerate(row.tolist()) if roles[k])
        for row, roles in zip(tokens, data.roles_BK, strict=True)
    ]
    names = {text: number for number, text in enumerate(dict.fromkeys(written))}
    texts = [[names[written[b]] for b in np.flatnonzero(data.rollout_B == i)] for i in range(8)]
    pairs = [(i, j) for start in (0, 4) for i in range(start, start + 4) for j in range(i + 1, start + 4)]
    wanted = np.mean([slow(texts[i], texts[j]) / max(len(texts[i]), len(texts[j])) for i, j in pairs])
    assert edit_distance(rollouts) == pytest.approx(wanted)
    assert 0 < wanted <= 1


def test_equal_rollouts_are_at_no_distance() -> None:
    rollouts = rolled(4)
    responses = rollouts.responses
    blank = msgspec.structs.replace(responses, tokens_BK=np.zeros_like(responses.tokens_BK))
    one = np.full_like(rollouts.data.roles_BK, 1)
    data = Trajectories(
        **{
            name: getattr(rollouts.data, name)
            for name in ("question_N", "outcome_N", "shaping_N", "masked_N")
        },
        roles_BK=one[: len(rollouts.data.rounds_N)],
        rollout_R=np.arange(8),
        number_R=np.ones(8, np.int64),
        round_B=np.arange(8),
    )
    blank = blank.take(np.arange(8))
    assert edit_distance(msgspec.structs.replace(rollouts, data=data, responses=blank)) == 0


def test_without_a_pair_there_is_no_distance() -> None:
    assert edit_distance(rolled(1)) == 0
    rollouts = rolled(2)
    masked = msgspec.structs.replace(rollouts.data, masked_N=np.arange(8) % 2 == 0)
    assert edit_distance(msgspec.structs.replace(rollouts, data=masked)) == 0
