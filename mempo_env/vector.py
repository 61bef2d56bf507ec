"""Many environments that step together, with one retrieval call a step."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from mempo_env.env import SearchQAEnv, StepResult
from mempo_env.errors import ConfigError, lookup
from mempo_env.retrieval.base import ask
from mempo_env.types import Call, Hit

Flags: TypeAlias = NDArray[np.bool_]
VectorStep: TypeAlias = tuple[tuple[str, ...], NDArray[np.float64], Flags, Flags, dict[str, Any]]

_MODES = {"disabled": AutoresetMode.DISABLED, "same_step": AutoresetMode.SAME_STEP}


class SearchQAVectorEnv(VectorEnv[tuple[str, ...], Sequence[str | None], NDArray[Any]]):
    """A batch of `SearchQAEnv`s that share questions and retriever; made by `gym.make_vec`.

    In each step the queries of all environments are deduplicated and searched for in one call. Environment i
    is the same, byte for byte, as a single one that is reset with the same seed and given the same actions.

    An action of None leaves its environment untouched: same observation, reward 0, no info, and its flags as
    they were. Observations are a tuple of texts; infos have Gymnasium's form (an array a key, and a mask
    `_key`).

    Args:
        num_envs: How many.
        autoreset_mode: "disabled" (reset finished ones with `reset(options={"reset_mask": ...})`) or
            "same_step" (a finished one starts anew at once; its last observation and info are in `final_obs`
            and `final_info`). Gymnasium's next-step mode is refused: it would throw away one completion an
            episode.
        kwargs: Keyword arguments of `SearchQAEnv`, the same for all.
    """

    def __init__(
        self,
        num_envs: int = 1,
        *,
        autoreset_mode: str | AutoresetMode = AutoresetMode.DISABLED,
        **kwargs: Any,
    ) -> None:
        if num_envs < 1:
            raise ConfigError(f"num_envs: wanted at least 1, got {num_envs}")
        self.autoreset_mode = check_mode(autoreset_mode)
        first = SearchQAEnv(**kwargs)
        self.envs = [first, *(copy.copy(first) for _ in range(num_envs - 1))]
        self.num_envs = num_envs
        self.metadata = {**first.metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = first.render_mode
        self.single_observation_space = first.observation_space
        self.single_action_space = first.action_space
        self.observation_space = batch_space(first.observation_space, num_envs)
        self.action_space = batch_space(first.action_space, num_envs)
        self._observations = [""] * num_envs
        self._terminations = np.zeros(num_envs, dtype=np.bool_)
        self._truncations = np.zeros(num_envs, dtype=np.bool_)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[tuple[str, ...], dict[str, Any]]:
        """Start episodes.

        Args:
            seed: An int gives environment i the seed + i, a sequence gives each its own, None leaves them be.
            options: "reset_mask" (bool array: only these are reset), "question_id" and "state": one for all,
                or a list with one (or None) for each; copies of one question are a group.
        """
        seeds = each_seed(self.num_envs, seed)
        rest = dict(options or {})
        mask = check_mask(self.num_envs, rest.pop("reset_mask", None))
        each = each_options(self.num_envs, rest)
        infos: dict[str, Any] = {}
        chosen = np.flatnonzero(mask).tolist()
        for i in chosen:  # all are checked before any is reset
            self.envs[i].read_options(each[i])
        for i in chosen:
            self._observations[i], info = self.envs[i].reset(seed=seeds[i], options=each[i])
            infos = self._add_info(infos, info, i)
        self._terminations[mask] = False
        self._truncations[mask] = False
        return tuple(self._observations), infos

    def step(self, actions: Sequence[str | None]) -> VectorStep:
        """Play one round in every environment whose action is not None."""
        self._check(actions)
        queries: dict[int, str | None] = {}
        try:
            for i, action in enumerate(actions):
                if action is not None:
                    queries[i] = self.envs[i].submit(action)
            outcomes = self._search({i: query for i, query in queries.items() if query is not None})
        except BaseException:
            for i in queries:
                self.envs[i].retract()
            raise
        rewards = np.zeros(self.num_envs)
        infos: dict[str, Any] = {}
        for i in queries:
            result = self.envs[i].conclude(outcomes.get(i, ()))
            self._observations[i], rewards[i], self._terminations[i], self._truncations[i], info = result
            if self.autoreset_mode is AutoresetMode.SAME_STEP and (result[2] or result[3]):
                infos = self._add_info(infos, {"final_obs": result[0], "final_info": info}, i)
                self._observations[i], info = self.envs[i].reset()
            infos = self._add_info(infos, info, i)
        flags = self._terminations.copy(), self._truncations.copy()
        return tuple(self._observations), rewards, *flags, infos

    def abort(self, index: int, reason: str, detail: str = "", calls: Sequence[Call] = ()) -> StepResult:
        """End one episode from outside, as `SearchQAEnv.abort` does; it then waits for its reset."""
        result = self.envs[index].abort(reason, detail, calls)
        self._observations[index], _, self._terminations[index], self._truncations[index], _ = result
        return result

    def render(self) -> tuple[str | None, ...]:  # type: ignore[override]
        """What each environment renders."""
        return tuple(env.render() for env in self.envs)

    # --- Private --------------------------------------------------------------------------------------------

    def _search(self, queries: Mapping[int, str]) -> dict[int, Sequence[Hit] | Exception]:
        """Search for the distinct queries in one call; a fault is the outcome of all of them."""
        distinct = tuple(dict.fromkeys(queries.values()))
        if not distinct:
            return {}
        rankings = ask(self.envs[0].retriever, distinct, self.envs[0].top_k)
        if isinstance(rankings, Exception):
            return dict.fromkeys(queries, rankings)
        found = dict(zip(distinct, rankings, strict=True))
        return {i: found[query] for i, query in queries.items()}

    def _check(self, actions: Sequence[str | None]) -> None:
        """Refuse a step as a whole, before any environment has moved."""
        if isinstance(actions, str) or len(actions) != self.num_envs:
            raise ConfigError(f"step: wanted an action or None for each of {self.num_envs} environments")
        done = self._terminations | self._truncations
        for i, action in enumerate(actions):
            if action is None:
                continue
            if not isinstance(action, str):
                raise TypeError(
                    f"step: wanted text, a Completion or None, got {type(action).__name__} at {i}"
                )
            if done[i] and self.autoreset_mode is AutoresetMode.DISABLED:
                raise gym.error.ResetNeeded(
                    f"environment {i} has ended: reset it with options={{'reset_mask': ...}} or give it None"
                )


def check_mode(mode: str | AutoresetMode) -> AutoresetMode:
    """The autoreset mode of that name, or the mode itself; ConfigError for the one that is refused."""
    for known in _MODES.values():
        if mode is known:
            return known
    return lookup(_MODES, str(mode).lower(), "autoreset_mode")


def each_seed(n: int, seed: int | Sequence[int | None] | None) -> Sequence[int | None]:
    """A seed for each of n environments: an int gives environment i the seed + i."""
    if seed is None:
        return [None] * n
    if isinstance(seed, (int, np.integer)):
        return [int(seed) + i for i in range(n)]
    if len(seed) != n:
        raise ConfigError(f"reset: wanted a seed for each of {n} environments, got {len(seed)}")
    return [None if one is None else int(one) for one in seed]


def check_mask(n: int, mask: Any) -> Flags:
    """Which of n environments a reset_mask means; None: all."""
    if mask is None:
        return np.ones(n, dtype=np.bool_)
    array = np.asarray(mask)
    if array.shape != (n,) or array.dtype != np.bool_:
        raise ConfigError(f"reset_mask: wanted {n} booleans, got {array.dtype} of shape {array.shape}")
    return array


def each_options(n: int, options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Split the options: a list holds one for each of n environments, anything else is for all."""
    each: list[dict[str, Any]] = [{} for _ in range(n)]
    for name, value in options.items():
        values = value if isinstance(value, (list, np.ndarray)) else [value] * n
        if len(values) != n:
            raise ConfigError(f"reset: wanted one {name} for each of {n} environments, got {len(values)}")
        for mine, one in zip(each, values, strict=True):
            mine[name] = one
    return each
