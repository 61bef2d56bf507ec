"""One rollout of a toy run, all estimators side by side: which rollout, and its decisions in words."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from mempo_benchmarks.credit.batch import Batch, play_batch, states_of
from mempo_benchmarks.credit.estimators import advantages, rows, with_critic
from mempo_benchmarks.credit.results import check_seed
from mempo_benchmarks.credit.strips import Decision, Strips, settled
from mempo_env.arrays.layout import SEARCH
from mempo_env.arrays.vector import SearchQAArrayVectorEnv
from mempo_env.errors import ConfigError, lookup
from mempo_trainers.config import Config
from mempo_trainers.credit.data import NOT_GENERATED, ROLES, Floats, Ints
from mempo_trainers.policies.pointer import ArrayPolicy
from mempo_trainers.toy import Toy

_NAMES = {number: name for name, number in ROLES.items()}


def toy_strips(
    task: Toy,
    config: Config,
    policy: ArrayPolicy,
    *,
    reference: str,
    question: int | None = None,
    seed: int = 0,
    name: str,
) -> Strips:
    """Play a step's groups and take the rollout in which estimators disagree most with the reference.

    Args:
        task: Of the run; its own reward pays.
        config: Of the run: how many groups of how many rollouts.
        policy: The run's.
        reference: Name of a row, against which signs are counted.
        question: Only the rollouts of this group, from 0.
        seed: Of all random numbers.
        name: Of the run, for the title.

    Raises:
        ConfigError: if there is no such estimator or question, or the seed is out of range.
    """
    check_seed(seed)
    lookup(rows(), reference, "estimator")
    if question is not None and not 0 <= question < config.questions:
        raise ConfigError(f"--question: wanted 0 to {config.questions - 1}, got {question}")
    batch = play_batch(task, policy, config.questions, config.rollouts, seed)
    critic = with_critic(policy, play_batch(task, policy, config.questions, config.rollouts, seed + 1), seed)
    said = {name: settled(a_BK) for name, a_BK in advantages(critic, batch.rollouts).items()}
    mine_N = np.repeat(np.arange(config.questions), config.rollouts)
    disagree_N = np.where(
        (mine_N == question) | (question is None), _disagreement(batch, said, reference), -1
    )
    rollout = int(disagree_N.argmax())
    return _strips(
        batch, said, rollout, f"{name}, question {mine_N[rollout]}, rollout {rollout % config.rollouts}"
    )


def _disagreement(batch: Batch, said: Mapping[str, Floats], reference: str) -> Floats:
    """How much estimators disagree in each rollout, (N,).

    Signs against the reference count most; where the reference takes no side, signs against each other tell.
    """
    sign_MBK = np.sign(np.stack(list(said.values())))
    against_BK = (sign_MBK * np.sign(said[reference]) < 0).sum(0)
    split_BK = (sign_MBK > 0).sum(0) * (sign_MBK < 0).sum(0)
    score_B = (against_BK + split_BK / 1e4).sum(1).astype(np.float64)
    found_N = np.bincount(batch.rollouts.data.rollout_B, score_B, len(batch.ids)).astype(np.float64)
    return found_N


def _strips(batch: Batch, said: Mapping[str, Floats], rollout: int, title: str) -> Strips:
    data, played = batch.rollouts.data, batch.rollouts
    decisions: list[Decision] = []
    columns: list[tuple[int, int]] = []
    segments = np.flatnonzero(data.rollout_B == rollout)
    for number, (segment, state) in enumerate(zip(segments, states_of(batch, segments), strict=True), 1):
        roles_K = data.roles_BK[segment]
        words = told(state.envs, played.responses.tokens_BK[segment])
        for k in np.flatnonzero(roles_K != NOT_GENERATED).tolist():
            decisions.append(Decision(words[k], _NAMES[int(roles_K[k])], number))
            columns.append((int(segment), k))
    group_n = np.flatnonzero(data.question_N == data.question_N[rollout])
    world = state.envs.world
    return Strips(
        title=title,
        questions=tuple(world.questions.by_id(id).text for id in batch.ids[rollout].split("+")),
        facts={
            "reward": f"{data.outcome_N[rollout]:.2f} ({batch.task.reward})",
            "of its group": ", ".join(f"{reward:.2f}" for reward in data.outcome_N[group_n]),
        },
        decisions=tuple(decisions),
        rows={name: tuple(float(a_BK[at]) for at in columns) for name, a_BK in said.items()},
        about={name: row.about for name, row in rows().items()},
    )


def told(envs: SearchQAArrayVectorEnv, tokens_K: Ints) -> list[str]:
    """The K choices of one round in words, given an environment that is in the state before it."""
    world, layout = envs.world, envs.layout
    view = envs.view_NV[0].tolist()
    objects = [int(world.object_M[fact]) for fact in view]
    named = [world.words[word] if word >= 0 else "" for word in objects]
    asked = [world.words[word] for word in world.subject_Q[envs.asked_Nn[0]].tolist()]
    facts = [world.sentences[fact] if fact >= 0 else "" for fact in view]
    kept = [
        f"{'keep' if keep else 'drop'} {fact}"
        for keep, fact in zip(tokens_K[layout.keep].tolist(), facts, strict=True)
    ]
    searched = tokens_K[layout.operation] == SEARCH
    given = [*named, "unknown"]
    return [
        *kept,
        "to search, not to answer" if searched else "to answer, not to search",
        f"search {[*asked, *named][tokens_K[layout.entity]]}",
        *(f"answer {i}: {given[slot]}" for i, slot in enumerate(tokens_K[layout.candidates].tolist(), 1)),
    ]
