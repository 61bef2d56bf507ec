"""Many array environments that step together on integers, without any text."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from msgspec.structs import asdict
from numpy.typing import NDArray

from mempo_env.arguments import at_least_one
from mempo_env.arrays import play
from mempo_env.arrays.facts import Ints
from mempo_env.arrays.observe import Flags, Floats32, answers, match, observe
from mempo_env.arrays.play import Floats, Result, State
from mempo_env.arrays.task import make_task
from mempo_env.errors import ConfigError
from mempo_env.types import StopReason
from mempo_env.vector import check_mask, check_mode, each_options, each_seed

__all__ = ["SearchQAArrayVectorEnv", "answers", "match"]

ArrayStep: TypeAlias = tuple[Floats32, Floats, Flags, Flags, dict[str, Any]]

_STOPS = np.array([None, StopReason.ANSWERED, StopReason.MAX_ROUNDS], dtype=object)


class SearchQAArrayVectorEnv(VectorEnv[Floats32, Ints, NDArray[Any]]):
    """A batch of `SearchQAArrayEnv`s, made by `gym.make_vec`, fast enough to train on.

    Environment i is the same, byte for byte, as a single one that is reset with the same seed and given the
    same actions: observations, masks, rewards, ends. Environments that have ended ignore their actions until
    they are reset: reward 0, the same observation, their flags as they were.

    Infos hold arrays over all environments. After `reset`: `action_mask` (N, A). After `step` besides, of the
    round: `invalid`, `outcome` and `shaping` (the reward's weighted outcome term, and the sum of the others),
    `found` (new gold facts that it showed); of the episode so far: `recall` (share of the gold facts shown),
    `em` (share of the objectives answered rightly), `success` (all of them), `stop_reason` (or None).

    Attributes:
        world: What can be known.
        layout: Where everything lies in observations, masks and actions.
        questions: The questions of the split, in order of their ids' rows.
        state: The episodes under way, for trainers; no observation shows it. The properties read it.

    Args:
        num_envs: How many.
        autoreset_mode: "disabled" (reset ended ones with `reset(options={"reset_mask": ...})`) or "same_step"
            (an ended one starts anew at once; `final_obs` and `final_info` then hold the last observations
            and infos, valid where `_final_obs` says so).
        kwargs: Keyword arguments of `SearchQAArrayEnv` but `render_mode`, the same for all.
    """

    def __init__(
        self,
        num_envs: int = 1,
        *,
        autoreset_mode: str | AutoresetMode = AutoresetMode.DISABLED,
        **kwargs: Any,
    ) -> None:
        self.num_envs = at_least_one("num_envs", num_envs)
        self.autoreset_mode = check_mode(autoreset_mode)
        self.metadata = {"autoreset_mode": self.autoreset_mode}
        self.task = make_task(**kwargs)
        self.world, self.layout = self.task.world, self.task.layout
        self.questions = self.world.questions.split(self.task.split)
        self._rows = self.world.rows(self.task.split)
        self._rngs: list[np.random.Generator | int | None] = [None] * num_envs  # or the seed of one
        self._state: State | None = None
        self._spaces()

    def _spaces(self) -> None:
        self._nvec_K = np.array(self.layout.nvec)
        self.single_observation_space = self.layout.observation_space
        self.single_action_space = self.layout.action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Floats32, dict[str, Any]]:
        """Start episodes.

        Args:
            seed: An int gives environment i the seed + i, a sequence gives each its own, None leaves them be.
            options: "reset_mask" (bool array: only these are reset) and "question_id" (as for the single
                environment: one for all, or a list with one, or None, for each; copies of one are a group).
        """
        rest = dict(options or {})
        mask_N, seeds = (
            check_mask(self.num_envs, rest.pop("reset_mask", None)),
            each_seed(self.num_envs, seed),
        )
        if self._state is None and not mask_N.all():
            raise gym.error.ResetNeeded("there are no episodes yet: reset all environments first")
        chosen = [self._choose(each) for each in each_options(self.num_envs, rest)]
        for i in np.flatnonzero(mask_N).tolist():
            if seeds[i] is not None:
                self._rngs[i] = seeding.np_random(seeds[i])[0]
        self._begin(mask_N, chosen)
        obs_ND, action_mask_NA = self._observe()
        return obs_ND, {"action_mask": action_mask_NA}

    def step(self, actions: Any) -> ArrayStep:
        """Play one round in every environment whose episode runs; actions are integers (N, K)."""
        actions_NK = self._check(actions)
        self._state, result = play.advance(self.task, self.state, actions_NK, self._noise)
        ended_N = self.state.ended_N
        flags = ended_N == play.ANSWERED, ended_N == play.OUT_OF_ROUNDS
        obs_ND, mask_NA = self._observe()
        infos = {"action_mask": mask_NA, **self._told(result)}
        over_N = ended_N != play.RUNNING
        if self.autoreset_mode is AutoresetMode.SAME_STEP and over_N.any():
            final = {"final_obs": obs_ND, "final_info": infos, "_final_obs": over_N, "_final_info": over_N}
            self._begin(over_N, [None] * self.num_envs)
            obs_ND, mask_NA = self._observe()
            infos = {**infos, "action_mask": mask_NA, **final}
        return obs_ND, result.reward_N, *flags, infos

    def fork(self, indices: Sequence[int], seeds: Sequence[int] | None = None) -> SearchQAArrayVectorEnv:
        """Independent environments, one in the state of each index (an index may come more than once).

        Args:
            indices: Which states.
            seeds: One for each, of its random numbers from here on; None: each goes on with those of its
                model.
        """
        picked = np.asarray(indices, np.int64).reshape(-1)
        if seeds is not None and len(seeds) != len(picked):
            raise ConfigError(
                f"fork: wanted one seed for each of {len(picked)} environments, got {len(seeds)}"
            )
        twin = copy.copy(self)
        twin.num_envs = at_least_one("fork: environments", len(picked))
        twin._state = State(**{name: value[picked] for name, value in asdict(self.state).items()})
        twin._rngs = (
            [copy.deepcopy(self._rngs[i]) for i in picked.tolist()]
            if seeds is None
            else [int(seed) for seed in seeds]
        )
        twin._spaces()
        return twin

    # --- What trainers may look at; new arrays each round, never changed in place ---------------------------

    @property
    def state(self) -> State:
        """The episodes under way."""
        if self._state is None:
            raise gym.error.ResetNeeded("there are no episodes yet: call reset() first")
        return self._state

    @property
    def asked_Nn(self) -> Ints:
        """Rows of the questions in the arrays of `world`."""
        return self.state.asked_Nn

    @property
    def view_NV(self) -> Ints:
        """Facts in view, those in memory first; -1 in the rest."""
        return self.state.view_NV

    @property
    def memory_Nc(self) -> Ints:
        """Facts in memory after the last round, in the order in which they were kept; -1 in the rest."""
        return self.state.memory_Nc

    @property
    def seen_NS(self) -> Ints:
        """All facts shown so far, in order; -1 in the rest. S = rounds allowed x facts of an article."""
        shown_NR = self.state.shown_NR
        facts_NRF = np.where(shown_NR[:, :, None] >= 0, self.world.article_AF[shown_NR], -1)
        return facts_NRF.reshape(self.num_envs, -1)

    @property
    def rounds_N(self) -> Ints:
        """Rounds played."""
        return self.state.rounds_N

    # --- Private --------------------------------------------------------------------------------------------

    def _observe(self) -> tuple[Floats32, Flags]:
        view = play.view(self.task, self.state)
        return observe(self.world, self.layout, self.task.max_rounds, view)

    def _told(self, result: Result) -> dict[str, Any]:
        state = self.state
        return {
            "invalid": result.invalid_N,
            "outcome": result.outcome_N,
            "shaping": result.shaping_N,
            "found": result.found_N,
            "recall": state.gold_N / (self.layout.objectives * self.layout.hops),
            "em": state.em_N,
            "success": state.em_N == 1,
            "stop_reason": _STOPS[state.ended_N],
        }

    def _choose(self, options: Mapping[str, Any]) -> Sequence[int] | None:
        """Rows of the questions that the options name, None if they name none."""
        if not options.keys() <= {"question_id"}:
            raise ConfigError(f"reset: options may hold reset_mask or question_id, got {', '.join(options)}")
        wanted, n = options.get("question_id"), self.layout.objectives
        if wanted is None:
            return None
        ids = wanted.split("+") if isinstance(wanted, str) else tuple(wanted)
        if len(ids) != n or len(set(ids)) != n:
            raise ConfigError(
                f"question_id: wanted {n} different ids (joined by '+', or a sequence), got {wanted!r}"
            )
        return [self.world.row_of[self.questions.by_id(id).text] for id in ids]

    def _begin(self, mask_N: Flags, chosen: Sequence[Sequence[int] | None]) -> None:
        """Begin new episodes where the mask says so."""
        asked_Nn = np.zeros((self.num_envs, self.layout.objectives), np.int64)
        for i in np.flatnonzero(mask_N).tolist():
            rows = chosen[i]
            asked_Nn[i] = self._draw(self._rng(i)) if rows is None else rows
        fresh = play.begin(self.task, asked_Nn)
        if self._state is not None and not mask_N.all():
            old, new = asdict(self._state), asdict(fresh)
            for name, value in new.items():
                mask = mask_N if value.ndim == 1 else mask_N[:, None]
                new[name] = np.where(mask, value, old[name])
            fresh = State(**new)
        self._state = fresh

    def _rng(self, i: int) -> np.random.Generator:
        rng = self._rngs[i]
        if not isinstance(rng, np.random.Generator):
            rng = self._rngs[i] = seeding.np_random(rng)[0]
        return rng

    def _draw(self, rng: np.random.Generator) -> Ints:
        """Draw rows as `SearchQAEnv` draws questions, from the same numbers."""
        rows, n = self._rows, self.layout.objectives
        if n == 1:
            return rows[[int(rng.random() * len(rows))]]
        return rows[rng.choice(len(rows), n, replace=False)]

    def _noise(self, article_N: Ints) -> Ints:
        """Replace what was found as `SearchQAEnv` does, from the same numbers."""
        if not self.task.retriever_noise:
            return article_N
        noisy_N = article_N.copy()
        for i in np.flatnonzero(article_N >= 0).tolist():
            rng = self._rng(i)
            if rng.random() < self.task.retriever_noise:
                noisy_N[i] = int(rng.integers(len(self.world.article_AF)))
        return noisy_N

    def _check(self, actions: Any) -> Ints:
        """The actions as one array, or an error that names the first that is none."""
        actions_NK = np.asarray(actions)
        shape = (self.num_envs, self.layout.decisions)
        if actions_NK.shape != shape or not np.issubdtype(actions_NK.dtype, np.integer):
            raise ConfigError(
                f"step: wanted whole numbers of shape {shape}, got {actions_NK.dtype} of {actions_NK.shape}"
            )
        wrong_NK = (actions_NK < 0) | (actions_NK >= self._nvec_K)
        if wrong_NK.any():
            i, k = np.argwhere(wrong_NK)[0].tolist()
            raise ConfigError(
                f"step: environment {i}, decision {k}: wanted 0 to {self.layout.nvec[k] - 1}, "
                f"got {actions_NK[i, k]}"
            )
        return actions_NK
