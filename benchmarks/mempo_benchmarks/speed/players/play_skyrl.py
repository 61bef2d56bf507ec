"""skyrl-gym's SearchEnv, used as its trainer does: each episode makes, steps, measures and closes one.

Its trainer passes it a configuration, the plain class for which is used here: that of omegaconf is slower.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def start() -> dict[str, float]:
    """Seconds of the import, of the first make and of the next one."""
    began = time.perf_counter()
    import skyrl_gym  # noqa: F401

    times = {"import": time.perf_counter() - began}
    for name in ("first make", "next make"):
        began = time.perf_counter()
        _make("", [""], 1)
        times[name] = time.perf_counter() - began
    return times


def play(rows: list[dict[str, Any]], url: str = "") -> Callable[[], list[float]]:
    """One pass over the rows, each an episode whose actions are played; returns the rewards."""

    def run() -> list[float]:
        rewards = []
        for row in rows:
            env = _make(url, row["answers"], len(row["actions"]))
            rewards.append(_episode(env, row))
            env.get_metrics()
            env.close()
        return rewards

    return run


def play_reused(rows: list[dict[str, Any]]) -> Callable[[], list[float]]:
    """Like `play`, with one object whose attributes are set back by hand; it offers no reset of its own."""
    env = _make("", [""], len(rows[0]["actions"]))

    def run() -> list[float]:
        rewards = []
        for row in rows:
            env.ground_truth, env.turns, env.chat_history = {"target": row["answers"]}, 0, []
            rewards.append(_episode(env, row))
        return rewards

    return run


def search_each(queries: list[list[str]], url: str) -> Callable[[], int]:
    """One round, queries[round][env], in which environments search one by one; returns how many found."""
    envs = [_make(url, [""], len(queries) + 1) for _ in queries[0]]
    rounds = iter(queries)

    def run() -> int:
        outputs = [env.step(f"<search>{q}</search>") for env, q in zip(envs, next(rounds), strict=True)]
        return sum("Doc 1" in output["observations"][0]["content"] for output in outputs)

    return run


def _make(url: str, answers: list[str], turns: int) -> Any:
    import skyrl_gym
    from skyrl_gym.envs.search.env import SearchEnvConfig

    config = SearchEnvConfig(search_url=url) if url else SearchEnvConfig()
    extras = {"reward_spec": {"ground_truth": {"target": answers}}, "max_turns": turns}
    return skyrl_gym.make("search", env_config=config, extras=extras)


def _episode(env: Any, row: dict[str, Any]) -> float:
    env.init([{"role": "user", "content": row["question"]}])
    for action in row["actions"]:
        output = env.step(action)
        for key in ("observations", "reward", "done", "metadata"):
            output[key]
    return float(output["reward"])
