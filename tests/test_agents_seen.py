"""What an agent shows its model in each round: the passages of which searches, in which of its calls."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import pytest

from mempo_agents import AGENTS, Context, make_agent
from mempo_agents.models.base import Message, Prompt
from mempo_agents.rounds import ModelAgent
from mempo_env.types import Call, Completion, Episode, Hit
from small import QUESTIONS

ROUNDS = 6
MARKER = re.compile(r"Marker(\d)")


class Markers:
    """The nth search returns two passages that nothing else has the word of."""

    fingerprint = "markers"
    searches = 0

    def search(self, queries: Sequence[str], k: int) -> list[tuple[Hit, ...]]:
        self.searches += 1
        texts = (f"Marker{self.searches} is here.", f"Marker{self.searches} is there.")
        return [
            tuple(Hit(f"{self.searches}-{i}", f"Title {i}", text, i, 0.0) for i, text in enumerate(texts))
            for _ in queries
        ]


class Dull:
    """Does what it is asked for and repeats nothing of what it read; notes down every prompt."""

    name = fingerprint = "dull"

    def __init__(self, searches: int = ROUNDS - 1) -> None:
        self.prompts: list[Prompt] = []
        self.left = searches

    def generate(self, prompts: Sequence[Prompt]) -> list[Call]:
        self.prompts += prompts
        return [Call(segments=prompt.segments, output=self._write(prompt)) for prompt in prompts]

    def _write(self, prompt: Prompt) -> str:
        for tag in ("mem", "think"):
            if prompt.stop == (f"</{tag}>",):
                return f"<{tag}> noted </{tag}>"
        memory = "<mem> noted </mem>" if "<mem> ... </mem>" in prompt.text.replace("\n", " ") else ""
        self.left -= 1
        return (
            f"{memory}<search> thing {self.left} </search>"
            if self.left >= 0
            else f"{memory}<answer>x</answer>"
        )


def seen(name: str) -> tuple[list[list[Prompt]], Episode]:
    """The prompts of each round, and the episode."""
    model = Dull()
    agent = make_agent(name, model=model)
    env = gym.make("MemPO-SearchQA-v0", dataset=QUESTIONS, retriever=Markers(), top_k=2, **agent.env_kwargs)
    _, info = env.reset(options={"question_id": "q0"})
    rounds = []
    while "episode" not in info:
        model.prompts = []
        (text,) = agent.act([Context(info["segments"], "q0")])
        assert isinstance(text, Completion)
        *_, info = env.step(text)
        rounds.append(model.prompts)
    return rounds, info["episode"]


def markers(prompts: Sequence[Prompt]) -> set[int]:
    return {int(number) for prompt in prompts for number in MARKER.findall(prompt.text)}


ALL: Callable[[int], Any] = lambda r: range(1, r)  # noqa: E731
LAST: Callable[[int], Any] = lambda r: range(max(1, r - 1), r)  # noqa: E731

SHOWN: dict[str, Callable[[int], Any]] = {
    "react": ALL,
    "window": lambda r: range(max(1, r - 2), r),
    "window(3)": lambda r: range(max(1, r - 3), r),
    "resum(100000)": ALL,
    **dict.fromkeys(["no_memory", "mempo", "bank", "mem1", "iterresearch"], LAST),
    "paging(100000)": ALL,
    "paging(110)": lambda r: range(max(1, r - 2), r),  # the step that leaves is shown once more, to be saved
    **dict.fromkeys(["memagent", "memsearcher", "selfask", "rag_memory", "amem", "mem0"], LAST),
}
"""Agent: the searches whose passages round r shows."""

READ_APART = {"memagent": 2, "memsearcher": 1, "selfask": 1, "rag_memory": 1, "amem": 1, "mem0": 1}
"""Agents that read in calls of their own, of which there are so many, and act without the passages."""

BANKED = ["rag_memory", "amem", "mem0"]
"""Those of them that keep a memory bank by a rule, for which they may make other calls, without passages."""


@pytest.mark.parametrize("name", SHOWN)
def test_a_round_shows_the_passages_that_the_regime_keeps_and_no_others(name: str) -> None:
    rounds, episode = seen(name)
    assert len(rounds) == ROUNDS
    assert episode.stop_reason == "answered"
    for r, prompts in enumerate(rounds, 1):
        assert markers(prompts) == set(SHOWN[name](r)), f"round {r}"


@pytest.mark.parametrize("name", READ_APART)
def test_it_reads_in_calls_of_their_own_and_acts_without_the_passages(name: str) -> None:
    rounds, _ = seen(name)
    assert len(rounds[0]) == 1
    for prompts in rounds:
        assert markers(prompts[-1:]) == set()
    for prompts in rounds[1:]:
        reading = [prompt for prompt in prompts if markers([prompt])]
        assert len(reading) == READ_APART[name]
        assert all(len(markers([prompt])) == 1 for prompt in reading)
        assert name in BANKED or len(prompts) == 1 + len(reading)


def test_memagent_reads_one_passage_a_call_with_the_memory_of_the_one_before() -> None:
    rounds, _ = seen("memagent")
    assert "noted" not in rounds[1][0].text
    assert all("noted" in first.text for first, *_ in rounds[2:])
    for first, second, _ in rounds[1:]:
        assert "is here" in first.text and "is there" not in first.text
        assert "is there" in second.text and "is here" not in second.text
        assert "noted" in second.text


def test_a_summary_takes_the_place_of_all_steps_before_it() -> None:
    """The prompt grows by 20 words or more with each search; at 130 words it is summarised."""
    rounds, _ = seen("resum(130)")
    summaries = [r for r, prompts in enumerate(rounds, 1) if len(prompts) == 2]
    assert len(summaries) >= 2
    kept = 1
    for r, prompts in enumerate(rounds, 1):
        assert markers(prompts[:1]) == set(range(kept, r)), f"round {r}"
        if r in summaries:
            kept = r
            assert markers(prompts[1:]) == set()
            assert "noted" in prompts[1].text
    words = [len(prompt.text.split()) for prompts in rounds for prompt in prompts[-1:]]
    assert max(words) <= 130


def test_thoughts_are_not_shown_again_where_the_paper_drops_them() -> None:
    class Thinker(Dull):
        def _write(self, prompt: Prompt) -> str:
            return f"<think> hunch {self.left} </think>{super()._write(prompt)}"

    for name, shown in (("mem1", False), ("iterresearch", False), ("mempo", True)):
        model = Thinker()
        agent = make_agent(name, model=model)
        env = gym.make("MemPO-SearchQA-v0", dataset=QUESTIONS, retriever=Markers(), **agent.env_kwargs)
        _, info = env.reset(options={"question_id": "q0"})
        for _ in range(3):
            *_, info = env.step(agent.act([Context(info["segments"], "q0")])[0])
        assert ("hunch" in model.prompts[-1].text) is shown, name


def test_memsearcher_asks_for_the_memory_in_the_conversation_of_the_search() -> None:
    rounds, _ = seen("memsearcher")
    update = rounds[1][0]
    assert [message.role for message in update.messages] == ["system", "user", "assistant", "user"]
    assert update.messages[2] == Message("assistant", "<search> thing 4 </search>")
    assert "Update the memory" in update.messages[3].content


@pytest.mark.parametrize("name", [*SHOWN, "resum(130)", "paging(130)"])
def test_the_record_of_a_call_is_its_prompt(name: str) -> None:
    rounds, episode = seen(name)
    for prompts, played in zip(rounds, episode.rounds, strict=True):
        assert len(played.calls) == len(prompts)
        for prompt, call in zip(prompts, played.calls, strict=True):
            segments = (episode.ledger[s] if isinstance(s, int) else s for s in call.segments)
            assert "\n".join(segment.text for segment in segments) == prompt.text
            assert not any(s in episode.ledger[: played.view[-1]] for s in call.segments)  # nothing twice


def test_every_agent_that_asks_a_model_is_looked_at_here() -> None:
    asking = {name for name in AGENTS if isinstance(make_agent(name, QUESTIONS), ModelAgent)}
    assert asking - {"resum", "paging"} <= set(SHOWN)
