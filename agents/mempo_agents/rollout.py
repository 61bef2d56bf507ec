"""Episodes of one agent, many at a time, as they finish."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mempo_agents.base import Agent
from mempo_env.types import Episode


def episodes(
    agent: Agent,
    question_ids: Sequence[str],
    *,
    env_id: str = "MemPO-SearchQA-v0",
    env_kwargs: Mapping[str, Any] | None = None,
    num_envs: int = 16,
    seed: int = 0,
) -> Iterator[tuple[int, Episode]]:
    """Play one episode for each question id; yield (its index, the episode) as each one finishes.

    The agent is asked once a step for all running episodes, the retriever likewise; a finished episode makes room
    for the next at once. Episode i is played with seed + i, so it is the same for every `num_envs`.

    Args:
        agent: Who plays; its own `env_kwargs` win over those given here.
        question_ids: The objectives of each episode: an id, or ids joined by "+".
        env_id: Which environment.
        env_kwargs: Its keyword arguments.
        num_envs: Episodes at a time.
        seed: Of episode 0.
    """
    raise NotImplementedError
    yield 0, Episode  # type: ignore[misc]
