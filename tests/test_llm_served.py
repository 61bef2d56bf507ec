"""A server that gets a policy's weights: what of its answers is counted, believed and refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llm_policy_help import alone, policy
from mempo_agents.models.base import ModelError, Prompt
from mempo_env.errors import ConfigError, RolloutError
from mempo_env.types import Call
from mempo_trainers.llm.engines import Served

PAIRS = [((3, 4, 5), (6, 7)), ((8,), (9,)), ((3, 4), (5, 6, 7, 8))]
SHORTEST = 1
LATE = ModelError("too late")


class Server:
    """Scores as the policy does, changed by `told`; counts what it is given."""

    name = fingerprint = "server"

    def __init__(self, learner: Any, told: Callable[[int, tuple[float, ...]], Any]) -> None:
        self.learner, self.told, self.given = learner, told, 0

    def generate(self, prompts: Sequence[Prompt]) -> list[Call | ModelError]:
        return []

    def score(self, asked: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[Any]:
        right = [alone(self.learner.loaded.network, *pair)[0].tolist() for pair in asked]
        return [self.told(i, tuple(one)) for i, one in enumerate(right)]

    def update_weights(self, folder: Path) -> None:
        self.given += 1


def served(
    folder: Path, told: Callable[[int, tuple[float, ...]], Any] = lambda i, one: one, **rest: Any
) -> Any:
    learner = policy()
    return Served(Server(learner, told), learner, folder / "weights", **rest)


def failing(*which: int) -> Callable[[int, tuple[float, ...]], Any]:
    return lambda i, one: LATE if i in which else one


def shifted(by: float, *which: int) -> Callable[[int, tuple[float, ...]], Any]:
    return lambda i, one: tuple(x - by for x in one) if i in which else one


# --- What fails --------------------------------------------------------------------------------------------


def test_scores_that_failed_are_counted_and_why_is_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = served(tmp_path, failing(0))
    assert made.score(PAIRS)[0] is LATE
    made.score(PAIRS[:2])
    assert made.scored()["score_failed"] == 2 / 5  # one of three, and one of two
    assert capsys.readouterr().err.splitlines() == [
        "scores of memories: 1 of 3 failed, the first one by: too late; score_failed counts them"
    ]
    assert all(math.isnan(value) for value in made.scored().values())  # nothing was asked since
    made.server.told = failing()
    made.score(PAIRS)
    assert made.scored()["score_failed"] == 0


def test_a_step_whose_scores_all_failed_is_none(tmp_path: Path) -> None:
    """Its credit would be the outcome's alone, and nobody would know."""
    with pytest.raises(
        RolloutError, match=r"wanted scores of memories, got none: 3 of 3 failed.*: too late;"
    ):
        served(tmp_path, failing(0, 1, 2)).score(PAIRS)


@pytest.mark.parametrize("at_once", [True, False])
def test_weights_are_sent_again_only_where_the_server_was_gone(at_once: bool, tmp_path: Path) -> None:
    made = served(tmp_path, failing(0), wait=lambda: at_once)
    for _ in range(3):
        made.score(PAIRS)
    made()
    assert made.server.given == (1 if at_once else 4)


# --- What is held against the policy -----------------------------------------------------------------------


def test_the_shortest_text_of_a_call_is_held_against_the_policy(tmp_path: Path) -> None:
    made = served(tmp_path, shifted(9.0, 0, 2))
    made.score(PAIRS)
    assert made.scored()["score_gap"] < 1e-5
    made.server.told = shifted(0.01, SHORTEST)
    made.score(PAIRS)
    made.server.told = failing()
    made.score(PAIRS)
    assert made.scored()["score_gap"] == pytest.approx(0.01, abs=1e-5)


@pytest.mark.parametrize(
    ("gap", "by", "refused"), [(0.05, 0.06, True), (0.2, 0.06, False), (1e-4, 2e-4, True)]
)
def test_scores_of_another_network_are_refused(gap: float, by: float, refused: bool, tmp_path: Path) -> None:
    made = served(tmp_path, shifted(by, SHORTEST), gap=gap)
    if not refused:
        made.score(PAIRS)
        return
    wanted = rf"log-probs of the server that scores: wanted the trainer's own within {gap:g} nats"
    with pytest.raises(ConfigError, match=wanted):
        made.score(PAIRS)


def test_scores_that_failed_are_held_against_nothing(tmp_path: Path) -> None:
    made = served(tmp_path, lambda i, one: LATE if i == SHORTEST else shifted(0.02, 2)(i, one))
    made.score(PAIRS)
    assert made.scored()["score_gap"] < 1e-5  # of the next in length


def test_a_number_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="inf nats away"):
        served(tmp_path, lambda i, one: (np.nan,) * len(one)).score(PAIRS)
