"""The toy task: which environment, which policy, and how it plays a step's rollouts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec
import numpy as np
import torch
from msgspec import Meta

from mempo_env.arrays.facts import MOST_FACTS
from mempo_env.arrays.layout import MOST
from mempo_env.arrays.vector import SearchQAArrayVectorEnv
from mempo_env.errors import ResultsError
from mempo_env.rewards import preset
from mempo_env.settings import MOST_WHOLE, Count, Settings, Share
from mempo_env.types import Split
from mempo_trainers.config import Config
from mempo_trainers.grpo import grpo
from mempo_trainers.play import rollouts
from mempo_trainers.policies.base import Rollouts
from mempo_trainers.policies.pointer import ArrayPolicy
from mempo_trainers.ppo import ppo
from mempo_trainers.run import Run, load
from mempo_trainers.run_files import SETTINGS, conclude, read_settings
from mempo_trainers.threads import one_thread

LOOPS = {"grpo": grpo, "ppo": ppo}

_Few: TypeAlias = Annotated[int, Meta(ge=1, le=MOST)]


class Toy(Settings, frozen=True):
    """The task and the policy of a toy run; see `SearchQAArrayEnv` for what is not said here.

    Attributes:
        policy: "pointer" or "tabular".
        objectives: Questions in one episode.
        hops: Articles that a question leads through.
        capacity: Facts that the memory holds; None: 2 more than all questions need.
        facts: Facts in an article.
        max_rounds: None: twice as many as are needed, at least 4.
        retriever_noise: Probability that a search shows a random article.
        reward: Name of a preset in `mempo_env.rewards.PRESETS`: "em_all", "em_mean", "f1_mean" ...
        worlds: Questions in the world; three of five are trained on.
    """

    policy: str = "pointer"
    objectives: Count = 4
    hops: Count = 1
    capacity: _Few | None = None
    facts: Annotated[int, Meta(ge=1, le=MOST_FACTS)] = 5
    max_rounds: _Few | None = None
    retriever_noise: Share = 0.0
    reward: str = "em_all"
    worlds: Annotated[int, Meta(ge=10, le=MOST_WHOLE)] = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        preset(self.reward)

    def envs(self, number: int, split: Split = "train") -> SearchQAArrayVectorEnv:
        """Environments of this task."""
        return SearchQAArrayVectorEnv(
            number,
            objectives=self.objectives,
            hops=self.hops,
            capacity=self.capacity,
            facts=self.facts,
            questions=self.worlds,
            split=split,
            max_rounds=self.max_rounds,
            reward=self.reward,
            retriever_noise=self.retriever_noise,
        )

    def make_policy(self, config: Config) -> ArrayPolicy:
        """The untrained policy of a run."""
        return ArrayPolicy(
            self.envs(1).layout,
            self.policy,
            learning_rate=config.learning_rate,
            max_grad_norm=config.max_grad_norm,
            seed=config.seed,
        )


class ToyDraw:
    """Rollouts by number: those of a step are the same whenever the same policy is asked for them.

    Groups of several rollouts are of different questions each; single rollouts, of no group, may repeat one.

    Args:
        policy: Who plays.
        task: What is played.
        rollouts: Rollouts of each question, G.
        seed: Of the run.
        split: Whose questions.
    """

    def __init__(
        self, policy: ArrayPolicy, task: Toy, rollouts: int, seed: int, split: Split = "train"
    ) -> None:
        self.policy, self.task, self.group, self.seed, self.split = policy, task, rollouts, seed, split
        self._envs: dict[int, SearchQAArrayVectorEnv] = {}

    def __call__(self, step: int, attempt: int, questions: int) -> Rollouts:
        """The rollouts of a step; of another `attempt` where the first ones were not enough."""
        size = questions * self.group
        if size not in self._envs:
            self._envs[size] = self.task.envs(size, self.split)
        envs = self._envs[size]
        chance = np.random.default_rng([self.seed, step, attempt])
        drawn = draw_questions(envs, questions, chance, repeats=self.group == 1)
        number = np.argsort(np.argsort(drawn, kind="stable"))  # in the order of the texts, one for each draw
        seed = int(chance.integers(1 << 31))
        generator = torch.Generator().manual_seed(int(chance.integers(1 << 62)))
        ids, groups = (np.repeat(of_draws, self.group) for of_draws in (drawn, number))
        return rollouts(self.policy, envs, ids.tolist(), generator, seed, groups)


def draw_questions(
    envs: SearchQAArrayVectorEnv, number: int, chance: np.random.Generator, repeats: bool = False
) -> Sequence[str]:
    """Ids of different questions, or of different sets of objectives joined by "+".

    Repeats are drawn where they are allowed, and where more are wanted than there are.
    """
    ids, n = [question.id for question in envs.questions], envs.layout.objectives
    repeats = repeats or number > math.comb(len(ids), n)
    known: set[frozenset[int]] = set()
    drawn: list[str] = []
    while len(drawn) < number:
        chosen = chance.choice(len(ids), n, replace=False).tolist()
        if repeats or frozenset(chosen) not in known:
            known.add(frozenset(chosen))
            drawn.append("+".join(ids[i] for i in chosen))
    return drawn


EPISODES = 512
"""Episodes of an evaluation."""


def evaluate(
    task: Toy, policy: ArrayPolicy, seed: int, split: Split = "test", episodes: int = EPISODES
) -> dict[str, float]:
    """Play new episodes of a split, a question (or set of objectives) each, as the policy samples them."""
    played = ToyDraw(policy, task, 1, seed, split)(0, 0, episodes)
    measured = {name: value for name, value in played.extra.items() if "seconds" not in name}
    return {"success": float(played.success_N.mean()), **measured, "episodes": episodes}


def train(
    task: Toy, config: Config, out: Path, board: bool = True, track: Sequence[str] = ()
) -> dict[str, float]:
    """Train a policy, or go on; returns what `evaluate` says of it, which is also written to the run.

    With `board` the metrics go to TensorBoard too, where that is installed; `track` names further trackers.
    """
    policy = task.make_policy(config)
    task.envs(1, "test")  # has fewer questions than the training split; refused before anything is trained
    draw = ToyDraw(policy, task, config.rollouts, config.seed)
    settings = msgspec.to_builtins({"task": task, "config": config})
    with one_thread(), Run(out, settings, board, track=track) as run:
        LOOPS[config.algo](policy, draw, config, run)
        result = evaluate(task, policy, config.seed)
        conclude(out, result)
    return result


def restore(out: Path) -> tuple[Toy, Config, ArrayPolicy]:
    """The task, the settings and the trained policy of a run."""
    settings = read_settings(out)
    told = settings.get("task")
    if isinstance(told, dict) and told.get("policy") == "tiny_lm":
        raise ResultsError(
            f"{out}: wanted a run of the array face, whose decisions this looks at, got one of tiny_lm, "
            "which decides on tokens: see mempo doctor, or train with --policy pointer or tabular"
        )
    if missing := [name for name in ("task", "config") if name not in settings]:
        raise ResultsError(
            f"{out / SETTINGS}: wanted the settings of a toy run, found no {' and no '.join(missing)}; from "
            "Python, mempo_trainers.toy.train(task, config, Path(...)) writes them"
        )
    try:
        task, config = msgspec.convert(settings["task"], Toy), msgspec.convert(settings["config"], Config)
    except msgspec.ValidationError as error:
        raise ResultsError(f"{out / SETTINGS}: wanted the settings of a toy run: {error}") from None
    policy = task.make_policy(config)
    load(out, policy)
    return task, config, policy
