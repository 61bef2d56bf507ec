"""The scorer behind a server: what it asks, and what it does with answers that did not come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from mempo_agents.models.base import ModelError, ModelTimeout
from mempo_env.errors import ConfigError
from mempo_trainers.scoring.base import Asked
from mempo_trainers.scoring.server import ServerScorer
from mempo_trainers.scoring.table import open_scorer
from scoring_help import ids

ASKED = [Asked(ids(1, 2), ids(3, 4)), Asked(ids(5), ids(6)), Asked(ids(7), ids(8, 9, 10))]


class Told:
    """A model that tells what it was given to tell."""

    def __init__(self, *told: Any) -> None:
        self.told, self.heard = told, []  # type: tuple[Any, ...], list[Any]

    def score(self, asked: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[Any]:
        self.heard += asked
        return list(self.told)


def test_plain_ids_are_asked_in_order_and_floats_come_back() -> None:
    model = Told((-1.0, -2.0), (-3.0,), (-4.0, -5.0, -6.0))
    scorer = open_scorer("server", model=model)
    assert (scorer.name, scorer.fallback) == ("server", "")
    told = scorer.logprobs(ASKED)
    assert [each.tolist() for each in told] == [[-1, -2], [-3], [-4, -5, -6]]
    assert model.heard == [([1, 2], [3, 4]), ([5], [6]), ([7], [8, 9, 10])]
    assert type(model.heard[0][0][0]) is int and all(each.dtype == np.float64 for each in told)


def test_a_call_that_failed_is_nan_for_its_answer_alone() -> None:
    told = ServerScorer(Told((-1.0, -2.0), ModelTimeout("late"), ModelError("no"))).logprobs(ASKED)
    assert told[0].tolist() == [-1, -2]
    assert [np.isnan(each).tolist() for each in told[1:]] == [[True], [True] * 3]


def test_a_server_that_tells_another_number_of_log_probs_is_not_believed() -> None:
    with pytest.raises(ModelError, match="wanted 1 log-probs, one a token, got 2"):
        ServerScorer(Told((-1.0, -2.0), (-3.0, -4.0), (-4.0, -5.0, -6.0))).logprobs(ASKED)


def test_an_empty_context_is_not_sent() -> None:
    model = Told()
    with pytest.raises(ConfigError, match="answer 0"):
        ServerScorer(model).logprobs([Asked(ids(), ids(1))])
    assert model.heard == []
