"""`mempo_gain` by hand; its formula stands against slow loops beside those of the others."""

from __future__ import annotations

import math

import pytest

from credit_help import NAN, Rollout, Round, Token, pack
from mempo_trainers.credit import make
from mempo_trainers.credit.data import ANSWER, CALL, MEM


def _rollout(first: float, second: float) -> Rollout:
    """Two searches that raise log P from -7 by `first` and then `second`, and a wrong answer."""
    searched = [
        Round([[Token(CALL)]], memory=[NAN], history=[NAN], seen=[-7.0 + first]),
        Round(
            [[Token(MEM), Token(CALL)]], memory=[-7.0], history=[-7.0 + first], seen=[-7.0 + first + second]
        ),
    ]
    end = Round(
        [[Token(ANSWER)]], memory=[-7.0], history=[-7.0 + first + second], seen=[-7.0 + first + second]
    )
    return Rollout(0, 0.0, [*searched, end], prior=[-7.0])


def test_a_search_that_only_names_the_next_one_is_paid_for_what_that_finds() -> None:
    """Gains (0, 4) and (0, 0): the sums are 4, 4, 0, 0, their root mean square is sqrt(8)."""
    packed = pack([_rollout(0.0, 4.0), _rollout(0.0, 0.0)])
    credit = make("mempo_gain")(packed.data)
    told = packed.read(credit.advantages_BK)
    paid = 4 / (math.sqrt(8) + 1e-6)
    assert told[0, 0, 0, 0] == pytest.approx(paid, abs=1e-6)  # the bridge
    assert told[0, 1, 0, 1] == pytest.approx(paid, abs=1e-6)  # what it leads to
    assert told[0, 1, 0, 0] == pytest.approx(make("mempo")(packed.data).advantages_BK[1, 0], abs=1e-6)
    assert told[1, 0, 0, 0] == told[1, 1, 0, 1] == 0.0  # nothing found: as good as to answer
    assert told[0, 2, 0, 0] == 0.0  # wrong answers, a tied outcome
