"""A language model in the loops of the tiny policies, watched on questions that it never learns from."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from mempo_agents.models.base import ModelError
from mempo_agents.rollout import together
from mempo_agents.table import AGENTS, ASK_NONE, keeps_memory, make_agent
from mempo_env.errors import ConfigError
from mempo_env.files import atomic_file, digest
from mempo_env.types import Episode, Invalid, Split
from mempo_env.viewer import SAMPLES
from mempo_trainers.config import Config
from mempo_trainers.grpo import grpo
from mempo_trainers.llm.engines import Opened, checked, opened, save_anew
from mempo_trainers.llm.examples import examples_of
from mempo_trainers.llm.settings import Sampler, Setup, SftSetup, Task
from mempo_trainers.ppo import ppo
from mempo_trainers.run import Run
from mempo_trainers.run_files import RESULT, conclude, read_result, read_rows
from mempo_trainers.scores import credits_memory
from mempo_trainers.sft import sft
from mempo_trainers.text import check_enough, drawing, numbered, persistently
from mempo_trainers.threads import fitting

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
    _check_agent(task, config)
    asked = {split: task.asked(split) for split in _SPLITS}
    check_enough(numbered(asked["train"]), config.questions)
    learning = {name: getattr(config, name) for name in ("learning_rate", "max_grad_norm", "seed")}
    made = opened(setup.policy, setup.sampler, task.agent, out, gap=config.sampler_gap, **learning)
    settings = {**msgspec.to_builtins(setup), **_content(task, asked, made)}
    with fitting(made.network), Run(out, settings, board, track=track) as run:
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
    _check_agent(task)
    _check_imitated(setup)
    asked = {split: task.asked(split) for split in _SPLITS}
    made = opened(setup.policy, Sampler(), task.agent, out, learning_rate=setup.sft.learning_rate)
    examples, told = examples_of(setup, asked["train"], made.policy)
    contents = digest(*(ids.tobytes() for ids in (*examples.contexts, *examples.texts)))
    settings = {**msgspec.to_builtins(setup), **_content(task, asked, made)}
    settings["data"]["examples"] = contents
    with fitting(made.network), Run(out, settings, board, track=track) as run:
        sft(
            made.policy,
            examples,
            setup.sft,
            run,
            Watcher(made, task, asked["dev"], setup.evaluate_every, out),
        )
        return _concluded(made, task, asked["test"], out, told)


_SPLITS: tuple[Split, ...] = ("train", "dev", "test")


def _check_agent(task: Task, config: Config | None = None) -> None:
    """ConfigError for an agent that is unknown, asks no model, or does not fit environment or credit."""
    if task.agent in ASK_NONE:
        names = ", ".join(sorted(AGENTS.keys() - set(ASK_NONE)))
        raise ConfigError(
            f"task.agent: wanted one that asks a model, which learns, got {task.agent!r}, which asks none: "
            f"choose from {names}"
        )
    agent = make_agent(task.agent)  # says which there are
    together(agent, task.env_kwargs("train"))
    if config is None:
        return
    if config.credit == "attribution" and task.agent != "bank" and ":" not in task.agent:
        raise ConfigError(
            "config.credit: 'attribution' wanted an agent whose policy works on a memory bank itself, got "
            f"{task.agent!r}: choose task.agent=bank"
        )
    if keeps_memory(task.agent, task.environment):
        return
    if config.kl and config.kl_tokens == "memory":
        raise ConfigError(
            f"config.kl_tokens: wanted 'all', as the agent {task.agent!r} has no memory, got 'memory'"
        )
    if credits_memory(config.credit):
        plain = "grpo" if config.algo == "grpo" else "gae"
        raise ConfigError(
            f"config.credit: wanted one without a term for memory, as the agent {task.agent!r} has none, got "
            f"{config.credit!r}: choose config.credit={plain}, or an agent with a memory"
        )


def _check_imitated(setup: SftSetup) -> None:
    """ConfigError for an expert that is not known, or a file that is not there."""
    if not setup.examples:
        make_agent(setup.expert, setup.task.questions("train"))
    elif not Path(setup.examples).is_file():
        raise ConfigError(f"examples: wanted a file of chats, found none: {setup.examples}")


def evaluate(
    made: Opened, question_ids: Sequence[str], task: Task, split: Split, out: Path
) -> dict[str, float]:
    """What a policy does on questions, as it samples: means over episodes that are not masked.

    `em` and `f1` are of objectives, `success` is all of them right, `well_formed` the share of rounds that
    can be read. `failed` counts, for each question, the episodes that failed by no fault of the policy: they
    are played again, as in training, and `episodes` tells how many are left. `sampler_gap` tells how far a
    server's log-probs are from the policy's own.

    Args:
        made: Who plays.
        question_ids: What is asked.
        task: What is played.
        split: Whose questions.
        out: A file for the first episodes, which `mempo view` shows.

    Raises:
        ModelError: if the server that generates is gone, or every episode failed or had no round.
        ConfigError: if it does not generate as the policy does.
    """
    player = made.players(np.random.default_rng(0))
    played, failed = persistently(player, question_ids, task.env_kwargs(split), 0, made.spare)
    live = [episode for episode in played if not episode.mask_episode]
    if failed:
        made.check()
    if not any(episode.rounds for episode in live):
        told = f"{played[0].stop_reason}: {played[0].stop_detail}"
        raise ModelError(
            f"wanted episodes of {split!r}, got {len(played)} that all failed or never began, by {told}"
        )
    compared = made.compared(live)
    with atomic_file(out) as file:
        file.writelines(msgspec.json.encode(episode) + b"\n" for episode in played[:SHOWN])
    return {**_means(live), "failed": failed / len(played), **compared}


def _means(played: Sequence[Episode]) -> dict[str, float]:
    """Of episodes, at least one of which has a round."""
    rounds = [round for episode in played for round in episode.rounds]
    return {
        "em": float(np.mean([episode.score.em for episode in played])),
        "f1": float(np.mean([episode.score.f1 for episode in played])),
        "success": float(np.mean([episode.score.em_all == 1 for episode in played])),
        "reward": float(np.mean([episode.rewards.total() for episode in played])),
        "well_formed": float(np.mean([not isinstance(round.action, Invalid) for round in rounds])),
        "rounds": len(rounds) / len(played),
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
        """The measures of a step: of a server's scores, and "dev_em" and so on where it is evaluated."""
        scored = self.opened.scored()
        if not self.every or step % self.every:
            return scored
        start, samples = time.perf_counter(), self.out / f"{SAMPLES}-{step:06d}.jsonl"
        found = evaluate(self.opened, self.asked, self.task, "dev", samples)
        if found["em"] > max(self._before(step), default=0.0):
            best = self.out / f"{BEST}-{step:06d}"
            save_anew(self.opened.policy, best)
            for older in {*self.out.glob(f"{BEST}-*"), *self.out.glob(f".{BEST}-*")} - {best}:
                shutil.rmtree(older)
        seconds = round(time.perf_counter() - start, 4)
        return {**scored, **{f"dev_{name}": value for name, value in {**found, "seconds": seconds}.items()}}

    def _before(self, step: int) -> list[float]:
        """What earlier evaluations found."""
        rows = [msgspec.json.decode(line) for line in read_rows(self.out, whole=False)]
        return [row["dev_em"] for row in rows[: step - 1] if row.get("dev_em") is not None]


def _concluded(
    made: Opened, task: Task, asked: Sequence[str], out: Path, told: Mapping[str, float] | None = None
) -> dict[str, float]:
    if (out / RESULT).is_file() and (out / POLICY).is_dir():
        print(f"{out}: was finished before; this is what it came to", file=sys.stderr)  # noqa: T201
        return read_result(out)
    result = {**evaluate(made, asked, task, "test", out / f"{SAMPLES}-test.jsonl"), **(told or {})}
    save_anew(made.policy, out / POLICY)
    conclude(out, result)
    return result


def _content(task: Task, asked: Mapping[Split, Sequence[str]], made: Opened) -> dict[str, Any]:
    """Digests of what the settings name: questions, model. A run does not go on with others."""
    return {
        "data": {"questions": task.fingerprint(), **{name: digest(*ids) for name, ids in asked.items()}},
        "model": made.began,
    }
