"""The tree on what agents really wrote and read: episodes of the synthetic Wikipedia."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise

import msgspec
import pytest

from llm_help import chatting, needs_transformers
from mempo_agents.rollout import episodes
from mempo_agents.table import make_agent
from mempo_env.types import Episode, Segment
from mempo_trainers.episodes import before, from_episodes
from mempo_trainers.llm.settings import Task
from mempo_trainers.scoring.base import Asked
from mempo_trainers.scoring.naive import Naive
from mempo_trainers.scoring.prefix_tree import PrefixTree
from scoring_help import SERVED, alone, far, ids, make

needs_transformers()

from mempo_trainers.policies.huggingface.tokenizer import ChatTokenizer  # noqa: E402

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
def played() -> tuple[Episode, ...]:
    """An episode of each agent."""
    task = Task(objectives=1, held_out=1, environment={"top_k": 1, "max_rounds": 8, "system_prompt": ""})
    return tuple(
        msgspec.structs.replace(episode, mask_episode=True)  # no ids were sampled, and none are needed
        for name in AGENTS
        for _, episode in episodes(make_agent(name), task.asked("test"), env_kwargs=task.env_kwargs("test"))
    )


@cache
def asked() -> tuple[Asked, ...]:
    """What is scored of an episode of each agent: answers after memories, histories and what was seen."""
    rolled = from_episodes(played(), Bytes())
    views = (*rolled.memory_views, *rolled.history_views, *rolled.seen_views, *rolled.prior_views)
    return tuple(
        Asked(ids(*view.context, *before), answer)
        for view in views
        if view is not None
        for before, answer in view.answers
    )


def test_a_history_begins_as_the_one_before_it_does() -> None:
    """Prompts are prefix-stable: what a round adds changes no token before it but those of the chat's end.

    Else the tree would share nothing, and what was read would be other ids than what is scored.
    """
    tokenizer, pairs = ChatTokenizer(chatting()), 0
    end = len(chatting().encode("\n<|end|>\n<|start|>assistant\n", add_special_tokens=False))
    for episode in played():
        views = [tokenizer.prompt(before(episode, round)) for round in episode.rounds]
        for shorter, longer in pairwise(views):
            common = next(i for i, (a, b) in enumerate(zip(shorter, longer)) if a != b)  # noqa: B905
            assert common >= len(shorter) - end and len(longer) > len(shorter)
            pairs += 1
    assert pairs > 10


@pytest.mark.slow
@pytest.mark.parametrize("name", SERVED)
def test_a_tree_says_of_real_trajectories_what_single_texts_say(name: str) -> None:
    assert len(asked()) > 25 and max(len(one.context) for one in asked()) > 1_500
    size = "n_positions" if name == "gpt2" else "max_position_embeddings"
    net = make(name, vocab_size=256, **{size: LONGEST})
    expected = [alone(net, one) for one in asked()]
    assert far(PrefixTree(net).logprobs(asked()), expected) < 1e-4
    assert far(Naive(net).logprobs(asked()), expected) < 1e-4
