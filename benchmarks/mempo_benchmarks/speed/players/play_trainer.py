"""Our trainer: `grpo` with a language model of transformers, which writes in this process."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mempo_trainers.config import Config
from mempo_trainers.credit import Trajectories
from mempo_trainers.grpo import grpo
from mempo_trainers.policies.base import Rollouts
from mempo_trainers.policies.huggingface import HuggingFacePolicy, PolicySettings, open_policy
from mempo_trainers.run import Run
from mempo_trainers.sample import Draw
from mempo_trainers.threads import fitting
from mempo_trainers.tokens import Ragged


def start() -> dict[str, float]:
    """Nothing is to be imported that has not been."""
    return {"import": 0.0}


def train(folder: str, steps: int, before: int, threads: int) -> dict[str, Any]:
    """Train on the prompts of a folder; what each step after the first `before` took and wrote.

    Args:
        folder: Of the model, with work.json (see `mempo_benchmarks.speed.trainer`).
        steps: That count.
        before: That are taken first.
        threads: That torch may use; we use one for a network this small.
    """
    torch.set_num_threads(threads)
    work = json.loads((Path(folder) / "work.json").read_bytes())
    settings = PolicySettings(model=folder, max_new=work["completion"])
    policy = open_policy(settings, learning_rate=work["learning_rate"])
    spent: dict[str, float] = {}
    ends, tokens, rewards = list[tuple[float, float]](), list[int](), list[float]()

    def watch(step: int) -> Mapping[str, float]:
        ends.append((time.perf_counter(), time.process_time()))
        if step == before:
            spent.clear()
        return {}

    _watched(policy, spent)
    config = Config(
        credit="grpo",
        steps=before + steps,
        questions=work["questions"],
        rollouts=work["group"],
        learning_rate=work["learning_rate"],
        kl=work["beta"],
        checkpoint_every=before + steps,
    )
    few = fitting(policy.loaded.network)  # as `mempo train llm` does
    with tempfile.TemporaryDirectory() as scratch, Run(Path(scratch), {}) as run, few:
        draw = drawing(policy, work["prompts"], work["group"], tokens, rewards)
        grpo(policy, draw, config, run, watch)
    took = np.diff(ends, axis=0)[before - 1 :]
    return {
        "seconds": took[:, 0].tolist(),
        "processor": took[:, 1].tolist(),
        "tokens": tokens[before:],
        "reward": float(np.mean(rewards)),
        "parts": {name: seconds / steps for name, seconds in spent.items()},
    }


def drawing(
    policy: HuggingFacePolicy, prompts: list[str], group: int, tokens: list[int], rewards: list[float]
) -> Draw:
    """Rollouts of one call each after the prompts, in order; notes the tokens of each draw, and rewards."""
    ids = [np.array(policy.tokenizer.encode(prompt), np.int64) for prompt in prompts]

    def draw(step: int, attempt: int, questions: int) -> Rollouts:
        asked = [ids[(questions * (step - 1) + i) % len(ids)] for i in range(questions)]
        seen = Ragged(tuple(prompt for prompt in asked for _ in range(group)))
        written = policy.act(seen, torch.Generator().manual_seed(step))
        n_B = (written.roles_BK != 0).sum(1)
        rows = zip(written.tokens_BK, n_B, strict=True)
        texts = [policy.tokenizer.decode(row[:n].tolist()) for row, n in rows]
        outcome_N = np.array([early(text) for text in texts])
        tokens.append(int(n_B.sum()))
        rewards.extend(outcome_N.tolist())
        data = Trajectories(
            question_N=np.repeat(np.arange(questions), group),
            outcome_N=outcome_N,
            shaping_N=np.zeros(len(texts)),
            masked_N=np.zeros(len(texts), bool),
            rollout_R=np.arange(len(texts)),
            number_R=np.ones(len(texts), np.int64),
            round_B=np.arange(len(texts)),
            roles_BK=written.roles_BK,
        )
        return Rollouts(data, seen, written, None, None, None, None, outcome_N > 0)

    return draw


def early(text: str) -> float:
    """The reward: the share of letters that are of the first half of the alphabet."""
    letters = [letter for letter in text.lower() if letter.isalpha()]
    return sum(letter < "n" for letter in letters) / max(1, len(letters))


def _watched(policy: HuggingFacePolicy, spent: dict[str, float]) -> None:
    """Let a policy's methods, and those of its reference, tell how long they take (s)."""

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            began = time.process_time()
            try:
                return function(*args)
            finally:
                spent[name] = spent.get(name, 0.0) + time.process_time() - began

        return run

    class Watched:
        def __init__(self, reader: Any) -> None:
            self.logprobs = timed("reference", reader.logprobs)

    take: Any = policy
    reference = policy.reference
    take.reference = lambda: Watched(reference())
    for name, method in (("generation", "act"), ("log-probs", "logprobs"), ("optimiser", "update")):
        setattr(take, method, timed(name, getattr(policy, method)))
