"""A policy for the text face that writes what a script says, and goes through the same loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray

import mempo_env
from mempo_env.types import FinishReason, Question, Segment
from mempo_trainers.config import Config
from mempo_trainers.credit.data import THINK
from mempo_trainers.grpo import grpo
from mempo_trainers.policies.base import Responses
from mempo_trainers.run import Run
from mempo_trainers.text import drawing, players

Script = Callable[[str, int], str]
"""What to write from a prompt and the number of updates so far."""

TEXT_ENV = next(iter(mempo_env.ENVIRONMENTS))


class Letters:
    """A token a character."""

    def encode(self, text: str) -> Sequence[int]:
        return [ord(letter) for letter in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))

    def starts(self, ids: Sequence[int]) -> Sequence[int]:
        return range(len(ids))

    def prompt(self, segments: Sequence[Segment]) -> Sequence[int]:
        return self.encode("".join(f"{segment.text}\n" for segment in segments))


class Scripted:
    """Writes by a script; its one weight is how sure it is of each letter."""

    tokenizer = Letters()

    def __init__(self, script: Script) -> None:
        self.script, self.updates = script, 0
        self.weight = torch.zeros((), requires_grad=True)

    def act(self, contexts: Any, generator: torch.Generator) -> Responses:
        ids = [
            self.tokenizer.encode(self.script(self.tokenizer.decode(c.tolist()), self.updates))
            for c in contexts
        ]
        tokens = np.zeros((len(ids), max(map(len, ids))), np.int64)
        for row, text in enumerate(ids):
            tokens[row, : len(text)] = text
        roles = np.where(tokens > 0, THINK, 0).astype(np.int8)
        logp = float(torch.nn.functional.logsigmoid(self.weight.detach()))
        return Responses(tokens, roles, np.where(roles != 0, logp, 0.0).astype(np.float32))

    def logprobs(self, contexts: Any, responses: Responses) -> tuple[torch.Tensor, torch.Tensor]:
        written = torch.from_numpy(responses.roles_BK != 0).float()
        return torch.nn.functional.logsigmoid(self.weight) * written, 0.5 * written

    def values(self, contexts: Any, responses: Responses) -> torch.Tensor:
        return torch.zeros(responses.tokens_BK.shape) + 0 * self.weight

    def logprobs_and_values(
        self, contexts: Any, responses: Responses
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return *self.logprobs(contexts, responses), self.values(contexts, responses)

    def score(self, views: Any) -> NDArray[np.float64]:
        """An answer that stands in the context is likely."""
        return np.array([[np.nan] if view is None else [self._score(view)] for view in views])

    def _score(self, view: Any) -> float:
        context, answer = (self.tokenizer.decode(x.tolist()) for x in (view.context, view.answers[0][1]))
        return float(np.log(0.9 if answer.strip() in context else 0.01))

    def batches(self, contexts: Any, responses: Responses) -> list[NDArray[np.int64]]:
        return [np.arange(len(responses.tokens_BK))]

    def finish_reason(self, ids: Sequence[int]) -> FinishReason:
        return "stop"

    def update(self) -> float:
        self.updates += 1
        self.weight.grad = None
        return 0.1

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.updates = state["updates"]


def train_text(out: Path, script: Script, steps: int, credit: str = "mempo") -> None:
    """GRPO with a script on a few questions of the synthetic Wikipedia."""
    config = Config(steps=steps, questions=2, rollouts=2, checkpoint_every=100, credit=credit)
    policy = Scripted(script)
    ids = [question.id for question in some_questions()]
    with Run(out, {"config": {"kl": 0.0}}) as run:
        grpo(policy, drawing(players(policy), policy.tokenizer, ids, {"split": "train"}, 2, 0), config, run)


def some_questions() -> Sequence[Question]:
    """Questions whose answer does not stand in their text."""
    questions = gym.make(TEXT_ENV, split="train").unwrapped.questions  # type: ignore[attr-defined]
    return [q for q in questions if q.answers[0] not in q.text and q.answers[0] not in ("yes", "no")][:8]
