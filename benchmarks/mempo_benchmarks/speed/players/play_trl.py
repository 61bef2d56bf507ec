"""TRL's GRPOTrainer on the same model, prompts and reward; it generates with transformers."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def start() -> dict[str, float]:
    """Seconds of the import."""
    began = time.perf_counter()
    from trl import GRPOTrainer  # noqa: F401

    return {"import": time.perf_counter() - began}


def train(folder: str, steps: int, before: int, threads: int) -> dict[str, Any]:
    """Train on the prompts of a folder; what each step after the first `before` took and wrote.

    Args:
        folder: Of the model, with work.json (see `mempo_benchmarks.speed.trainer`).
        steps: That count.
        before: That are taken first.
        threads: Of torch.
    """
    import torch
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(threads)
    work = json.loads((Path(folder) / "work.json").read_bytes())
    spent: dict[str, float] = {}
    ends, tokens, rewards = list[tuple[float, float]](), list[int](), list[float]()

    def reward(completions: list[str], completion_ids: list[list[int]], **_: Any) -> list[float]:
        tokens.append(sum(map(len, completion_ids)))
        rewards.extend(early(text) for text in completions)
        return rewards[-len(completions) :]

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            ends.append((time.perf_counter(), time.process_time()))
            if state.global_step == before:
                spent.clear()

    with tempfile.TemporaryDirectory() as scratch:
        config = GRPOConfig(
            output_dir=scratch,
            per_device_train_batch_size=work["questions"] * work["group"],
            num_generations=work["group"],
            max_completion_length=work["completion"],
            learning_rate=work["learning_rate"],
            lr_scheduler_type="constant",
            beta=work["beta"],
            max_steps=before + steps,
            logging_steps=1,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            save_strategy="no",
            shuffle_dataset=False,
            report_to="none",
            disable_tqdm=True,
            seed=0,
        )
        trainer = GRPOTrainer(
            model=folder,
            reward_funcs=reward,
            args=config,
            train_dataset=Dataset.from_dict({"prompt": work["prompts"]}),
            callbacks=[Clock()],
        )
        trainer.create_optimizer()
        _watched(trainer, spent)
        trainer.train()
    pairs = list(zip(ends[before - 1 :], ends[before:], strict=False))
    return {
        "seconds": [end[0] - begin[0] for begin, end in pairs],
        "processor": [end[1] - begin[1] for begin, end in pairs],
        "tokens": tokens[before:],
        "reward": sum(rewards) / len(rewards),
        "parts": {name: seconds / steps for name, seconds in spent.items()},
    }


def early(text: str) -> float:
    """The reward: the share of letters that are of the first half of the alphabet."""
    letters = [letter for letter in text.lower() if letter.isalpha()]
    return sum(letter < "n" for letter in letters) / max(1, len(letters))


def _watched(trainer: Any, spent: dict[str, float]) -> None:
    """Let the parts of a step tell how long they take (s)."""
    import torch

    def timed(name: Callable[[], str], function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            began, label = time.process_time(), name()
            try:
                return function(*args, **kwargs)
            finally:
                spent[label] = spent.get(label, 0.0) + time.process_time() - began

        return run

    def whose() -> str:
        return "log-probs" if torch.is_grad_enabled() else "reference"

    trainer._generate = timed(lambda: "generation", trainer._generate)
    read = trainer._get_per_token_logps_and_entropies
    trainer._get_per_token_logps_and_entropies = timed(whose, read)
    trainer.optimizer.step = timed(lambda: "optimiser", trainer.optimizer.step)
