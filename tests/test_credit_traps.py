"""Faults of neighbouring systems that make wrong advantages, a test each, named after what goes wrong."""

from __future__ import annotations

from math import log

import msgspec
import numpy as np
import pytest

from credit_help import NAN, Rollout, Round, Token, episodes, pack
from mempo_trainers.credit import CREDITS, Credit, keep_groups, make
from mempo_trainers.credit.data import ANSWER, CALL, MEM, THINK, Trajectories
from mempo_trainers.credit.outcome import outcome

EVERYWHERE = {"rel": 2e-7, "abs": 2e-7}


def rounds(count: int, reward: float = 0.0) -> list[Round]:
    """Rounds of one token; the last one earns the reward."""
    made = [Round([[Token(THINK, value=0.0)]]) for _ in range(count)]
    made[-1].reward = reward
    return made


def test_group_statistics_over_segments_weigh_long_rollouts_more() -> None:
    data = pack([Rollout(0, r, rounds(t)) for r, t in ((1.0, 2), (0.0, 1), (0.0, 2))]).data
    credit = make("grpo")(data)
    assert credit.outcome_N == pytest.approx([1.1546985383827155, -0.5773492691913577, -0.5773492691913577])
    over_segments = (1 - 0.4) / (np.std([1, 1, 0, 0, 0], ddof=1) + 1e-6)
    assert over_segments == pytest.approx(1.095, abs=1e-3)  # what those systems compute
    assert credit.advantages_BK[:2, 0] == pytest.approx([1.1546985383827155] * 2, **EVERYWHERE)


def test_context_resets_do_not_turn_segments_into_groups_of_their_own() -> None:
    one = [Round([[Token(THINK), Token(CALL)]])]
    a = 0.5 / (0.5**0.5 + 1e-6)
    cut = [Round([[Token(THINK)], [Token(CALL)]])]  # the same round in two calls of the policy
    for first in (one, cut):
        data = pack([Rollout(0, 1.0, first), Rollout(0, 0.0, one)]).data
        credit = make("grpo")(data)
        assert credit.advantages_BK[data.mask_BK] == pytest.approx([a, a, -a, -a], abs=1e-6)


def test_mean_and_std_are_not_taken_over_the_whole_batch() -> None:
    easy, hard = [1.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]
    rollouts = [Rollout(q, r, rounds(1)) for q, group in enumerate((easy, hard)) for r in group]
    found = make("grpo")(pack(rollouts).data).outcome_N
    assert found == pytest.approx([0.5, 0.5, 0.5, -1.5, -0.5, -0.5, -0.5, 1.5], abs=1e-5)
    alone = make("grpo")(pack(rollouts[4:]).data).outcome_N
    assert np.array_equal(found[4:], alone)


@pytest.mark.parametrize("name", CREDITS)
def test_the_reward_field_is_not_overwritten_by_the_advantage(name: str) -> None:
    rollouts, merged = episodes(3)
    data = pack(rollouts, merged).data
    before = {field: np.copy(getattr(data, field)) for field in data.__struct_fields__}
    make(name)(data)  # every array is read-only: writing would raise
    for field, held in before.items():
        assert np.array_equal(held, getattr(data, field), equal_nan=held.dtype.kind == "f"), field


def test_returns_do_not_start_anew_at_observation_tokens() -> None:
    written, seen = Token(CALL, value=0.0), Token(0, value=5.0)
    winner = [Round([[written, seen, written, seen]]), Round([[written, seen]], reward=1.0)]
    loser = [Round([[written, seen]]), Round([[written]])]
    data = pack([Rollout(0, 1.0, winner), Rollout(0, 0.0, loser)]).data
    for name in ("reinforce_pp", "gae"):
        advantages_BK = make(name)(data).advantages_BK
        assert (advantages_BK[0, [0, 2]] > 0.5).all() and not advantages_BK[0, [1, 3]].any()


@pytest.mark.parametrize("name", CREDITS)
def test_credit_of_the_outcome_reaches_round_1(name: str) -> None:
    def rollout(right: float) -> Rollout:
        made = [
            Round([[Token(MEM if t else THINK, value=0.0)]], memory=[NAN], history=[-1.0], seen=[-1.0])
            for t in range(5)
        ]
        made[-1].reward = right
        return Rollout(0, right, made, prior=[-1.0])

    data = pack([rollout(1.0), rollout(0.0)]).data
    first = make(name)(data).advantages_BK[[0, 5], 0]
    assert first[0] > 0.05 and first[0] > first[1]


def test_ties_are_exact_and_a_small_difference_is_none() -> None:
    close = make("grpo")(pack([Rollout(0, r, rounds(1)) for r in (0.5, 0.5 + 1e-7)]).data)
    assert close.degenerate_outcome == 0 and close.outcome_N[1] > 0  # a threshold on the std invents a tie
    for eps in (1e-6, 0.0):
        tied = make("grpo", eps=eps)(pack([Rollout(0, 0.1, rounds(1)) for _ in range(3)]).data)
        assert tied.degenerate_outcome == 1 and not tied.advantages_BK.any()
    assert np.mean([0.1] * 3) != 0.1  # a mean in floats misses a tie
    assert not make("dr_grpo")(pack([Rollout(0, 0.1, rounds(1)) for _ in range(3)]).data).advantages_BK.any()


def scored(question: int, outcome_: float, *logps: float, base: float = -1.0) -> Rollout:
    first = Round([[Token(CALL)]], memory=[NAN], history=[NAN])
    later = [Round([[Token(MEM), Token(ANSWER)]], memory=[x], history=[base]) for x in logps]
    return Rollout(question, outcome_, [first, *later])


@pytest.mark.parametrize("name", ["mempo", "placebo", "spread"])
def test_scores_that_differ_by_float_noise_are_not_blown_up(name: str) -> None:
    noisy = [scored(0, 0.0, -1.0, -1.0 + 1e-7), scored(0, 0.0, -1.0 - 1e-7, -1.0)]
    credit = make(name)(pack(noisy).data)
    assert not credit.advantages_BK.any()
    assert (credit.degenerate_outcome, credit.degenerate_memory) == (1, 1)
    alive = [scored(0, 0.0, log(0.4), log(0.5)), scored(0, 0.0, log(0.1), log(0.2))]
    credit = make(name)(pack(alive).data)
    assert credit.advantages_BK.any() and credit.degenerate_memory == 0


@pytest.mark.parametrize("name", ["turn_level", "gigpo", "igpo", "attribution"])
def test_turns_that_differ_by_float_noise_are_not_blown_up(name: str) -> None:
    def rollout(noise: float) -> Rollout:
        made = Round(
            [[Token(MEM, entry=round(noise * 1e9))]],
            reward=noise,
            seen=[-1 + noise],
            history=[-1.0],
            recall=noise,
        )
        made.uses = [round(noise * 1e9)]
        return Rollout(0, 0.0, [made, Round([[Token(ANSWER)]], seen=[-1.0], history=[-1.0], recall=noise)])

    data = pack([rollout(1e-9), rollout(2e-9)]).data
    data = msgspec.structs.replace(data, found_R=data.recall_R)
    assert not make(name)(data).advantages_BK.any()


def test_groups_with_tied_outcomes_stay_where_their_memory_term_is_alive() -> None:
    alive = [scored(4, 0.0, log(0.5)), scored(4, 0.0, log(0.1))]
    dead = [scored(2, 0.0, log(0.3)), scored(2, 0.0, log(0.3))]
    data = pack([*alive, *dead]).data
    credit = make("mempo")(data)
    assert keep_groups(credit.advantages_BK, data).tolist() == [False, True]  # questions 2 and 4
    assert keep_groups(make("grpo")(data).advantages_BK, data).tolist() == [False, False]
    assert (credit.degenerate_outcome, credit.degenerate_memory) == (2, 1)


def test_partial_rewards_survive_integer_arrays() -> None:
    whole = pack([Rollout(0, r, rounds(2, r)) for r in (1.0, 0.0, 0.0, 0.0)]).data
    integers = msgspec.structs.replace(
        whole,
        outcome_N=whole.outcome_N.astype(np.int64),
        reward_R=whole.reward_R.astype(np.int64),
        shaping_N=np.zeros(4, np.int64),
    )
    for name in ("grpo", "dr_grpo", "rloo", "reinforce_pp", "gae", "discounted"):
        assert np.array_equal(make(name)(integers).advantages_BK, make(name)(whole).advantages_BK)
    thirds = pack([Rollout(0, r, rounds(1)) for r in (1 / 3, 0.0)]).data
    assert make("dr_grpo")(thirds).outcome_N == pytest.approx([1 / 6, -1 / 6])


def test_the_mask_is_not_one_token_off_at_the_borders_of_segments() -> None:
    def between(*inner: Token) -> list[Token]:
        return [Token(0, value=1.0), *inner, Token(0, value=1.0)]

    tokens = between(Token(MEM, value=0.0), Token(CALL, value=0.0))
    winner = [Round([tokens], reward=1.0)]
    loser = [Round([between(Token(MEM, value=0.0), Token(CALL, value=0.0))])]
    data = pack([Rollout(0, 1.0, winner), Rollout(0, 0.0, loser)], padding=2).data
    for name in ("grpo", "memory_only", "gae", "reinforce_pp"):
        winning = make(name)(data).advantages_BK[0]
        assert (winning[[1, 2]] > 0).all() and (winning[[0, 3, 4, 5]] == 0).all(), name
    assert make("memory_only")(data).advantages_BK[0, 1] > make("memory_only")(data).advantages_BK[0, 2]


def test_a_masked_rollout_leaves_means_stds_and_pools() -> None:
    kept = [scored(0, 1.0, log(0.5), log(0.2)), scored(0, 0.0, log(0.3))]
    broken = scored(0, NAN, NAN, NAN)
    broken.masked, broken.shaping = True, NAN
    with_it, without = pack([*kept, broken]).data, pack(kept).data
    for name in ("grpo", "dr_grpo", "rloo", "mempo", "spread", "discounted", "memory_only"):
        here, there = make(name)(with_it), make(name)(without)
        alive_B = ~with_it.masked_N[with_it.rollout_B]
        assert np.array_equal(here.advantages_BK[alive_B], there.advantages_BK), name
        assert not here.advantages_BK[~alive_B].any()
        assert np.array_equal(here.degenerate_memory, there.degenerate_memory, equal_nan=True)
        assert here.groups == there.groups


def test_shaping_is_not_divided_by_the_std() -> None:
    tied = [Rollout(0, 1.0, rounds(1), shaping=s) for s in (0.0, 0.03)]
    for name in ("grpo", "dr_grpo", "rloo"):
        credit = make(name)(pack(tied).data)
        assert credit.outcome_N == pytest.approx([0.0, 0.03])  # in the reward it would become -0.7, +0.7
        assert credit.degenerate_outcome == 1


def test_a_pool_of_one_gives_nothing() -> None:
    credit = make("mempo")(pack([scored(0, 0.0, log(0.9)), Rollout(0, 0.0, rounds_unscored(1))]).data)
    assert not credit.advantages_BK.any() and credit.degenerate_memory == 1


@pytest.mark.parametrize("name", ["mempo", "placebo", "spread", "mempo_gain"])
@pytest.mark.parametrize("pool", ["all", "round"])
def test_memories_that_all_score_alike_teach_nothing_and_are_counted_whatever_the_floor(
    name: str, pool: str
) -> None:
    """Two questions: in one all rounds score alike, in the other they do not."""
    alike = [scored(0, 0.0, log(0.3), log(0.3)), scored(0, 0.0, log(0.3), log(0.3))]
    alive = [scored(1, 0.0, log(0.3), log(0.2)), scored(1, 0.0, log(0.5), log(0.7))]
    options = {} if name == "spread" else {"pool": pool}
    data = pack([*alike, *alive]).data
    data = msgspec.structs.replace(
        data, seen_logp_RJ=np.full_like(data.memory_logp_RJ, -1.0), prior_logp_NJ=np.full((4, 1), -1.0)
    )
    for floor in (0.0, 1e-4):
        assert make(name, floor=floor, **options)(data).degenerate_memory == 1


def rounds_unscored(count: int) -> list[Round]:
    return [Round([[Token(ANSWER)]], memory=[NAN], history=[NAN]) for _ in range(count)]


def test_a_round_that_omits_its_memory_does_not_escape_the_pool() -> None:
    def rollout(logp: float, writes: bool) -> Rollout:
        made = scored(0, 0.0, logp)
        if not writes:
            made.rounds[1].segments = [[Token(ANSWER)]]
        return made

    both = make("mempo")(pack([rollout(log(0.6), True), rollout(log(0.2), False)]).data)
    assert both.advantages_BK[1, 0] == pytest.approx(0.7071, abs=1e-4)  # it is measured against the omission
    assert not both.advantages_BK[2:].any() and both.unwritten == 0.5


@pytest.mark.parametrize("name", ["mempo", "placebo"])
def test_of_no_scored_round_nobody_knows_what_was_written(name: str) -> None:
    """A share of 0 would say that every round wrote."""
    credit = make(name)(pack([Rollout(0, 1.0, rounds_unscored(3))]).data)
    assert np.isnan(credit.unwritten)


# --- What tells estimators apart --------------------------------------------------------------------------


def test_grpo_dr_grpo_and_rloo_are_proportional_within_a_question() -> None:
    rng = np.random.default_rng(5)
    for _ in range(50):
        outcomes = rng.choice([0, 0.25, 0.5, 1], 6)
        data = pack([Rollout(0, float(r), rounds(1)) for r in outcomes]).data
        one, two, three = (make(name)(data).outcome_N for name in ("grpo", "dr_grpo", "rloo"))
        assert three == pytest.approx(two * 6 / 5, abs=1e-12)
        assert one * (np.std(outcomes, ddof=1) + 1e-6) == pytest.approx(two, abs=1e-12)


def planted() -> Trajectories:
    """A failure that kept the answer and found the fact, and a success that kept and found nothing."""

    def rollout(outcome_: float, memory: float, found: int, entry: int) -> Rollout:
        first = Round([[Token(CALL, value=0.0)]], memory=[NAN], history=[NAN], found=found, seen=[log(0.3)])
        second = Round(
            [[Token(MEM, value=0.0, entry=entry), Token(CALL, value=0.0)]],
            memory=[log(memory)],
            history=[log(0.3)],
            seen=[log(0.3)],
            recall=float(found),
        )
        third = Round([[Token(ANSWER, value=0.0)]], memory=[NAN], history=[NAN], reward=outcome_, seen=[NAN])
        second.uses = [entry]
        third.recall = float(found)
        return Rollout(0, outcome_, [first, second, third], prior=[log(0.3 if not found else 0.01)])

    return pack([rollout(0.0, 0.9, 1, 1), rollout(1.0, 0.1, 0, 2)]).data


def test_estimators_differ_in_sign_where_they_must() -> None:
    data = planted()
    weight = {"weight": 3.0}
    credits: dict[str, Credit] = {
        name: make(name, **(weight if name in ("mempo", "turn_level", "attribution") else {}))(data)
        for name in CREDITS
    }
    of_memory = {name: float(credit.advantages_BK[1, 0]) for name, credit in credits.items()}
    of_search = {name: float(credit.advantages_BK[0, 0]) for name, credit in credits.items()}
    for blind in ("grpo", "dr_grpo", "rloo", "discounted", "memory_only", "reinforce_pp", "gae"):
        assert of_memory[blind] <= 0 and of_search[blind] <= 0, blind
    assert of_memory["mempo"] > 0 > of_search["mempo"]  # what it kept was good, what it did was not
    assert of_search["turn_level"] > 0 > of_memory["turn_level"]  # what it found was good
    assert of_memory["attribution"] > 0 > of_search["attribution"]  # what it wrote was used when it got on
    gained, later = credits["igpo"].advantages_BK[0, 0], credits["igpo"].advantages_BK[1, 1]
    assert gained - later > 0.1  # the search told something, what came after it did not


def test_outcomes_are_those_of_the_rollout_not_of_the_last_segment() -> None:
    data = pack([Rollout(0, 1.0, rounds(3)), Rollout(0, 0.0, rounds(1))]).data
    assert make("grpo")(data).advantages_BK[:, 0] == pytest.approx(
        outcome(data).advantage_N[[0, 0, 0, 1]], **EVERYWHERE
    )
