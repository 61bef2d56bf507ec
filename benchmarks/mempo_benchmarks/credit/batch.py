"""A batch of groups as a trainer would see it, and the states of the environment that it went through."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from msgspec import Struct

from mempo_env.arrays.vector import SearchQAArrayVectorEnv
from mempo_env.errors import ConfigError, ResultsError
from mempo_trainers.config import Config
from mempo_trainers.credit.data import MEM, Ints
from mempo_trainers.play import rollouts
from mempo_trainers.policies.base import Rollouts
from mempo_trainers.policies.pointer import ArrayContexts, ArrayPolicy
from mempo_trainers.run_files import read_settings
from mempo_trainers.toy import Toy, draw_questions, restore

SB3 = "sb3-ppo"
"""The algorithm that runs of Stable-Baselines3's own loop name."""


def open_run(folder: Path) -> tuple[Toy, Config, ArrayPolicy]:
    """The task, the settings and the trained policy of a run of `mempo train toy`.

    Raises:
        ResultsError: if there is none, or it is of another kind.
    """
    config = read_settings(folder).get("config")
    if isinstance(config, dict) and config.get("algo") == SB3:
        raise ResultsError(
            f"{folder}: wanted a run of `mempo train toy`, got one of `mempo train sb3`; its policy cannot "
            "say how likely an answer is from a memory, which the estimators start from"
        )
    return restore(folder)


class Batch(Struct, frozen=True, eq=False):
    """Groups of rollouts of different questions, with all that is needed to play them again.

    Attributes:
        task: What is played.
        ids: The question (or objectives, joined by "+") of each of the N rollouts.
        seed: Environment i was reset with seed + i.
        rollouts: What was played.
    """

    task: Toy
    ids: Sequence[str]
    seed: int
    rollouts: Rollouts


class States(Struct, frozen=True, eq=False):
    """S states of episodes before the same round, and what was kept there.

    Attributes:
        envs: Environment s is in state s.
        contexts: What the policy saw there.
        kept_SV: Which facts it kept, 0 or 1.
        place_S: Where each state stands among all that were asked for.
    """

    envs: SearchQAArrayVectorEnv
    contexts: ArrayContexts
    kept_SV: Ints
    place_S: Ints


def play_batch(task: Toy, policy: ArrayPolicy, questions: int, group: int, seed: int) -> Batch:
    """Groups of `group` rollouts of `questions` questions of the train split."""
    envs, chance = task.envs(questions * group), np.random.default_rng([seed, 0])
    ids = np.repeat(draw_questions(envs, questions, chance), group).tolist()
    generator = torch.Generator().manual_seed(int(chance.integers(1 << 62)))
    env_seed = int(chance.integers(1 << 31))
    return Batch(task, ids, env_seed, rollouts(policy, envs, ids, generator, env_seed))


def sample_segments(batch: Batch, each: int, seed: int) -> Ints:
    """Segments (S,) of round 2 or later with a memory operation: `each` of every question, or all it has.

    A segment with a fact in view has one; nobody can keep anything where there is nothing to keep.
    """
    data, chance = batch.rollouts.data, np.random.default_rng([seed, 1])
    open_B = (data.roles_BK == MEM).any(1) & (data.number_R[data.round_B] >= 2)
    question_B = data.question_N[data.rollout_B]
    drawn = [
        chance.permutation(np.flatnonzero(open_B & (question_B == question)))[:each]
        for question in np.unique(data.question_N)
    ]
    segments: Ints = np.sort(np.concatenate(drawn))
    if not len(segments):
        raise ConfigError("wanted rollouts with a round 2 and facts in view, got none: train for longer")
    return segments


def states_of(batch: Batch, segments_S: Ints) -> list[States]:
    """The states before some segments, by round: the batch is played again and stopped there."""
    data, played = batch.rollouts.data, batch.rollouts
    number_B, rollout_B = data.number_R[data.round_B], data.rollout_B
    envs, found = batch.task.envs(len(batch.ids)), []
    envs.reset(seed=batch.seed, options={"question_id": list(batch.ids)})
    for number in range(1, int(number_B[segments_S].max()) + 1):
        place_s = np.flatnonzero(number_B[segments_S] == number)
        if len(place_s):
            rows = segments_S[place_s]
            kept_sV = played.responses.tokens_BK[rows][:, envs.layout.keep]
            found.append(States(envs.fork(rollout_B[rows].tolist()), played.contexts[rows], kept_sV, place_s))
        now = np.flatnonzero(number_B == number)
        actions = np.zeros((len(batch.ids), played.responses.tokens_BK.shape[1]), np.int64)
        actions[rollout_B[now]] = played.responses.tokens_BK[now]
        envs.step(actions)
    return found
