"""A language model in the loops of the tiny policies, watched on questions that it never learns from."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from mempo_agents.models.base import Message, ModelError, Prompt
from mempo_agents.rounds import ModelAgent
from mempo_agents.table import make_agent
from mempo_env.errors import ConfigError, DataError
from mempo_env.files import atomic_file, digest, read_jsonl
from mempo_env.types import Episode, Invalid, Split
from mempo_env.viewer import SAMPLES
from mempo_trainers.grpo import grpo
from mempo_trainers.llm.engines import Opened, checked, opened, save_anew
from mempo_trainers.llm.settings import Sampler, Setup, SftSetup, Task
from mempo_trainers.policies.huggingface import HuggingFacePolicy
from mempo_trainers.ppo import ppo
from mempo_trainers.run import Run, conclude, read_rows
from mempo_trainers.sft import Examples, sft, shown, tokenised
from mempo_trainers.text import TextPolicy, check_enough, drawing, numbered, persistently
from mempo_trainers.tokens import Ragged, plain_responses

SHOWN = 8
"""Episodes of an evaluation that are kept for `mempo view`."""

LOOPS = {"grpo": grpo, "ppo": ppo}

POLICY, BEST = "policy", "best"
"""Folders in that of a run: the policy at its end; the one that was best on the dev split, with its step."""


def train(setup: Setup, out: Path, board: bool = True, track: Sequence[str] = ()) -> dict[str, float]:
    """Train by GRPO or PPO, or go on; returns and writes what the policy does on the test split.

    Args:
        setup: Everything.
        out: Folder of the run: settings.json, metrics.jsonl, checkpoint.safetensors, policy/, best-STEP/,
            episodes-STEP.jsonl, result.json.
        board: Write the metrics for TensorBoard too, where it is installed.
        track: Further trackers, see `mempo_trainers.trackers`.

    Raises:
        ConfigError: for settings that do not fit one another, the model or the data.
        ResultsError: if the folder holds another run, or what is there cannot be read.
        RolloutError: if a step got no rollout; the steps before it are saved.
        TrainingError: if losses or gradients are not finite any more.
    """
    task, config = setup.task, setup.config
    _check_agent(task.agent)
    asked = {split: task.asked(split) for split in _SPLITS}
    check_enough(numbered(asked["train"]), config.questions)
    learning = {name: getattr(config, name) for name in ("learning_rate", "max_grad_norm", "seed")}
    made = opened(setup.policy, setup.sampler, task.agent, out, **learning)
    settings = {**msgspec.to_builtins(setup), **_content(task, asked, made)}
    with Run(out, settings, board, track=track) as run:
        draw = drawing(
            made.players,
            made.policy.tokenizer,
            asked["train"],
            task.env_kwargs("train"),
            config.rollouts,
            config.seed,
            setup.sampler.spare,
        )
        watch = Watcher(made, task, asked["dev"], setup.evaluate_every, out)
        LOOPS[config.algo](made.policy, checked(draw, made.check), config, run, watch)
        return _concluded(made, task, asked["test"], out)


def imitate(setup: SftSetup, out: Path, board: bool = True, track: Sequence[str] = ()) -> dict[str, float]:
    """Train on what an expert wrote, or go on; arguments, files and errors are those of `train`."""
    task = setup.task
    _check_agent(task.agent)
    asked = {split: task.asked(split) for split in _SPLITS}
    made = opened(setup.policy, Sampler(), task.agent, out, learning_rate=setup.sft.learning_rate)
    examples = examples_of(setup, asked["train"], made.policy)
    told = digest(*(ids.tobytes() for ids in examples.contexts), examples.responses.tokens_BK.tobytes())
    settings = {**msgspec.to_builtins(setup), **_content(task, asked, made)}
    settings["data"]["examples"] = told
    with Run(out, settings, board, track=track) as run:
        sft(
            made.policy,
            examples,
            setup.sft,
            run,
            Watcher(made, task, asked["dev"], setup.evaluate_every, out),
        )
        return _concluded(made, task, asked["test"], out)


_SPLITS: tuple[Split, ...] = ("train", "dev", "test")


def _check_agent(name: str) -> None:
    """ConfigError for an agent that is not known, or of ours and asks no model."""
    made = make_agent(name)
    if ":" not in name and not isinstance(made, ModelAgent):
        raise ConfigError(f"agent: wanted one that asks a model, which learns, got {name!r}")


def evaluate(
    made: Opened, question_ids: Sequence[str], task: Task, split: Split, out: Path
) -> dict[str, float]:
    """What a policy does on questions, as it samples: means over episodes that are not masked.

    `em` and `f1` are of objectives, `success` is all of them right, `well_formed` the share of rounds that
    can be read. `failed` counts, for each question, the episodes that failed by no fault of the policy: they
    are played again, as in training, and `episodes` tells how many are left.

    Args:
        made: Who plays.
        question_ids: What is asked.
        task: What is played.
        split: Whose questions.
        out: A file for the first episodes, which `mempo view` shows.

    Raises:
        ModelError: if the server that generates is gone, or every episode failed.
    """
    player = made.players(np.random.default_rng(0))
    played, failed = persistently(player, question_ids, task.env_kwargs(split), 0, made.spare)
    live = [episode for episode in played if not episode.mask_episode]
    if failed:
        made.check()
    if not live:
        told = f"{played[0].stop_reason}: {played[0].stop_detail}"
        raise ModelError(f"wanted episodes of {split!r}, got {len(played)} that all failed, by {told}")
    with atomic_file(out) as file:
        file.writelines(msgspec.json.encode(episode) + b"\n" for episode in played[:SHOWN])
    return {**_means(live), "failed": failed / len(played)}


def _means(played: Sequence[Episode]) -> dict[str, float]:
    """Of episodes, at least one."""
    rounds = [round for episode in played for round in episode.rounds]
    return {
        "em": float(np.mean([episode.score.em for episode in played])),
        "f1": float(np.mean([episode.score.f1 for episode in played])),
        "success": float(np.mean([episode.score.em_all == 1 for episode in played])),
        "reward": float(np.mean([episode.rewards.total() for episode in played])),
        "well_formed": float(np.mean([not isinstance(round.action, Invalid) for round in rounds])),
        "rounds": len(rounds) / max(len(played), 1),
        "episodes": len(played),
    }


@dataclass(frozen=True)
class Watcher:
    """Evaluates a policy on the dev split now and then, and keeps the best.

    Attributes:
        opened: Who learns, and who plays.
        task: What is played.
        asked: The questions.
        every: Steps between evaluations; 0: none.
        out: The folder of the run.
    """

    opened: Opened
    task: Task
    asked: Sequence[str]
    every: int
    out: Path

    def __call__(self, step: int) -> Mapping[str, float]:
        """The measures of a step, "dev_em" and so on; none where it is not evaluated."""
        if not self.every or step % self.every:
            return {}
        start, samples = time.perf_counter(), self.out / f"{SAMPLES}-{step:06d}.jsonl"
        found = evaluate(self.opened, self.asked, self.task, "dev", samples)
        if found["em"] > max(self._before(step), default=-1.0):
            best = self.out / f"{BEST}-{step:06d}"
            save_anew(self.opened.policy, best)
            for older in set(self.out.glob(f"{BEST}-*")) - {best}:  # there until this one is
                shutil.rmtree(older)
        seconds = round(time.perf_counter() - start, 4)
        return {f"dev_{name}": value for name, value in {**found, "seconds": seconds}.items()}

    def _before(self, step: int) -> list[float]:
        """What earlier evaluations found."""
        rows = [msgspec.json.decode(line) for line in read_rows(self.out, whole=False)]
        return [row["dev_em"] for row in rows[: step - 1] if row.get("dev_em") is not None]


def _concluded(made: Opened, task: Task, asked: Sequence[str], out: Path) -> dict[str, float]:
    result = evaluate(made, asked, task, "test", out / f"{SAMPLES}-test.jsonl")
    save_anew(made.policy, out / POLICY)
    conclude(out, result)
    return result


def _content(task: Task, asked: Mapping[Split, Sequence[str]], made: Opened) -> dict[str, Any]:
    """Digests of what the settings name: questions, model. A run does not go on with others."""
    return {
        "data": {"questions": task.fingerprint(), **{name: digest(*ids) for name, ids in asked.items()}},
        "model": made.began,
    }


class _Chat(msgspec.Struct, frozen=True):
    messages: tuple[Message, ...]


def examples_of(setup: SftSetup, asked: Sequence[str], policy: TextPolicy) -> Examples:
    """What is imitated: an expert's rounds on the questions asked, or the last messages of a file's chats.

    Raises:
        ConfigError: if the expert plays in another way than the policy will, or writes nothing short enough,
            or reads more than the policy can.
        DataError: for a line that is no chat, or one that can't be learned, by its number.
    """
    if not setup.examples:
        expert = make_agent(setup.expert)
        found = tokenised(shown(expert, asked, setup.task.env_kwargs("train")), policy)
        if isinstance(policy, HuggingFacePolicy):
            policy.reader.check(found.contexts, found.responses)
        return found
    if not isinstance(policy, HuggingFacePolicy):
        raise ConfigError(
            f"examples: wanted a model of transformers, which knows chats, got {setup.policy.model}"
        )
    return chats(Path(setup.examples), policy)


def chats(file: Path, policy: HuggingFacePolicy) -> Examples:
    """The last messages of a file's chats, after those before them."""
    contexts, texts = [], []
    for number, chat in read_jsonl(file, _Chat):
        if len(chat.messages) < 2 or chat.messages[-1].role != "assistant":
            raise DataError(
                f"{file}:{number}: wanted messages of which the last is the assistant's, got roles "
                f"{[message.role for message in chat.messages]}"
            )
        try:
            contexts.append(np.array(policy.tokenizer.chat(Prompt(chat.messages[:-1])), np.int64))
            texts.append(np.array(policy.tokenizer.encode(chat.messages[-1].content), np.int64))
            policy.reader.check(Ragged((contexts[-1],)), plain_responses(texts[-1:]))
        except (ConfigError, ModelError) as error:
            raise DataError(f"{file}:{number}: {error}") from None
        if not len(texts[-1]):
            raise DataError(f"{file}:{number}: wanted a last message with a text, got an empty one")
    if not texts:
        raise DataError(f"{file}: wanted at least one chat, found none")
    return Examples(Ragged(tuple(contexts)), plain_responses(texts))
