"""Rollouts in the array environment: what is written down of them is what happened."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from arrays_play import make, make_vec
from mempo_env.arrays.layout import ANSWER, SEARCH
from mempo_env.arrays.vector import SearchQAArrayVectorEnv
from mempo_trainers.config import Config
from mempo_trainers.credit.data import MEM
from mempo_trainers.play import rollouts
from mempo_trainers.policies.base import Responses, Rollouts
from mempo_trainers.policies.pointer import ArrayContexts, ArrayPolicy
from mempo_trainers.toy import Toy, ToyDraw, draw_questions
from train_help import metrics, played, seeded, train, wild, with_config


class Planned(ArrayPolicy):
    """Does in every environment what a plan says, round by round."""

    def __init__(self, envs: SearchQAArrayVectorEnv, plan: Sequence[np.ndarray]) -> None:
        super().__init__(envs.layout, learning_rate=0.1, max_grad_norm=1, seed=0)
        self.plan = iter(plan)

    def act(self, contexts: ArrayContexts, generator: torch.Generator) -> Responses:
        tokens = np.repeat(next(self.plan)[None], len(contexts.mask_BA), 0)
        return Responses(tokens, self._roles(contexts, tokens), np.zeros(tokens.shape, np.float32))


def action(
    envs: SearchQAArrayVectorEnv,
    keep: Sequence[int],
    search: int | None = None,
    answer: Sequence[int] = (),
) -> np.ndarray:
    """Keep these slots; search for an entity or answer with the facts of these slots."""
    layout = envs.layout
    out = np.zeros(layout.decisions, np.int64)
    out[list(keep)] = 1
    out[layout.operation] = SEARCH if search is not None else ANSWER
    out[layout.entity] = search or 0
    out[layout.candidates] = answer or 0
    return out


# --- A planted episode -------------------------------------------------------------------------------------


@pytest.fixture
def planted() -> tuple[SearchQAArrayVectorEnv, Rollouts, tuple[int, ...]]:
    """Two questions, three facts an article: search a, keep gold a and another, search b, answer both.

    Returns the environment, the rollouts of two copies, and the facts (gold a, the other, gold b).
    """
    envs = make_vec(2, objectives=2, facts=3, capacity=4)
    a, b = (question.id for question in envs.questions[:2])
    first, second = (envs.world.row_of[question.text] for question in envs.questions[:2])
    article_a, article_b = (envs.world.article_AF[row].tolist() for row in (first, second))
    gold_a, gold_b = int(envs.world.gold_Qh[first, 0]), int(envs.world.gold_Qh[second, 0])
    slot_a = article_a.index(gold_a)
    other = article_a[1 - min(slot_a, 1)]
    slot_other = article_a.index(other)
    place_a, place_b = sorted((slot_a, slot_other)).index(slot_a), 2 + article_b.index(gold_b)
    plan = [
        action(envs, [], search=0),
        action(envs, [slot_a, slot_other], search=1),
        action(envs, [place_a, place_b], answer=[place_a, place_b]),
    ]
    found = rollouts(Planned(envs, plan), envs, [f"{a}+{b}"] * 2, seeded(0), 0)
    return envs, found, (gold_a, other, gold_b)


def test_rounds_stand_in_order_of_their_rollouts(
    planted: tuple[SearchQAArrayVectorEnv, Rollouts, tuple[int, ...]],
) -> None:
    _, found, _ = planted
    assert found.data.rollout_R.tolist() == [0, 0, 0, 1, 1, 1]
    assert found.data.number_R.tolist() == [1, 2, 3, 1, 2, 3]
    assert found.data.round_B.tolist() == [0, 1, 2, 3, 4, 5]
    assert found.data.question_N.tolist() == [0, 0]


def test_right_answers_are_paid_and_counted(
    planted: tuple[SearchQAArrayVectorEnv, Rollouts, tuple[int, ...]],
) -> None:
    _, found, _ = planted
    assert found.data.outcome_N.tolist() == [1, 1] and found.data.shaping_N.tolist() == [0, 0]
    assert found.data.reward_R is not None and found.data.reward_R.tolist() == [0, 0, 1, 0, 0, 1]
    assert found.success_N.tolist() == [True, True]
    assert found.data.found_R is not None and found.data.found_R.tolist() == [1, 1, 0, 1, 1, 0]
    assert found.data.recall_R is not None and found.data.recall_R.tolist() == [0.5, 1, 1, 0.5, 1, 1]
    told = {name: found.extra[name] for name in ("em", "rounds", "recall", "invalid", "memory_facts")}
    assert told == {"em": 1, "rounds": 3, "recall": 1, "invalid": 0, "memory_facts": pytest.approx(4 / 3)}


def test_an_entry_is_what_is_newly_written(
    planted: tuple[SearchQAArrayVectorEnv, Rollouts, tuple[int, ...]],
) -> None:
    """Gold a is kept again in round 3: that writes nothing new. The second copy has entries of its own."""
    envs, found, (gold_a, other, gold_b) = planted
    entry = found.data.entry_BK
    assert entry is not None
    size = len(envs.world.sentences)
    for copy in (0, 1):
        written = [sorted(row[row >= 0].tolist()) for row in entry[3 * copy : 3 * copy + 3]]
        assert written == [
            [],
            sorted([copy * size + gold_a, copy * size + other]),
            [copy * size + gold_b],
        ]
    assert (found.responses.roles_BK[entry >= 0] == MEM).all()


def test_an_entry_is_used_where_it_answers(
    planted: tuple[SearchQAArrayVectorEnv, Rollouts, tuple[int, ...]],
) -> None:
    envs, found, (gold_a, _, gold_b) = planted
    size = len(envs.world.sentences)
    assert found.data.used_UC is not None
    assert sorted(map(tuple, found.data.used_UC.tolist())) == sorted(
        [(2, gold_a), (2, gold_b), (5, size + gold_a), (5, size + gold_b)]
    )


def test_views_hold_what_memory_and_history_held(
    planted: tuple[SearchQAArrayVectorEnv, Rollouts, tuple[int, ...]],
) -> None:
    envs, found, (gold_a, other, gold_b) = planted
    first, second = (set(envs.world.article_AF[row].tolist()) for row in envs.asked_Nn[0])

    def held(views: object) -> list[set[int]]:
        return [set(row[row >= 0].tolist()) for row in views.facts_RS]  # type: ignore[attr-defined]

    assert held(found.memory_views)[:3] == [set(), {gold_a, other}, {gold_a, gold_b}]
    assert held(found.history_views)[:3] == [set(), first, first | second]
    assert held(found.seen_views)[:3] == [first, first | second, first | second]
    assert held(found.prior_views) == [set(), set()]
    assert (found.memory_views.asked_Rn == envs.asked_Nn[0]).all()


def test_a_bridge_is_used_where_its_object_is_searched() -> None:
    envs = make_vec(1, objectives=1, hops=2, facts=2)
    question = envs.questions[0]
    gold = envs.world.gold_Qh[envs.world.row_of[question.text]]
    bridge, last = gold.tolist()
    articles = envs.world.article_AF[envs.world.article_of_W[envs.world.subject_M[gold]]].tolist()
    slot, place = articles[0].index(bridge), 1 + articles[1].index(last)
    plan = [
        action(envs, [], search=0),
        action(envs, [slot], search=1 + slot),
        action(envs, [0, place], answer=[place]),
    ]
    found = rollouts(Planned(envs, plan), envs, [question.id], seeded(0), 0)
    assert found.success_N.all()
    assert found.data.used_UC is not None
    assert found.data.used_UC.tolist() == [[1, bridge], [2, last]]


# --- Any episodes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("objectives, hops, noise", [(1, 1, 0.0), (2, 2, 0.0), (3, 1, 0.3)])
def test_the_text_environment_says_the_same_of_the_same_actions(
    objectives: int, hops: int, noise: float
) -> None:
    """Each rollout is played again, alone, in the environment that goes through the text protocol."""
    task = {"objectives": objectives, "hops": hops, "retriever_noise": noise}
    envs = make_vec(6, **task)
    chance = np.random.default_rng(4)
    ids = draw_questions(envs, 6, chance)
    found = rollouts(wild(envs, size=0.4), envs, ids, seeded(1), seed=30)
    env = make(**task)
    for i, id in enumerate(ids):
        env.reset(seed=30 + i, options={"question_id": id})
        rows = np.flatnonzero(found.data.rollout_R == i)
        ended = False
        for row in rows:
            assert not ended
            _, reward, terminated, truncated, info = env.step(found.responses.tokens_BK[row])
            assert found.data.reward_R is not None and reward == found.data.reward_R[row]
            ended = terminated or truncated
        assert ended
        assert (info["score"].em_all == 1) == found.success_N[i]


def test_sums_over_rounds_are_those_of_the_rollouts() -> None:
    envs = make_vec(12, objectives=2)
    found = played(wild(envs, size=0.4), envs, group=3)
    data = found.data
    assert data.reward_R is not None and data.found_R is not None and data.recall_R is not None
    paid = np.bincount(data.rollout_R, data.reward_R)
    np.testing.assert_allclose(paid, data.outcome_N + data.shaping_N)
    last = np.append(np.diff(data.rollout_R) != 0, True)
    np.testing.assert_allclose(np.bincount(data.rollout_R, data.found_R) / 2, data.recall_R[last])
    assert (np.lexsort((data.number_R, data.rollout_R)) == np.arange(len(data.rollout_R))).all()
    assert data.number_R[last].tolist() == data.rounds_N.tolist()
    assert [len(set(data.question_N[i : i + 3])) for i in (0, 3, 6, 9)] == [1] * 4


def test_states_are_equal_where_observations_are_but_for_the_rounds_left() -> None:
    envs = make_vec(8, objectives=1)
    found = played(wild(envs, size=0.4), envs, group=4)
    plain = found.contexts.observation_BD.copy()
    envs.layout.split(plain).budget_B4[:, :2] = 0
    question = found.data.question_N[found.data.rollout_B]
    state = found.data.state_R
    assert state is not None and len(set(state.tolist())) < len(state)
    for i in range(len(state)):
        same = (plain == plain[i]).all(1) & (question == question[i])
        np.testing.assert_array_equal(state == state[i], same)


def test_equal_seeds_play_equal_rollouts() -> None:
    envs = make_vec(6, objectives=2, retriever_noise=0.3)
    policy = wild(envs, size=0.4)
    one, same, other = (played(policy, envs, seed=seed).responses.tokens_BK for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, same)
    assert one.shape != other.shape or (one != other).any()


# --- What is asked -----------------------------------------------------------------------------------------


def plainly_drawn(envs: SearchQAArrayVectorEnv, number: int, seed: int) -> list[str]:
    """Draws that do not know of each other."""
    ids, n, chance = [q.id for q in envs.questions], envs.layout.objectives, np.random.default_rng(seed)
    return ["+".join(ids[i] for i in chance.choice(len(ids), n, replace=False)) for _ in range(number)]


@pytest.mark.parametrize("objectives, number", [(1, 8), (1, 36), (2, 200)])
def test_groups_of_a_step_are_of_different_questions(objectives: int, number: int) -> None:
    """Plain draws of these sizes repeat a question under some seeds; where they do not, they are kept."""
    envs, repeated = make_vec(1, objectives=objectives, questions=60), 0
    for seed in range(30):
        drawn = draw_questions(envs, number, np.random.default_rng(seed))
        assert len({frozenset(ids.split("+")) for ids in drawn}) == len(drawn) == number
        plain = plainly_drawn(envs, number, seed)
        alone = len({frozenset(ids.split("+")) for ids in plain}) == number
        repeated += not alone
        assert drawn == plain or not alone
    assert repeated


def test_more_draws_than_questions_repeat_some() -> None:
    envs = make_vec(1, questions=60)
    assert draw_questions(envs, 37, np.random.default_rng(2)) == plainly_drawn(envs, 37, 2)


def test_every_draw_is_a_group_of_its_own_even_of_one_question() -> None:
    """40 draws of the 36 questions there are: 40 groups, as large as they were drawn."""
    task = Toy(objectives=1, worlds=60)
    found = ToyDraw(task.make_policy(Config()), task, 3, 0)(1, 0, 40)
    assert np.bincount(found.data.question_N).tolist() == [3] * 40


def test_a_question_drawn_twice_does_not_end_dynamic_sampling(tmp_path: Path) -> None:
    """8 of 12 questions: plain draws repeat one in nearly every step."""
    config = with_config(credit="grpo", questions=8, dynamic_sampling=8)
    train(tmp_path / "run", Toy(objectives=1, worlds=20), config)
    assert all(row["groups_generated"] >= 8 for row in metrics(tmp_path / "run"))
