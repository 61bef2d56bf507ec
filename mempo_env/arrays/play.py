"""The rules of the environment on integers: N episodes advance by one round, without any text."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from mempo_env.arrays.facts import Ints
from mempo_env.arrays.layout import SEARCH
from mempo_env.arrays.observe import Flags, View
from mempo_env.arrays.task import Task
from mempo_env.arrays.world import FACT_WORDS
from mempo_env.rewards import RewardConfig

Floats: TypeAlias = NDArray[np.float64]

RUNNING, ANSWERED, OUT_OF_ROUNDS = 0, 1, 2
"""Whether and why an episode ended."""


class State(Struct, frozen=True, eq=False):
    """N episodes under way; a round makes new arrays and never changes old ones.

    Attributes:
        asked_Nn: Rows of the questions.
        view_NV: The facts in view, those in memory first, -1 in the rest.
        memory_Nc: The facts in memory, in the order in which they were kept, -1 in the rest.
        words_N: Words of the memory's text.
        searched_N: The word searched for in the last round, -1 if it was no search.
        rounds_N: Rounds played.
        shown_NR: The different articles shown so far, in order, -1 in the rest.
        gold_N: Gold facts shown so far.
        ended_N: `RUNNING`, `ANSWERED` or `OUT_OF_ROUNDS`.
        em_N: Share of the objectives that were answered rightly; 0 until there is an answer.
    """

    asked_Nn: Ints
    view_NV: Ints
    memory_Nc: Ints
    words_N: Ints
    searched_N: Ints
    rounds_N: Ints
    shown_NR: Ints
    gold_N: Ints
    ended_N: Ints
    em_N: Floats


class Result(NamedTuple):
    """What a round came to; all 0 for an episode that had ended before.

    Attributes:
        reward_N: The whole reward.
        outcome_N: Its weighted outcome term.
        shaping_N: The sum of its other weighted terms.
        invalid_N: 1 = the action was invalid.
        found_N: New gold facts that the round showed.
    """

    reward_N: Floats
    outcome_N: Floats
    shaping_N: Floats
    invalid_N: Flags
    found_N: Ints


def begin(task: Task, asked_Nn: Ints) -> State:
    """Episodes before their first round."""
    size = len(asked_Nn)
    nothing, zero = np.full((size, task.layout.view), -1), np.zeros(size, np.int64)
    return State(
        asked_Nn=asked_Nn,
        view_NV=nothing,
        memory_Nc=nothing[:, : task.layout.capacity],
        words_N=zero,
        searched_N=nothing[:, 0],
        rounds_N=zero,
        shown_NR=np.full((size, task.max_rounds), -1),
        gold_N=zero,
        ended_N=zero,
        em_N=np.zeros(size),
    )


def view(task: Task, state: State) -> View:
    """What is in view of these episodes."""
    running_N = state.ended_N == RUNNING
    return View(
        asked_BN=state.asked_Nn,
        facts_BV=state.view_NV,
        memory_B=(state.memory_Nc >= 0).sum(axis=1),
        searched_B=state.searched_N,
        left_B=np.where(running_N, task.max_rounds - state.rounds_N, 0),
    )


def advance(
    task: Task, state: State, actions_NK: Ints, noise: Callable[[Ints], Ints]
) -> tuple[State, Result]:
    """Play one round in every episode that runs.

    Args:
        task: World, layout and rules.
        state: Before the round.
        actions_NK: An action each; those of ended episodes are ignored.
        noise: Replaces articles found (-1: none) by random ones, where the retriever is noisy.
    """
    world, layout = task.world, task.layout
    chosen, live_N = _read(task, state, actions_NK), state.ended_N == RUNNING
    invalid_N = live_N & chosen.invalid_N
    valid_N = live_N & ~invalid_N
    searching_N, answering_N = valid_N & chosen.search_N, valid_N & ~chosen.search_N
    written_N, kept_N = valid_N & (state.rounds_N > 0), (chosen.kept_NV >= 0).sum(axis=1)

    memory_Nc = np.where(valid_N[:, None], _packed(chosen.kept_NV)[:, : layout.capacity], state.memory_Nc)
    article_N = noise(np.where(searching_N, world.article_of_W[chosen.target_N], -1))
    article_NF = np.where(article_N[:, None] >= 0, world.article_AF[article_N], -1)
    known_NF = (article_NF[:, :, None] == memory_Nc[:, None]).any(axis=2)
    view_NV = _packed(np.concatenate([memory_Nc, np.where(known_NF, -1, article_NF)], axis=1))
    new_N = (article_N >= 0) & ~(state.shown_NR == article_N[:, None]).any(axis=1)
    found_N = new_N & (state.asked_Nn == world.question_of_A[article_N][:, None]).any(axis=1)
    shown_NR = state.shown_NR.copy()
    shown_NR[new_N, (state.shown_NR[new_N] >= 0).sum(axis=1)] = article_N[new_N]

    rounds_N = state.rounds_N + live_N
    right_Nn = (chosen.answer_Nn == world.answer_Q[state.asked_Nn]) & answering_N[:, None]
    out_N = live_N & ~answering_N & (rounds_N == task.max_rounds)
    after = State(
        asked_Nn=state.asked_Nn,
        view_NV=np.where(live_N[:, None], view_NV, state.view_NV),
        memory_Nc=memory_Nc,
        words_N=np.where(written_N, np.maximum(FACT_WORDS * kept_N, 1), state.words_N),
        searched_N=np.where(live_N, np.where(searching_N, chosen.target_N, -1), state.searched_N),
        rounds_N=rounds_N,
        shown_NR=shown_NR,
        gold_N=state.gold_N + found_N,
        ended_N=np.where(answering_N, ANSWERED, np.where(out_N, OUT_OF_ROUNDS, state.ended_N)),
        em_N=np.where(answering_N, right_Nn.mean(axis=1), state.em_N),
    )
    return after, _pay(task.reward, after, right_Nn, invalid_N, written_N, answering_N | out_N, found_N)


class _Choices(NamedTuple):
    """What actions choose: facts kept (-1: none), word searched for, words answered, and whether they may."""

    kept_NV: Ints
    search_N: Flags
    target_N: Ints
    answer_Nn: Ints
    invalid_N: Flags


def _read(task: Task, state: State, actions_NK: Ints) -> _Choices:
    """Read the actions as the text environment reads their texts."""
    world, layout, rows_N1 = task.world, task.layout, np.arange(len(actions_NK))[:, None]
    kept_NV = np.where(actions_NK[:, layout.keep] == 1, state.view_NV, -1)
    search_N = actions_NK[:, layout.operation] == SEARCH
    objects_NV, given_Nn = world.object_M[state.view_NV], actions_NK[:, layout.candidates]
    entities_NE = np.concatenate([world.subject_Q[state.asked_Nn], objects_NV], axis=1)
    target_N = entities_NE[rows_N1[:, 0], actions_NK[:, layout.entity]]
    nameless_N = (target_N < 0) | (target_N >= world.names)
    unknown_Nn = given_Nn == layout.view
    answer_Nn = np.where(unknown_Nn, -1, objects_NV[rows_N1, np.where(unknown_Nn, 0, given_Nn)])
    empty_N = (answer_Nn < 0) & ~unknown_Nn & (layout.objectives == 1)
    overfull_N = (kept_NV >= 0).sum(axis=1) > layout.capacity
    invalid_N = overfull_N | np.where(search_N, nameless_N, empty_N[:, 0])
    return _Choices(kept_NV, search_N, target_N, answer_Nn, invalid_N)


def _packed(facts_BX: Ints) -> Ints:
    """The facts of each row in their order, then the empty places (-1)."""
    order_BX = np.argsort(facts_BX < 0, axis=1, kind="stable")
    packed: Ints = facts_BX[np.arange(len(facts_BX))[:, None], order_BX]
    return packed


def _pay(
    reward: RewardConfig,
    after: State,
    right_Nn: Flags,
    invalid_N: Flags,
    written_N: Flags,
    ended_N: Flags,
    found_N: Flags,
) -> Result:
    """The reward's terms, added in the order of `RewardTerms`; of words that are one, F1 is exact match."""
    share_N = right_Nn.mean(axis=1)
    raw_N = (share_N == 1).astype(np.float64) if reward.outcome == "em_all" else share_N
    spare_N = np.maximum(0.0, 1.0 - after.words_N / reward.memory_budget)
    outcome_N = raw_N * reward.outcome_weight
    invalid, written = invalid_N * reward.invalid_action, written_N * reward.write_cost
    efficiency = np.where(ended_N, spare_N, 0.0) * reward.memory_efficiency
    return Result(
        reward_N=outcome_N + invalid + written + efficiency,
        outcome_N=outcome_N,
        shaping_N=invalid + written + efficiency,
        invalid_N=invalid_N,
        found_N=found_N.astype(np.int64),
    )
