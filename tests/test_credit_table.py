"""The table of estimators, its messages, and the refill of batches."""

from __future__ import annotations

import inspect
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from credit_help import Rollout, Round, Token, episodes, pack
from mempo_env.errors import ConfigError, DataError
from mempo_trainers.config import Config
from mempo_trainers.credit import CREDITS, fill, make
from mempo_trainers.credit.data import MEM
from mempo_trainers.credit.memory import memory_term
from mempo_trainers.credit.normalise import joint, statistics, whiten
from mempo_trainers.credit.sampling import Filled


def test_the_table_is_the_documented_one() -> None:
    page = (Path(__file__).resolve().parents[1] / "docs" / "credit.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == set(CREDITS)


def test_a_wrong_name_is_said() -> None:
    with pytest.raises(ConfigError, match="unknown credit 'memp': did you mean 'mempo'"):
        make("memp")


WRONG = [
    (
        "mempo",
        {"baselin": "full"},
        "unknown option of credit 'mempo': 'baselin': did you mean 'baseline'",
    ),
    ("dr_grpo", {"eps": 1e-4}, "credit 'dr_grpo' has no options, got 'eps'"),
    (
        "mempo",
        {"objectives": "geometrical"},
        "unknown objectives 'geometrical': did you mean 'geometric'",
    ),
    ("mempo", {"baseline": True}, "baseline: wanted a name, got True"),
    ("mempo", {"weight": "much"}, "weight: wanted a number from -1,000,000 to 1,000,000, got 'much'"),
    ("mempo", {"weight": float("nan")}, "weight: wanted a number from .*, got nan"),
    ("mempo", {"weight": float("-inf")}, "weight: wanted a number from .*, got -inf"),
    ("mempo", {"weight": None}, "weight: wanted a number from .*, got None"),
    ("mempo", {"weight": {1: 2}}, "weight: wanted a number from .*, got {1: 2}"),
    ("mempo", {"weight": 1e300}, r"weight: wanted a number from .*, got 1e\+300"),
    ("mempo", {"weight": 10**400}, "weight: wanted a number from .*, got one of many digits"),
    ("mempo", {"weight": -(10**5000)}, "weight: wanted a number from .*, got one of many digits"),
    ("mempo_gain", {"gain": 1e7}, "gain: wanted a number from .*, got 10000000.0"),
    ("attribution", {"cost": 1e7}, "cost: wanted a number from .*"),
    ("memory_only", {"elsewhere": -1e7}, "elsewhere: wanted a number from .*"),
    ("reinforce_pp", {"beta": 1e7}, "beta: wanted a number from .*"),
    ("mempo", {"eps": -1e-9}, r"eps: wanted a number from 0 to 1,000,000, got -1e-09"),
    ("mempo", {"floor": -1}, r"floor: wanted a number from 0 to 1,000,000, got -1"),
    ("discounted", {"gamma": -3}, "gamma: wanted a number from 0 to 1, got -3"),
    ("gigpo", {"gamma": 1.01}, "gamma: wanted a number from 0 to 1, got 1.01"),
    ("gae", {"lambda_round": 5}, "lambda_round: wanted a number from 0 to 1, got 5"),
    ("gae", {"gamma_round": -0.1}, "gamma_round: wanted a number from 0 to 1, got -0.1"),
    ("placebo", {"seed": -1}, "seed: wanted a whole number from 0 to .*, got -1"),
    ("placebo", {"seed": 0.5}, "seed: wanted a whole number from 0 to .*, got 0.5"),
    ("placebo", {"seed": 1e300}, r"seed: wanted a whole number from 0 to .*, got 1e\+300"),
    ("grpo", {"ddof": 2}, "ddof: wanted a whole number from 0 to 1, got 2"),
    ("grpo", {"ddof": 0.5}, "ddof: wanted a whole number from 0 to 1, got 0.5"),
    ("mempo", {"objectives": None}, "objectives: wanted a name, got None"),
    ("mempo", {"pool": ["all"]}, "pool: wanted a name, got .'all'."),
    ("mempo", {"only_successful": 1}, "only_successful: wanted a flag, got 1"),
    ("grpo", {"ddof": True}, "ddof: wanted a whole number from 0 to 1, got True"),
    ("attribution", {"progress": "p"}, "unknown progress 'p'"),
]


@pytest.mark.parametrize(("name", "options", "message"), WRONG)
def test_a_wrong_name_or_value_is_said_before_anything_is_generated(
    name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make(name, **options)


@pytest.mark.parametrize(("name", "options", "message"), WRONG)
def test_a_wrong_name_or_value_is_said_without_make_too(
    name: str, options: dict[str, Any], message: str
) -> None:
    rollouts, merged = episodes(4)
    with pytest.raises(ConfigError, match=message):
        CREDITS[name](pack(rollouts, merged).data, **options)


def test_numbers_of_numpy_are_numbers() -> None:
    rollouts, merged = episodes(4)
    data = pack(rollouts, merged).data
    theirs = make("mempo", weight=np.float64(0.5), ddof=np.int64(0), only_successful=np.bool_(True))(data)
    ours = make("mempo", weight=0.5, ddof=0, only_successful=True)(data)
    assert np.array_equal(theirs.advantages_BK, ours.advantages_BK)


def test_what_is_built_on_memory_takes_its_options() -> None:
    memory = set(inspect.signature(memory_term).parameters)
    for name, more in (("mempo", set()), ("placebo", {"seed"}), ("mempo_gain", {"gain", "gamma"})):
        assert set(inspect.signature(CREDITS[name]).parameters) == memory | more


@pytest.mark.parametrize("name", CREDITS)
def test_every_option_takes_its_default_and_refuses_what_is_no_value_of_any(name: str) -> None:
    options = list(inspect.signature(CREDITS[name]).parameters.items())[1:]
    make(name, **{option: parameter.default for option, parameter in options})
    for option, _ in options:
        for wrong in (None, [1], {1: 2}, "?", 1e308, -(10**400), 1j, np.ones(2)):
            with pytest.raises(ConfigError, match=option):
                make(name, **{option: wrong})


@pytest.mark.parametrize("name", CREDITS)
@pytest.mark.parametrize("end", [0, 1])
def test_options_at_the_ends_of_their_ranges_give_finite_advantages(name: str, end: int) -> None:
    rollouts, merged = episodes(4)
    data = pack(rollouts, merged).data
    for option, parameter in list(inspect.signature(CREDITS[name]).parameters.items())[1:]:
        if type(parameter.default) in (int, float):
            (meta,) = parameter.annotation.__metadata__
            credit = make(name, **{option: (meta.ge, meta.le)[end]})(data)
            assert np.isfinite(credit.advantages_BK).all(), option


def test_whole_numbers_stay_whole_in_a_file_of_settings() -> None:
    config = Config(credit="placebo", credit_options={"seed": 3, "ddof": 0, "weight": 1.0})
    back = msgspec.json.decode(msgspec.json.encode(config), type=Config)
    assert back == config and [type(value) for value in back.credit_options.values()] == [int, int, float]


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("mempo", "memory_logp_RJ"),
        ("mempo", "history_logp_RJ"),
        ("igpo", "seen_logp_RJ"),
        ("gae", "values_BK"),
        ("gigpo", "state_R"),
        ("turn_level", "found_R"),
        ("attribution", "recall_R"),
        ("reinforce_pp", "reward_R"),
    ],
)
def test_what_was_not_measured_is_named(name: str, field: str) -> None:
    rollouts, merged = episodes(1)
    data = msgspec.structs.replace(pack(rollouts, merged).data, **{field: None})
    with pytest.raises(ConfigError, match=field):
        make(name)(data)


def test_entries_that_are_their_own_sources_are_refused() -> None:
    round_ = Round([[Token(MEM, entry=1), Token(MEM, entry=2)]], uses=[1], recall=1.0)
    data = pack([Rollout(0, 0.0, [round_])], merged=[(1, 2), (2, 1)]).data
    with pytest.raises(DataError, match="their own sources"):
        make("attribution")(data)


@pytest.mark.parametrize("name", CREDITS)
def test_nothing_at_all_has_no_advantages(name: str) -> None:
    empty = Round([[]], memory=[0.0], history=[0.0], seen=[0.0])
    data = pack([Rollout(0, 1.0, [empty], prior=[0.0])], padding=3).data
    assert not make(name)(data).advantages_BK.any()
    everything_masked = pack([Rollout(0, 1.0, [empty], prior=[0.0], masked=True)], padding=3).data
    credit = make(name)(everything_masked)
    assert (credit.groups, credit.degenerate_outcome) == (0, 0)
    assert credit.degenerate_memory == 0 or math.isnan(credit.degenerate_memory)


@pytest.mark.parametrize("name", CREDITS)
def test_segments_without_any_token_have_an_empty_array_of_advantages(name: str) -> None:
    empty = Round([[]], memory=[0.0], history=[0.0], seen=[0.0])
    data = pack([Rollout(0, r, [empty, empty], prior=[0.0]) for r in (1.0, 0.0)]).data
    assert make(name)(data).advantages_BK.shape == (4, 0)


def test_the_estimators_need_no_torch() -> None:
    code = "import sys, mempo_trainers.credit; assert not {'torch', 'scipy', 'matplotlib'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# --- Statistics -------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(-3, 3), st.integers(-2, 2), st.booleans()), max_size=40),
    st.sampled_from([0, 1]),
)
def test_statistics_are_numpys_group_by_group(rows: list[tuple[int, int, bool]], ddof: int) -> None:
    values, group, keep = (np.array(x) for x in zip(*rows, strict=True)) if rows else ([np.empty(0)] * 3)
    group, keep = group.astype(np.int64), keep.astype(bool)
    found = statistics(values / 4, group, keep, ddof)
    for number, std, tied in zip(np.unique(group[keep]), found.std_G, found.tied_G, strict=True):
        mine = keep & (group == number)
        own = values[mine] / 4
        assert found.centred_X[mine] == pytest.approx(own - own.mean(), abs=1e-12)
        wanted = own.std(ddof=ddof) if len(own) > 1 else 0.0
        assert std == pytest.approx(wanted, abs=1e-12) and found.std_X[mine] == pytest.approx(
            wanted, abs=1e-12
        )
        assert tied == (len(set(own)) == 1) and (found.count_X[mine] == len(own)).all()
    assert not found.centred_X[~keep].any() and not found.count_X[~keep].any()


@given(st.lists(st.tuples(st.integers(-2, 2), st.integers(0, 3)), min_size=1))
def test_joint_numbers_rows(rows: list[tuple[int, int]]) -> None:
    number = joint(*np.array(rows).T)
    for i, row in enumerate(rows):
        assert [bool(x) for x in number == number[i]] == [other == row for other in rows]


def test_whitening() -> None:
    values = np.array([1.0, 3.0, 3.0, 9.0])
    white = whiten(values)
    assert white.mean() == pytest.approx(0) and white.std(ddof=1) == pytest.approx(1, abs=1e-6)
    weighted = whiten(np.array([1.0, 3.0, 9.0, 50.0]), np.array([1, 2, 1, 0]))
    assert weighted[:3] == pytest.approx(white[[0, 1, 3]])
    assert not whiten(np.full(3, 0.1)).any() and not len(whiten(np.empty(0)))


# --- Dynamic sampling -------------------------------------------------------------------------------------


class Source:
    """Groups numbered from 0; those in `good` teach something."""

    def __init__(self, good: set[int]) -> None:
        self.good, self.asked = good, []

    def generate(self, count: int) -> list[int]:
        start = sum(self.asked)
        self.asked.append(count)
        return list(range(start, start + count))

    def keep(self, groups: Any) -> list[bool]:
        return [group in self.good for group in groups]


def test_a_full_batch_needs_no_refill() -> None:
    source = Source(set(range(9)))
    assert fill(source.generate, source.keep, 4, 8) == ((0, 1, 2, 3), Filled(4, 4, 0, 0.0))
    assert source.asked == [4]


def test_only_what_is_missing_is_generated_anew() -> None:
    source = Source({1, 3, 5, 6})
    batch, record = fill(source.generate, source.keep, 4, 8)
    assert batch == (1, 3, 5, 6) and source.asked == [4, 2, 1]
    assert record == Filled(generated=7, kept=4, dropped=3, wasted=3 / 7)


def test_a_spent_budget_leaves_the_batch_short() -> None:
    source = Source({2})
    batch, record = fill(source.generate, source.keep, 3, 2)
    assert batch == (2,) and source.asked == [3, 2]
    assert record == Filled(generated=5, kept=1, dropped=4, wasted=0.8)
    assert fill(Source(set()).generate, Source(set()).keep, 2, 0) == ((), Filled(2, 0, 2, 1.0))


@given(st.sets(st.integers(0, 60)), st.integers(1, 12), st.integers(0, 20))
def test_the_budget_holds_and_the_record_adds_up(good: set[int], wanted: int, extra: int) -> None:
    source = Source(good)
    batch, record = fill(source.generate, source.keep, wanted, extra)
    assert record.generated == sum(source.asked) <= wanted + extra
    assert record.kept == len(batch) <= wanted and record.kept + record.dropped == record.generated
    assert list(batch) == sorted(good & set(range(record.generated)))  # none that is good is thrown away
    assert len(batch) == wanted or record.generated == wanted + extra


def test_a_bad_request_or_source_is_refused() -> None:
    source = Source(set())
    with pytest.raises(ConfigError, match="at least 1"):
        fill(source.generate, source.keep, 0, 3)
    with pytest.raises(ConfigError, match="wanted 2 groups, got 1"):
        fill(lambda count: [0], source.keep, 2, 3)
