"""Our environment, made by `gym.make` and `gym.make_vec`; every key of every info is read."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ID = "MemPO-SearchQA-v0"
ALWAYS = (
    *("question_id", "round", "segments", "messages", "action", "retrieved", "memory", "operations"),
    *("tokens", "diagnostics", "reward_terms", "state_hash"),
)
AT_THE_END = (*ALWAYS, "stop_reason", "episode", "score", "failure", "mask_episode")


def start() -> dict[str, float]:
    """Seconds of the import, of the first make and of the next one."""
    began = time.perf_counter()
    import gymnasium as gym

    import mempo_env  # noqa: F401

    times = {"import": time.perf_counter() - began}
    for name in ("first make", "next make"):
        began = time.perf_counter()
        gym.make(ID)
        times[name] = time.perf_counter() - began
    return times


def play(rows: list[dict[str, Any]], dataset: str, retriever: str) -> Callable[[], list[float]]:
    """One pass over the rows, each an episode whose actions are played; returns the rewards.

    Args:
        rows: Episodes of questions of the data set.
        dataset: Of the environment.
        retriever: "canned", "index" (that of the data set, in this process), or the address of a server.
    """
    env = _make(dataset, retriever)

    def run() -> list[float]:
        rewards = []
        for row in rows:
            _, info = env.reset(options={"question_id": row["id"]})
            for key in ALWAYS:
                info[key]
            for action in row["actions"]:
                _, reward, terminated, _, info = env.step(action)
                for key in AT_THE_END if terminated else ALWAYS:
                    info[key]
            rewards.append(float(reward))
        return rewards

    return run


def search_each(queries: list[list[str]], url: str) -> Callable[[], int]:
    """One round, queries[round][env], in which environments search one by one; returns how many found."""
    envs = [_make("synthetic", url) for _ in queries[0]]
    for i, env in enumerate(envs):
        env.reset(seed=i)
    rounds = iter(queries)

    def run() -> int:
        results = [env.step(f"<search>{q}</search>") for env, q in zip(envs, next(rounds), strict=True)]
        return sum(bool(result[4]["retrieved"]) for result in results)

    return run


def search_together(queries: list[list[str]], url: str) -> Callable[[], int]:
    """One round, queries[round][env], of one vector environment; returns how many found."""
    import gymnasium as gym

    import mempo_env  # noqa: F401
    from mempo_env.retrieval.http import HTTPRetriever

    envs: Any = gym.make_vec(ID, num_envs=len(queries[0]), retriever=HTTPRetriever(url))
    envs.reset(seed=0)
    rounds = iter(queries)

    def run() -> int:
        infos = envs.step([f"<search>{query}</search>" for query in next(rounds)])[4]
        return sum(map(bool, infos["retrieved"]))

    return run


def inspect(rows: list[dict[str, Any]], dataset: str, retriever: str) -> str:
    """Play the rows and look whether every info is whole, plain and true; the first complaint, else "".

    Whole: exactly the documented keys. Plain: built of frozen structs, tuples and constants, so that nothing
    is computed when it is read. True: the episode survives JSON, and score, tokens and failure are those of
    what was written.
    """
    env = _make(dataset, retriever)
    for row in rows:
        told = [env.reset(options={"question_id": row["id"]})]
        told += [(step[0], step[4]) for step in map(env.step, row["actions"])]
        for i, (observation, info) in enumerate(told):
            if complaint := _wrong(observation, info, row, i):
                return f"question {row['id']}, round {i}: {complaint}"
    return ""


def _wrong(observation: str, info: dict[str, Any], row: dict[str, Any], i: int) -> str:
    import msgspec

    from mempo_env.tokens import count_words
    from mempo_env.types import Episode

    last = i == len(row["actions"])
    if type(info) is not dict or tuple(info) != (AT_THE_END if last else ALWAYS):
        return f"wanted a dict with the documented keys, got {type(info).__name__} with {', '.join(info)}"
    if strange := _strange(info):
        return f"wanted plain values, got {strange}"
    if "\n".join(segment.text for segment in info["segments"]) != observation:
        return "the segments are not the observation"
    if sum(segment.tokens for segment in info["segments"]) != count_words(observation):
        return "the tokens of the segments are not those of the observation"
    if not last:
        return ""
    episode = info["episode"]
    if msgspec.json.decode(msgspec.json.encode(episode), type=Episode) != episode:
        return "the episode does not survive JSON"
    spent = sum(
        count_words("\n".join(episode.ledger[j].text for j in done.view)) + count_words(done.text)
        for done in episode.rounds
    )
    if info["tokens"].total != spent or len(episode.rounds) != i:
        return f"wanted {spent} tokens in {i} rounds, got {info['tokens'].total} in {len(episode.rounds)}"
    if info["score"].em != row["reward"] or (info["failure"][0] is None) != (row["reward"] == 1.0):
        return f"wanted reward {row['reward']}, got {info['score']} and {info['failure']}"
    return ""


def _strange(value: Any) -> str:
    """The type of the first value in it that is no frozen struct, tuple, dict or constant; else ""."""
    from enum import Enum

    from msgspec import Struct
    from msgspec.structs import astuple

    if value is None or type(value) in (str, int, float, bool) or isinstance(value, Enum):
        return ""
    if type(value) is dict:
        return next(filter(None, map(_strange, value.values())), "")
    if type(value) is tuple:
        return next(filter(None, map(_strange, value)), "")
    if isinstance(value, Struct) and value.__struct_config__.frozen:
        return next(filter(None, map(_strange, astuple(value))), "")
    return type(value).__name__


class _Canned:
    """Finds nothing, at once."""

    fingerprint = "canned"

    def search(self, queries: Sequence[str], k: int) -> list[tuple[Any, ...]]:
        return [()] * len(queries)


def _make(dataset: str, retriever: str) -> Any:
    """An environment whose retriever has no cache."""
    import gymnasium as gym

    import mempo_env  # noqa: F401

    found: Any = _Canned()
    if retriever == "index":
        from mempo_env.retrieval.bm25 import BM25Index
        from mempo_env.retrieval.corpus import Corpus

        found = BM25Index.open(Path(dataset) / "index", Corpus.open(Path(dataset) / "corpus.jsonl"))
    elif retriever != "canned":
        from mempo_env.retrieval.http import HTTPRetriever

        found = HTTPRetriever(retriever)
    return gym.make(ID, dataset=dataset, retriever=found)
