"""Agents that can be trained: what the trainer reads and learns is what the model was asked and wrote."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from llm_help import chatting, needs_transformers
from mempo_agents.models.base import ModelError, Prompt
from mempo_agents.models.chat import decode, encode
from mempo_agents.models.scripted import ScriptedModel
from mempo_agents.rounds import ModelAgent
from mempo_agents.table import AGENTS, make_agent
from mempo_env.types import Call
from mempo_trainers.credit.data import NOT_GENERATED
from mempo_trainers.llm.settings import Task
from mempo_trainers.text import rollouts

needs_transformers()

from mempo_trainers.policies.huggingface.tokenizer import ChatTokenizer  # noqa: E402

TRAINABLE = [name for name in AGENTS if name != "oracle" and isinstance(make_agent(name), ModelAgent)]
TOKENIZER = ChatTokenizer(chatting())


class Exact:
    """The scripted reader as one that samples ids: now and then it writes what nobody can read.

    Attributes:
        asked: Prompt ids, sampled ids and log-probs of every call.
    """

    name = fingerprint = "exact"

    def __init__(self, noise: Sequence[str]) -> None:
        self.reader, self.noise, self.asked = ScriptedModel(), noise, list[Any]()

    def generate(self, prompts: Sequence[Prompt]) -> list[Call | ModelError]:
        return [
            self._call(prompt, call) for prompt, call in zip(prompts, self._written(prompts), strict=True)
        ]

    def _written(self, prompts: Sequence[Prompt]) -> Iterator[Call]:
        for call in self.reader.generate(prompts):
            assert isinstance(call, Call)
            yield call

    def _call(self, prompt: Prompt, call: Call) -> Call:
        number = len(self.asked)
        text = self.noise[number % 7] if number % 7 < len(self.noise) else call.output
        written = (*TOKENIZER.encode(text), chatting().eos_token_id)
        logprobs = tuple(np.float32(-(1 + number + np.arange(len(written))) / 1000).tolist())
        self.asked.append((encode(chatting(), prompt), written, logprobs))
        ids, output = self.asked[-1][0], decode(chatting(), written, prompt.stop)
        return replace(
            call, prompt_ids=ids, output_ids=written, logprobs=logprobs, output=output, finish_reason="stop"
        )


@pytest.mark.parametrize("name", TRAINABLE)
@given(
    noise=st.lists(st.text(max_size=12) | st.just("<mem> a </mem> \u00e9 <search> b </search>"), max_size=3)
)
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_trainer_has_every_call_with_its_context_byte_for_byte(name: str, noise: list[str]) -> None:
    task, model = Task(objectives=1, sets=20), Exact(noise)
    agent = make_agent(name, None, model)
    found = rollouts(agent, TOKENIZER, task.asked("train")[:2], task.env_kwargs("train"), seed=0)
    assert not found.data.masked_N.any()
    learned = Counter()
    written = found.responses
    for context, ids_K, roles_K, logprobs_K in zip(
        found.contexts, written.tokens_BK, written.roles_BK, written.logprobs_BK, strict=True
    ):
        n = int((roles_K != NOT_GENERATED).sum())
        assert not roles_K[n:].any()  # each token has a role, and no padding has one
        learned[tuple(context.tolist()), tuple(ids_K[:n].tolist()), tuple(logprobs_K[:n].tolist())] += 1
    assert learned == Counter(model.asked)
