"""Numbers typed by hand. Where they are from stands beside them; `shared/golden` derives them anew."""

from __future__ import annotations

import json
from math import exp, log
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from credit_help import NAN, Rollout, Round, Token, pack
from mempo_trainers.credit import keep_groups, make
from mempo_trainers.credit.data import ANSWER, CALL, MEM, THINK, Trajectories
from mempo_trainers.credit.memory import OBJECTIVES, memory_term
from mempo_trainers.credit.outcome import outcome
from mempo_trainers.credit.result import paint

GOLDEN = Path(__file__).resolve().parents[1].parent / "shared" / "golden" / "golden.json"
TIGHT = {"rel": 1e-9, "abs": 1e-9}
FLOAT32 = {"rel": 2e-7, "abs": 2e-7}


def group(*outcomes: float, rounds: tuple[int, ...] | None = None) -> Trajectories:
    """One question, a rollout an outcome, a token of memory and one of an answer in each round."""
    count = rounds or (1,) * len(outcomes)
    rollouts = [
        Rollout(0, r, [Round([[Token(MEM), Token(ANSWER)]]) for _ in range(t)])
        for r, t in zip(outcomes, count, strict=True)
    ]
    return pack(rollouts).data


# --- GRPO (arXiv 2402.03300): (R - mean) / (std + eps) ----------------------------------------------------


@pytest.mark.parametrize(
    ("losers", "ddof", "eps", "winner", "loser"),
    [
        # golden.json, outcome_advantage, one_winner_of_16 and one_winner_of_4
        (15, 1, 1e-6, 3.74998500006, None),
        (15, 0, 1e-4, 3.8713840069236207, None),
        (3, 1, 1e-6, 1.499997000006, -0.499999000002),
        (3, 0, 1e-4, 1.731650899923592, -0.5772169666411974),
    ],
)
def test_one_winner(losers: int, ddof: int, eps: float, winner: float, loser: float | None) -> None:
    data = group(1, *[0] * losers)
    found_N = outcome(data, ddof, eps).advantage_N
    assert found_N[0] == pytest.approx(winner, **TIGHT)
    if loser is not None:
        assert found_N[1:] == pytest.approx([loser] * losers, **TIGHT)
    credit = make("grpo", ddof=ddof, eps=eps)(data)
    assert credit.advantages_BK == pytest.approx(np.repeat(found_N[:, None], 2, axis=1), **FLOAT32)


def test_a_tie_is_zero_and_counted() -> None:
    # golden.json, outcome_advantage, tie and singleton (verl 0.9.1 gives the latter 0.999999)
    for outcomes in ([1, 1, 1, 1], [1], [0.1] * 3):
        credit = make("grpo")(group(*outcomes))
        assert not credit.advantages_BK.any()
        assert (credit.groups, credit.degenerate_outcome) == (1, 1)


def test_leave_one_out_and_without_std() -> None:
    # golden.json, outcome_advantage, leave_one_out (RLOO) and dr_grpo of [1,0,0,0]
    data = group(1, 0, 0, 0)
    rloo, dr_grpo = make("rloo")(data), make("dr_grpo")(data)
    assert rloo.outcome_N == pytest.approx([1.0, -1 / 3, -1 / 3, -1 / 3], **TIGHT)
    assert dr_grpo.outcome_N == pytest.approx([0.75, -0.25, -0.25, -0.25], **TIGHT)
    assert rloo.advantages_BK[:, 0] == pytest.approx(rloo.outcome_N, **FLOAT32)
    assert dr_grpo.advantages_BK[:, 1] == pytest.approx(dr_grpo.outcome_N, **FLOAT32)


# --- MemPO (arXiv 2603.00680) -----------------------------------------------------------------------------

CASE: dict[str, list[dict[str, Any]]] = {  # golden.json, memory_advantage, case
    "a": [
        {
            "reward": 1,
            "roles": [["mem", "think", "call"], ["mem", "mem", "call"], ["mem", "answer"]],
            "mem": [[-0.5, -0.1, -0.3], [-0.2, -0.2, -0.05]],
            "full": [[-1.0, -0.6, -0.2], [-0.3, -0.1, -0.4]],
        },
        {
            "reward": 0,
            "roles": [["think", "call"], ["call"], ["mem", "answer"]],
            "mem": [[-1.4, -0.9, -0.7], [-2.0, -1.0, -0.4]],
            "full": [[-1.1, -0.6, -0.9], [-1.5, -1.5, -0.2]],
        },
        {"reward": 0, "roles": [["answer"]], "mem": [], "full": []},
    ],
    "b": [
        {"reward": 0, "roles": [["call"], ["mem", "answer"]], "mem": [[-0.7]], "full": [[-0.4]]},
        {"reward": 0, "roles": [["call"], ["mem", "answer"]], "mem": [[-0.3]], "full": [[-0.9]]},
    ],
}
ROLES = {"mem": MEM, "think": THINK, "call": CALL, "answer": ANSWER}


def trajectories(case: dict[str, list[dict[str, Any]]]) -> Trajectories:
    """The arrays of a case that is given as in golden.json; questions numbered in order."""
    rollouts = []
    for number, rows in enumerate(case.values()):
        for row in rows:
            scored = [[NAN], *([float(np.mean(logps))] for logps in row["mem"])]
            history = [[NAN], *([float(np.mean(logps))] for logps in row["full"])]
            rounds = [
                Round([[Token(ROLES[role]) for role in roles]], memory=memory, history=full)
                for roles, memory, full in zip(row["roles"], scored, history, strict=True)
            ]
            rollouts.append(Rollout(number, float(row["reward"]), rounds))
    return pack(rollouts).data


def test_the_memory_case() -> None:
    # golden.json, memory_advantage, result
    data = trajectories(CASE)
    term, credit = memory_term(data), make("mempo")(data)
    assert outcome(data).advantage_N == pytest.approx(
        [1.1546985383827155, -0.5773492691913577, -0.5773492691913577, 0.0, 0.0], **TIGHT
    )
    rewards = [0.1920065845876915, 0.09477963806040912, -0.05247094333723956, -0.022195515327736448]
    assert term.reward_R == pytest.approx(
        [
            0,
            rewards[0],
            rewards[1],
            0,
            rewards[2],
            rewards[3],
            0,
            0,
            -0.1737347422442298,
            0,
            0.33424856094111877,
        ],
        **TIGHT,
    )
    assert term.advantage_R == pytest.approx(
        [
            *(0, 1.237324769744207, 0.371702272930616),  # rollout 0 of a: a memory in round 1 is not scored
            *(
                0,
                -0.9392863004986514,
                -0.6697407421761715,
            ),  # rollout 1: its round 2 wrote none, but is pooled
            *(0, 0, -0.7071048126233885, 0, 0.7071048126233885),  # one round; both rollouts of b
        ],
        **TIGHT,
    )
    wanted = [
        [1.1546985383827155, 1.1546985383827155, 1.1546985383827155],
        [2.392023308126922, 2.392023308126922, 1.1546985383827155],
        [1.5264008113133314, 1.1546985383827155, 0],
        [-0.5773492691913577, -0.5773492691913577, 0],
        [-0.5773492691913577, 0, 0],
        [-1.2470900113675292, -0.5773492691913577, 0],
        [-0.5773492691913577, 0, 0],
        [0, 0, 0],
        [-0.7071048126233885, 0, 0],
        [0, 0, 0],
        [0.7071048126233885, 0, 0],
    ]
    assert credit.advantages_BK == pytest.approx(np.array(wanted), **FLOAT32)
    assert (credit.groups, credit.degenerate_outcome, credit.degenerate_memory) == (2, 1, 0)
    assert credit.unwritten == pytest.approx(1 / 6)  # one of six pooled rounds
    assert keep_groups(credit.advantages_BK, data).tolist() == [True, True]
    assert keep_groups(make("grpo")(data).advantages_BK, data).tolist() == [True, False]


def test_two_objectives_of_four() -> None:
    # golden.json, memory_advantage, objectives
    logps = np.log([[0.9, 0.8, 0.001, 0.001]])
    all_of_them = np.ones_like(logps, bool)
    assert OBJECTIVES["arithmetic"](logps, all_of_them) == pytest.approx([0.42550000000000004], **TIGHT)
    assert OBJECTIVES["geometric"](logps, all_of_them) == pytest.approx([0.029129506302439413], **TIGHT)
    assert OBJECTIVES["log"](logps, all_of_them) == pytest.approx([log(0.029129506302439413)], **TIGHT)


@pytest.mark.parametrize(
    ("total", "memory", "on_memory", "elsewhere"),
    [  # golden.json, four_scenarios
        (0.8, 1.2, 2.0, 0.8),  # right answer, good memory
        (0.8, -0.5, 0.3, 0.8),  # right answer, bad memory
        (-0.8, 1.2, 0.4, -0.8),  # wrong answer, good memory
        (-0.8, -0.5, -1.3, -0.8),  # wrong answer, bad memory
    ],
)
def test_four_scenarios(total: float, memory: float, on_memory: float, elsewhere: float) -> None:
    painted = paint(group(1.0), np.array([total]), np.array([memory]))
    assert painted[0] == pytest.approx([on_memory, elsewhere], **FLOAT32)


# --- GAE (arXiv 1506.02438) -------------------------------------------------------------------------------


def critic(tokens: list[list[float]], rewards: list[float]) -> Trajectories:
    """One rollout whose rounds have tokens of these values."""
    rounds = [
        Round([[Token(THINK, value=v) for v in values]], reward=r)
        for values, r in zip(tokens, rewards, strict=True)
    ]
    return pack([Rollout(0, 1.0, rounds)]).data


def test_gae_across_rounds() -> None:
    # golden.json, gae_rounds: gamma = lambda = 1 inside a round
    data = critic([[0.1, 0.2, 0.3], [0.5, 0.6]], [-0.05, 1.0])
    credit = make("gae", gamma_round=0.9, lambda_round=0.8)(data)
    assert credit.advantages_BK[data.mask_BK] == pytest.approx([0.66, 0.56, 0.46, 0.5, 0.4], **FLOAT32)


def test_gae_with_a_token_a_round_is_the_textbooks() -> None:
    # golden.json, gae_masked: the generated tokens alone, gamma 0.99, lambda 0.95
    data = critic([[0.1], [0.2], [0.3], [0.4]], [0, 0, 0, 1.0])
    credit = make("gae", gamma_round=0.99, lambda_round=0.95)(data)
    wanted = [0.7732904270750001, 0.7180121500000001, 0.6603, 0.6]
    assert credit.advantages_BK[:, 0] == pytest.approx(wanted, **FLOAT32)


def test_gae_passes_over_observation_tokens_and_the_values_there() -> None:
    # golden.json, gae_masked: values of 9 on two observation tokens; gamma = lambda = 1 gives 1 - V
    seen = Token(0, value=9.0)
    tokens = [Token(THINK, value=0.1), seen, seen, Token(THINK, value=0.4)]
    data = pack([Rollout(0, 1.0, [Round([tokens], reward=1.0)])]).data
    credit = make("gae", gamma_round=0.99, lambda_round=0.95)(data)
    assert credit.advantages_BK[0] == pytest.approx([0.9, 0, 0, 0.6], **FLOAT32)


# --- By hand ----------------------------------------------------------------------------------------------


def test_discounted_by_hand() -> None:
    # The winner of two has A = 0.5 / (sqrt(0.5) + 1e-6) = 0.7071058; memory of rounds 1, 2, 3 a part of it.
    credit = make("discounted", gamma=0.5)(group(1, 0, rounds=(3, 1)))
    assert credit.advantages_BK[:3, 0] == pytest.approx(
        0.7071057811865476 * np.array([0.25, 0.5, 1]), **FLOAT32
    )
    assert credit.advantages_BK[:3, 1] == pytest.approx([0.7071057811865476] * 3, **FLOAT32)


def test_attribution_by_hand() -> None:
    # Entry 1 is used alone for half of the progress (0.5), 2 and 3 share the rest (0.25 each), 4 is not used
    # (-0.1). 9 merges 2 and 3 and is used for 0 more: c = 0.5, 0.25, 0.25, -0.1, mean 0.225, std
    # sqrt((0.275^2 + 2 * 0.025^2 + 0.325^2) / 3) = 0.24664414.
    tokens = [Token(MEM, entry=e) for e in (1, 2, 3, 4)]
    rounds = [
        Round([tokens], recall=0.0),
        Round([[Token(CALL)]], recall=0.5, uses=[1, 1]),  # told twice, used once
        Round([[Token(CALL)]], recall=1.0, uses=[2, 3]),
        Round([[Token(MEM, entry=9)]], recall=1.0, uses=[9]),
    ]
    data = pack([Rollout(0, 1.0, rounds)], merged=[(9, 2), (9, 3)]).data
    credit = make("attribution")(data)
    wanted = np.array([0.275, 0.025, 0.025, -0.325]) / (0.24664414311581237 + 1e-6)
    assert credit.advantages_BK[0] == pytest.approx(wanted, rel=1e-6)
    assert not credit.advantages_BK[1:].any()  # the outcome is a group of one; a merge has nothing of its own


def test_an_entry_written_by_several_tokens_is_one_entry() -> None:
    rounds = [Round([[Token(MEM, entry=1), Token(MEM, entry=1), Token(MEM, entry=2)]], recall=1.0, uses=[1])]
    credit = make("attribution", cost=0.0)(pack([Rollout(0, 0.0, rounds)]).data)
    half = 0.5 / (
        0.5**0.5 + 1e-6
    )  # entries 1 and 0: mean 0.5, std sqrt(0.5); three values would give 2/3, 1/3
    assert credit.advantages_BK[0] == pytest.approx([half, half, -half], rel=1e-6)


def test_igpo_by_hand() -> None:
    # P goes 0.2 -> 0.5 in round 1, then the answer earns 1; beside it 0.2 -> 0.1 and 0: pool 0.3, 1, -0.1, 0.
    def rollout(p: float, r: float) -> Rollout:
        first = Round([[Token(CALL)]], history=[NAN], seen=[log(p)])
        return Rollout(
            0, r, [first, Round([[Token(ANSWER)]], history=[log(p)], seen=[NAN])], prior=[log(0.2)]
        )

    credit = make("igpo")(pack([rollout(0.5, 1.0), rollout(0.1, 0.0)]).data)
    pool = np.array([0.3, 1.0, -0.1, 0.0])
    z = (pool - 0.3) / (pool.std(ddof=1) + 1e-6)
    assert credit.advantages_BK[:, 0] == pytest.approx([z[0] + z[1], z[1], z[2] + z[3], z[3]], **FLOAT32)


def test_spread_by_hand() -> None:
    # R = 0, 0 and memory rewards (0.3, 0.1) and none: R' = 0.2, 0; A = +-0.1 / (0.1 sqrt 2 + 1e-6)
    def memory(p: float) -> Round:
        return Round([[Token(MEM)]], memory=[log(p)], history=[log(0.1)])

    first = Round([[Token(CALL)]], memory=[NAN], history=[NAN])
    data = pack([Rollout(0, 0.0, [first, memory(0.4), memory(0.2)]), Rollout(0, 0.0, [first])]).data
    credit = make("spread")(data)
    size = 0.1 / (0.1 * 2**0.5 + 1e-6)
    assert credit.outcome_N == pytest.approx([size, -size], **TIGHT)
    assert credit.advantages_BK[:, 0] == pytest.approx([size, size, size, -size], **FLOAT32)


def test_previous_takes_the_question_alone_in_round_2() -> None:
    rounds = [Round([[Token(MEM)]], memory=[logp], history=[NAN]) for logp in (NAN, log(0.4), log(0.7))]
    data = pack([Rollout(0, 1.0, rounds, prior=[log(0.1)])]).data
    assert memory_term(data, baseline="previous").reward_R == pytest.approx([0, 0.3, 0.3], **TIGHT)
    assert memory_term(data, baseline="none").reward_R == pytest.approx([0, 0.4, 0.7], **TIGHT)
    logs = memory_term(data, baseline="previous", objectives="log").reward_R
    assert logs == pytest.approx([0, log(4), log(0.7 / 0.4)], **TIGHT)


def test_the_correlation_of_memory_and_history() -> None:
    def rounds(*pairs: tuple[float, float]) -> list[Round]:
        first = Round([[Token(CALL)]], memory=[NAN], history=[NAN])
        return [first, *(Round([[Token(MEM)]], memory=[log(m)], history=[log(h)]) for m, h in pairs)]

    same = pack([Rollout(0, 1.0, rounds((0.2, 0.1), (0.4, 0.2), (0.6, 0.3)))]).data
    crossed = pack([Rollout(0, 1.0, rounds((0.2, 0.3), (0.4, 0.2), (0.6, 0.1)))]).data
    assert make("mempo")(same).memory_correlation == pytest.approx(1.0)
    assert make("mempo")(crossed).memory_correlation == pytest.approx(-1.0)
    assert make("mempo", baseline="none")(same).memory_correlation == 0.0


# --- The file itself --------------------------------------------------------------------------------------


@pytest.fixture
def golden() -> dict[str, Any]:
    if not GOLDEN.is_file():
        pytest.skip(f"{GOLDEN} is not there: the numbers above are the same")
    held: dict[str, Any] = json.loads(GOLDEN.read_text())
    return held


def test_the_golden_file(golden: dict[str, Any]) -> None:
    told = golden["outcome_advantage"]
    for name, losers in (("one_winner_of_16", 15), ("one_winner_of_4", 3)):
        for key, (ddof, eps) in {"ddof1_eps1e-6": (1, 1e-6), "ddof0_eps1e-4": (0, 1e-4)}.items():
            found = outcome(group(1, *[0] * losers), ddof, eps).advantage_N
            assert found[: np.size(told[name][key])] == pytest.approx(np.atleast_1d(told[name][key]), **TIGHT)
    for name in ("tie", "singleton"):
        found = outcome(group(*told[name]["rewards"])).advantage_N
        assert found.tolist() == np.atleast_1d(told[name]["advantage"]).tolist()
    unequal = told["rollouts_of_unequal_rounds"]
    data = group(*unequal["rewards_per_rollout"], rounds=tuple(unequal["rounds_per_rollout"]))
    assert outcome(data).advantage_N == pytest.approx(unequal["right_per_rollout"], **TIGHT)
    held = golden["memory_advantage"]
    case = held["case (answer-token log-probs under memory and under the full history, rounds 2..T)"]
    assert case == CASE
    data = trajectories(case)
    term, credit = memory_term(data), make("mempo")(data)
    rows = [row for question in held["result"].values() for row in question["memory_advantage"]]
    assert term.advantage_R == pytest.approx([x for row in rows for x in (0.0, *row)], **TIGHT)
    final = [
        x for question in held["result"].values() for rollout in question["final"] for x in _flat(rollout)
    ]
    assert credit.advantages_BK[data.mask_BK] == pytest.approx(final, **FLOAT32)


def _flat(rows: list[list[float]]) -> list[float]:
    return [x for row in rows for x in row]


def test_the_golden_files_gae(golden: dict[str, Any]) -> None:
    told = golden["gae_rounds"]
    first, second = told["tokens_per_round"]
    values, rewards = told["value"], told["reward (on a round's last token)"]
    data = critic([values[:first], values[first:]], [rewards[first - 1], rewards[first + second - 1]])
    options = {name: told[name] for name in ("gamma_round", "lambda_round")}
    credit = make("gae", **options)(data)
    assert credit.advantages_BK[data.mask_BK] == pytest.approx(told["advantage"], **FLOAT32)
    told = golden["gae_masked"]
    kept = np.flatnonzero(told["generated"])
    data = critic([[told["value"][k]] for k in kept], [told["reward"][k] for k in kept])
    credit = make("gae", gamma_round=told["gamma"], lambda_round=told["lambda"])(data)
    assert credit.advantages_BK[:, 0] == pytest.approx(np.take(told["advantage"], kept), **FLOAT32)


def test_probabilities_of_lengths_are_compared_by_the_geometric_mean_over_tokens() -> None:
    # P(Z | c) = exp(mean log pi): two tokens of probability 0.5 and 0.125 are worth one of 0.25
    mean = float(np.mean(np.log([0.5, 0.125])))
    assert exp(mean) == pytest.approx(0.25)
    data = msgspec.structs.replace(trajectories(CASE), memory_logp_RJ=np.full((11, 1), mean))
    assert memory_term(data, baseline="none").reward_R[1] == pytest.approx(0.25)
