"""The array face of one environment: choices in, numbers out, and text between them."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import gymnasium as gym
import numpy as np

from mempo_env.arrays.facts import Ints
from mempo_env.arrays.observe import Flags, Floats32, View, observe
from mempo_env.arrays.task import make_task
from mempo_env.arrays.text import read, write
from mempo_env.arrays.world import FACT_WORDS
from mempo_env.env import SearchQAEnv
from mempo_env.errors import ConfigError
from mempo_env.types import Episode

ArrayStep: TypeAlias = tuple[Floats32, float, bool, bool, dict[str, Any]]


class SearchQAArrayEnv(gym.Env[Floats32, Ints]):
    """The search question answering of `SearchQAEnv` behind fixed-size arrays, for tiny policies.

    ## Description

    A toy world holds articles of a few short facts ("Velmora's harvest is 48213."), each on one name, and
    questions that lead from a name over zero or more links to a number ("What is the harvest of the capital
    of Velmora?"). In each round the agent chooses which of the facts in view it keeps in a memory of limited
    size, and whether it searches for a name that it sees or answers. Its choices are written out in the
    protocol of the text environment and played there, and what that shows is read back: both faces have the
    same episodes, rewards and infos.

    In view are the facts in memory, in the order in which they were kept, then those of the article that the
    last round found, without those in memory; the rest of the V = capacity + facts slots is empty.

    ## Action Space

    `MultiDiscrete`, K = V + 2 + objectives choices; `layout` names the columns:

    * for each slot 0 or 1: keep its fact in memory (what is not kept is gone);
    * 0: search, 1: answer;
    * what to search for: the subject of a question, or the object of a slot if it is a name;
    * for each objective its answer: the object of a slot, kept or not, or V: "unknown".

    What a mask forbids can be chosen all the same. To keep an empty slot is to keep nothing. To keep more
    facts than the memory holds, to search for what is no name, or to give one question an empty slot as its
    answer is an invalid action: it costs the round and leaves the memory as it was.

    ## Observation Space

    A flat `Box` of float32 in [0, 1], read from the text in view alone; `layout.split` cuts it into its parts
    and `mempo_env.arrays.layout.Features` says what they are.

    ## Rewards

    Those of the text environment. The default preset "mempo" pays 1 if every objective is exactly right.

    ## Starting State

    Questions drawn from the split with the episode's seed, or those of `reset(options={"question_id": ...})`.

    ## Episode End

    Terminated once an answer was given; truncated after `max_rounds`.

    ## Information

    That of the text environment, and `action_mask`: for every choice of every decision, one after another,
    whether it is valid and can be of use; `layout.sample_mask` makes of it what `action_space.sample` wants
    as its mask. (Which facts fit into memory together no such mask can say.)

    ## Arguments

    Args:
        objectives: Questions in one episode, at least 1; by default 1.
        hops: Facts that a question must combine; by default 1.
        capacity: Facts that fit into the memory; None, the default: hops x objectives + 2.
        facts: Facts in an article, 1 to 19; by default 5.
        questions: Questions in the world, at least 10, by default 1000; 60 % train, 20 % dev, 20 % test.
        world_seed: Of the world, by default 0; equal seeds make equal worlds.
        split: "train" (the default), "dev" or "test"; no name is in two of them.
        max_rounds: Rounds allowed; None, the default: the larger of 4 and 2 x objectives x hops.
        reward: Name of a preset in `mempo_env.rewards.PRESETS`, by default "mempo", or a RewardConfig.
        retriever_noise: Probability, by default 0, with which a search shows a random article instead, of the
            whole world: of the other splits, too. With noise what is tested on is therefore not unseen, only
            unasked.
        render_mode: "ansi" (the last round as text) or "html" (the whole episode as one page).

    ## Version History

    * v0: first version.
    """

    metadata = SearchQAEnv.metadata

    def __init__(self, *, render_mode: Literal["ansi", "html"] | None = None, **kwargs: Any) -> None:
        self.task = make_task(**kwargs)
        self.world, self.layout = self.task.world, self.task.layout
        self.text = SearchQAEnv(
            self.world.questions,
            corpus=self.world.corpus,
            retriever=self.world.retriever,
            split=self.task.split,
            objectives=self.layout.objectives,
            top_k=1,
            max_rounds=self.task.max_rounds,
            reward=self.task.reward,
            max_memory_tokens=FACT_WORDS * self.layout.capacity,
            retriever_noise=self.task.retriever_noise,
            render_mode=render_mode,
        )
        self.render_mode = render_mode
        self.observation_space = self.layout.observation_space
        self.action_space = self.layout.action_space
        self._view: View | None = None
        self._first = True
        self._mask: Flags = np.zeros(self.layout.choices, np.bool_)

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Floats32, dict[str, Any]]:
        """Start an episode.

        Args:
            seed: Of the random numbers from here on; None: go on with those of before.
            options: As for `SearchQAEnv`: "question_id" fixes the objectives, "state" restores a snapshot.
        """
        super().reset(seed=seed)
        self.text.np_random = self.np_random  # all chance is drawn from one generator
        _, info = self.text.reset(options=options)
        return self._look(info), info

    def step(self, action: Ints) -> ArrayStep:
        """Play one round; see the class for what an action is."""
        _, reward, terminated, truncated, info = self.text.step(self.write(action))
        return self._look(info), reward, terminated, truncated, info

    def render(self) -> str | None:
        """What the text environment renders."""
        return self.text.render()

    def write(self, action: Ints) -> str:
        """The text of an action, as it would be played now."""
        if self._view is None:
            raise gym.error.ResetNeeded("there is no episode yet: call reset() first")
        if not self.action_space.contains(action):
            raise ConfigError(
                f"step: wanted {self.layout.decisions} whole numbers below {self.layout.nvec}, got {action!r}"
            )
        return write(self.task, self._view, self._first, np.asarray(action))

    def action_masks(self) -> Flags:
        """The mask of the coming action as an array, as sb3-contrib asks for it."""
        return self._mask

    def episode(self) -> Episode:
        """The episode so far, or whole, as one frozen value."""
        return self.text.episode()

    def get_state(self) -> str:
        """The whole state as JSON text, for `reset(options={"state": ...})` here or in another process."""
        return self.text.get_state()

    def set_state(self, state: str) -> None:
        """Go on from a state that `get_state` returned; a StateError if it is of another environment."""
        self._look(self.text.reset(options={"state": state})[1])

    def fork(self, n: int, seeds: Sequence[int] | None = None) -> list[SearchQAArrayEnv]:
        """Make n independent environments in this state; see `SearchQAEnv.fork`."""
        twins = []
        for text in self.text.fork(n, seeds):
            twin = copy.copy(self)
            twin.text, twin.np_random = text, text.np_random
            twins.append(twin)
        return twins

    def _look(self, info: dict[str, Any]) -> Floats32:
        """Read what is in view; return the observation, and put the mask into info."""
        self._view, self._first = read(self.task, info["segments"]), info["round"] == 0
        obs_BD, mask_BA = observe(self.world, self.layout, self.task.max_rounds, self._view)
        self._mask = mask_BA[0]
        info["action_mask"] = tuple(self._mask.tolist())
        observation: Floats32 = obs_BD[0]
        return observation
