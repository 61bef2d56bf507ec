"""gem-llm's QaEnv; where there is a server, with its SearchTool in its ToolEnvWrapper."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def start() -> dict[str, float]:
    """Seconds of the import, of the first make and of the next one."""
    began = time.perf_counter()
    import gem.envs.qa_env  # noqa: F401

    times = {"import": time.perf_counter() - began}
    for name in ("first make", "next make"):
        began = time.perf_counter()
        _make(["Who?"], [["nobody"]])
        times[name] = time.perf_counter() - began
    return times


def play(rows: list[dict[str, Any]], url: str = "") -> Callable[[], list[float]]:
    """One pass over the rows, each an episode whose actions are played; returns the rewards."""
    qa = _make([row["question"] for row in rows], [row["answers"] for row in rows])
    env = _with_search(qa, url) if url else qa
    order = _order(len(rows))

    def run() -> list[float]:
        qa.idx = 0  # else it shuffles anew
        rewards = [0.0] * len(rows)
        for i in order:
            _, info = env.reset()
            for action in rows[i]["actions"]:
                _, reward, _, _, info = env.step(action)
                for key in info:
                    info[key]
            rewards[i] = float(reward)
        return rewards

    return run


def search_each(queries: list[list[str]], url: str) -> Callable[[], int]:
    """One round, queries[round][env], in which environments search one by one; returns how many found."""
    qa = _make(["Who?"] * len(queries[0]), [["nobody"]] * len(queries[0]))
    envs = [_with_search(qa, url) for _ in queries[0]]
    for env in envs:
        env.reset()
    rounds = iter(queries)

    def run() -> int:
        results = [env.step(f"<search>{q}</search>") for env, q in zip(envs, next(rounds), strict=True)]
        return sum("Doc 1" in result[0] for result in results)

    return run


def _make(questions: list[str], answers: list[list[str]]) -> Any:
    from datasets import Dataset, disable_progress_bars
    from gem.envs.qa_env import QaEnv

    disable_progress_bars()
    return QaEnv(dataset=Dataset.from_dict({"question": questions, "answer": answers}))


def _order(n: int) -> list[int]:
    """The rows in the order in which an environment with the default seed, 0, asks them."""
    from datasets import Dataset

    return list(Dataset.from_dict({"row": list(range(n))}).shuffle(seed=0)["row"])


def _with_search(env: Any, url: str) -> Any:
    from gem.tools.search_tool import SearchTool
    from gem.tools.tool_env_wrapper import ToolEnvWrapper

    return ToolEnvWrapper(env, [SearchTool(search_url=url, topk=3)])
