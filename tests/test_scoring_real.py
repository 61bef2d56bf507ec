"""The tree on what agents really wrote and read: episodes of the synthetic Wikipedia."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import msgspec
import pytest

from mempo_agents.rollout import episodes
from mempo_agents.table import make_agent
from mempo_env.types import Segment
from mempo_trainers.episodes import from_episodes
from mempo_trainers.llm.settings import Task
from mempo_trainers.scoring.base import Asked
from mempo_trainers.scoring.naive import Naive
from mempo_trainers.scoring.prefix_tree import PrefixTree
from scoring_help import SERVED, alone, far, ids, make

LONGEST = 8_192
AGENTS = ("mempo", "bank", "random")


class Bytes:
    """Each byte of a text is a token."""

    def encode(self, text: str) -> Sequence[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(ids).decode()

    def starts(self, ids: Sequence[int]) -> Sequence[int]:
        raise NotImplementedError("nothing was sampled")

    def prompt(self, segments: Sequence[Segment]) -> Sequence[int]:
        return self.encode("\n".join(segment.text for segment in segments))


@cache
def asked() -> tuple[Asked, ...]:
    """What is scored of an episode of each agent: answers after memories, histories and what was seen."""
    task = Task(objectives=1, held_out=1, environment={"top_k": 1, "max_rounds": 8, "system_prompt": ""})
    played = [
        msgspec.structs.replace(episode, mask_episode=True)  # no ids were sampled, and none are needed
        for name in AGENTS
        for _, episode in episodes(make_agent(name), task.asked("test"), env_kwargs=task.env_kwargs("test"))
    ]
    rolled = from_episodes(played, Bytes())
    views = (*rolled.memory_views, *rolled.history_views, *rolled.seen_views, *rolled.prior_views)
    return tuple(
        Asked(ids(*view.context, *before), answer)
        for view in views
        if view is not None
        for before, answer in view.answers
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", SERVED)
def test_a_tree_says_of_real_trajectories_what_single_texts_say(name: str) -> None:
    assert len(asked()) > 25 and max(len(one.context) for one in asked()) > 1_500
    size = "n_positions" if name == "gpt2" else "max_position_embeddings"
    net = make(name, vocab_size=256, **{size: LONGEST})
    expected = [alone(net, one) for one in asked()]
    assert far(PrefixTree(net).logprobs(asked()), expected) < 1e-4
    assert far(Naive(net).logprobs(asked()), expected) < 1e-4
