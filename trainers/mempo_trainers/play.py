"""Rollouts of an array policy in the array environment."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import torch
from msgspec import Struct
from numpy.typing import NDArray

from mempo_env.arrays.vector import SearchQAArrayVectorEnv
from mempo_trainers.credit.data import Ints, Trajectories
from mempo_trainers.policies.base import Responses, Rollouts
from mempo_trainers.policies.pointer import ArrayContexts, ArrayPolicy, FactViews


class _Round(Struct, frozen=True, eq=False):
    """One round of the environments that were still running."""

    rollout_b: Ints
    contexts: ArrayContexts
    responses: Responses
    view_bV: Ints
    memory_before_bc: Ints
    memory_bc: Ints
    history_bS: Ints
    seen_bS: Ints
    reward_b: NDArray[np.float64]
    shaping_b: NDArray[np.float64]
    found_b: NDArray[np.float64]
    recall_b: NDArray[np.float64]
    invalid_b: NDArray[np.bool_]


def rollouts(
    policy: ArrayPolicy,
    envs: SearchQAArrayVectorEnv,
    question_ids: Sequence[str],
    generator: torch.Generator,
    seed: int,
    question_N: Ints | None = None,
) -> Rollouts:
    """Play one episode in each environment to its end.

    Args:
        policy: Who plays.
        envs: As many environments as questions.
        question_ids: The objectives of each.
        generator: Of the policy's choices.
        seed: Environment i gets seed + i (for the noise of its retriever).
        question_N: The group of each; None: those of equal objectives are one.
    """
    observation, infos = envs.reset(seed=seed, options={"question_id": list(question_ids)})
    running = np.arange(envs.num_envs)
    outcome, success, em = np.zeros(envs.num_envs), np.zeros(envs.num_envs, bool), np.zeros(envs.num_envs)
    rounds: list[_Round] = []
    seconds = 0.0
    while len(running):
        contexts = ArrayContexts(observation[running], infos["action_mask"][running])
        responses = policy.act(contexts, generator)
        view, history, before = envs.view_NV.copy(), envs.seen_NS.copy(), envs.memory_Nc.copy()
        actions = np.zeros((envs.num_envs, responses.tokens_BK.shape[1]), np.int64)
        actions[running] = responses.tokens_BK
        start = time.perf_counter()
        observation, reward, terminated, truncated, infos = envs.step(actions)
        seconds += time.perf_counter() - start
        measured = (infos[name][running] for name in ("shaping", "found", "recall", "invalid"))
        rounds.append(
            _Round(
                running,
                contexts,
                responses,
                view[running],
                before[running],
                envs.memory_Nc[running].copy(),
                history[running],
                envs.seen_NS[running].copy(),
                reward[running],
                *measured,
            )
        )
        ended = running[(terminated | truncated)[running]]
        outcome[ended], success[ended], em[ended] = (
            infos[name][ended] for name in ("outcome", "success", "em")
        )
        running = running[~(terminated | truncated)[running]]
    if question_N is None:
        question_N = np.unique(question_ids, return_inverse=True)[1]
    played = _gather(envs, rounds, question_N, outcome, success, em)
    extra = {**played.extra, "environment_seconds": seconds / len(rounds)}
    return msgspec.structs.replace(played, extra=extra)


def _gather(
    envs: SearchQAArrayVectorEnv,
    rounds: list[_Round],
    question_N: Ints,
    outcome_N: NDArray[np.float64],
    success_N: NDArray[np.bool_],
    em_N: NDArray[np.float64],
) -> Rollouts:
    """Put rounds in the order of their rollouts, and read off what credit is computed from."""
    number = np.concatenate([np.full(len(r.rollout_b), t) for t, r in enumerate(rounds, 1)])
    order = np.lexsort((number, np.concatenate([r.rollout_b for r in rounds])))
    played, number = _join(rounds, order), number[order]
    rollout, tokens = played.rollout_b, played.responses.tokens_BK
    entry, used = _entries(envs, tokens, played.view_bV, played.memory_before_bc, rollout)
    data = Trajectories(
        question_N=question_N.astype(np.int64),
        outcome_N=outcome_N,
        shaping_N=np.bincount(rollout, played.shaping_b, len(outcome_N)).astype(np.float64),
        masked_N=np.zeros(len(outcome_N), bool),
        rollout_R=rollout,
        number_R=number,
        round_B=np.arange(len(rollout)),
        roles_BK=played.responses.roles_BK,
        reward_R=played.reward_b,
        found_R=played.found_b,
        recall_R=played.recall_b,
        state_R=_states(envs, played.contexts.observation_BD, question_N[rollout]),
        logprobs_BK=played.responses.logprobs_BK.astype(np.float64),
        entry_BK=entry,
        used_UC=used,
    )
    asked = envs.asked_Nn[rollout]
    return Rollouts(
        data=data,
        contexts=played.contexts,
        responses=played.responses,
        memory_views=FactViews(envs.world, asked, played.memory_bc),
        history_views=FactViews(envs.world, asked, played.history_bS),
        seen_views=FactViews(envs.world, asked, played.seen_bS),
        prior_views=FactViews(envs.world, envs.asked_Nn, np.full((envs.num_envs, 1), -1)),
        success_N=success_N,
        extra={"em": float(em_N.mean()), **_measures(envs, played, number)},
    )


def _join(parts: Sequence[Any], order: Ints) -> Any:
    """Arrays, or structs of arrays, one after another, and then in an order."""
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)[order]
    fields = zip(*map(msgspec.structs.astuple, parts), strict=True)
    return type(parts[0])(*(_join(field, order) for field in fields))


def _measures(envs: SearchQAArrayVectorEnv, played: _Round, number: Ints) -> dict[str, float]:
    """What the metrics tell of the rounds."""
    kept, later = (played.memory_bc >= 0).sum(1), number >= 2
    last = np.diff(played.rollout_b, append=-1) != 0
    return {
        "rounds": len(number) / envs.num_envs,
        "memory_facts": float(kept.mean()),
        "memory_length": float(envs.state.words_N.mean()),
        "memory_empty": float((kept[later] == 0).mean()) if later.any() else 0.0,
        "recall": float(played.recall_b[last].mean()),
        "invalid": float(played.invalid_b.mean()),
    }


def _states(envs: SearchQAArrayVectorEnv, observation_BD: NDArray[np.float32], question_B: Ints) -> Ints:
    """Equal for equal observations of one question, the rounds left aside."""
    plain = observation_BD.copy()
    envs.layout.split(plain).budget_B4[:, :2] = 0
    known: dict[tuple[int, bytes], int] = {}
    rows = zip(question_B.tolist(), plain, strict=True)
    return np.array([known.setdefault((q, row.tobytes()), len(known)) for q, row in rows], np.int64)


def _entries(
    envs: SearchQAArrayVectorEnv,
    tokens_BK: NDArray[np.int64],
    view_BV: Ints,
    memory_BC: Ints,
    rollout_B: Ints,
) -> tuple[Ints, Ints]:
    """The entry that each memory token newly writes (-1: none), and rows (round, entry) of its uses.

    An entry is a fact of a rollout. It is used when its object is searched for, or given as an answer.
    """
    layout = envs.layout
    name = np.where(view_BV >= 0, rollout_B[:, None] * len(envs.world.sentences) + view_BV, -1)
    old = (view_BV[:, :, None] == memory_BC[:, None, :]).any(2)
    entry = np.full(tokens_BK.shape, -1, np.int64)
    entry[:, layout.keep] = np.where((tokens_BK[:, layout.keep] == 1) & ~old, name, -1)
    slot = tokens_BK[:, layout.entity] - layout.objectives
    searched = (tokens_BK[:, layout.operation] == 0) & (slot >= 0)
    chosen = np.where(searched, slot, -1)[:, None]
    picked = np.where(tokens_BK[:, layout.operation, None] == 1, tokens_BK[:, layout.candidates], -1)
    slots = np.concatenate([chosen, np.where(picked < layout.view, picked, -1)], 1)
    rounds, which = np.nonzero(slots >= 0)
    uses = np.stack([rounds, name[rounds, slots[rounds, which]]], 1)
    written = np.isin(uses[:, 1], entry[entry >= 0])
    return entry, np.unique(uses[written], axis=0)
