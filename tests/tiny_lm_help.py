"""A small language model, and a policy that writes what it is told, for the small world."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from mempo_env.questions.world import WorldSpec
from mempo_trainers.config import Config
from mempo_trainers.policies.base import Responses
from mempo_trainers.policies.tiny_lm import Shape, TinyLM, learn
from mempo_trainers.sft import SftConfig
from mempo_trainers.tokens import Ragged, plain_responses
from mempo_trainers.toy_text import ToyText
from small import PASSAGES, QUESTIONS, TitleRetriever

TOKENIZER = learn(
    [
        *(f"[1] {passage.title}\n{passage.text}\n" for passage in PASSAGES),
        *(f"Question: {question.text}\n<mem>\n1. ? = :: \n</mem>\n" for question in QUESTIONS[:4]),
        *("Questions:\n<search> </search> <answer> </answer> (3 rounds left)",) * 4,
    ],
    share=0.2,
)

ENV: dict[str, Any] = {
    "dataset": QUESTIONS,
    "retriever": TitleRetriever(),
    "top_k": 1,
    "max_rounds": 4,
    "system_prompt": "",
    "hint": False,
    "context": "memory_only",
}

SMALL = ToyText(
    world=WorldSpec(),
    episodes=12,
    warm=SftConfig(steps=6, batch=4, checkpoint_every=2),
    width=16,
    heads=2,
    max_new=32,
)
"""The toy task in text, made small: seconds, and nothing learned."""

LEARN = Config(steps=6, questions=2, rollouts=2, learning_rate=1e-3, entropy=0.01, checkpoint_every=2)


def tiny(seed: int = 0, learning_rate: float = 1e-2, **settings: Any) -> TinyLM:
    """An untrained policy with few weights."""
    shape = Shape(len(TOKENIZER), width=32, layers=2, heads=2)
    return TinyLM(TOKENIZER, shape, learning_rate=learning_rate, seed=seed, **settings)


def sharp(seed: int = 0, **settings: Any) -> TinyLM:
    """A policy of large random weights: far from uniform, every path of the network alive."""
    policy = tiny(seed, **settings)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight.add_(0.3 * torch.randn(weight.shape, generator=generator))
    return policy


def contexts(lengths: list[int], seed: int = 0) -> Ragged:
    """Random texts."""
    chance = np.random.default_rng(seed)
    return Ragged(tuple(chance.integers(2, len(TOKENIZER), size=n) for n in lengths))


def responses(lengths: list[int], seed: int = 1) -> Responses:
    """Random texts as responses."""
    return plain_responses(contexts(lengths, seed).rows)


class Told:
    """A policy that writes what a function says of its context, with made-up log-probs."""

    tokenizer, max_new = TOKENIZER, 96

    def __init__(self, write: Callable[[str], str]) -> None:
        self.write = write

    def act(self, contexts: Ragged, generator: torch.Generator) -> Responses:
        """Write in each context."""
        texts = [TOKENIZER.encode(self.write(TOKENIZER.decode(context.tolist()))) for context in contexts]
        made = plain_responses([np.array(text) for text in texts])
        return Responses(made.tokens_BK, made.roles_BK, -0.5 * (made.roles_BK != 0).astype(np.float32))

    def finish_reason(self, ids: Any) -> str:
        """It always says all it wanted to."""
        return "stop"
