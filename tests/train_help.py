"""What the tests of training share: small tasks, small settings, policies that are not blank, runs."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from mempo_env.arrays.vector import SearchQAArrayVectorEnv
from mempo_trainers import checkpoint
from mempo_trainers.config import Config
from mempo_trainers.grpo import grpo
from mempo_trainers.play import rollouts
from mempo_trainers.policies.base import Policy, Rollouts
from mempo_trainers.policies.pointer import ArrayPolicy
from mempo_trainers.ppo import ppo
from mempo_trainers.run import Run
from mempo_trainers.run_files import CHECKPOINT
from mempo_trainers.sample import Draw
from mempo_trainers.toy import Toy, ToyDraw, draw_questions

MEMPO = (sys.executable, "-c", "from mempo_env.cli import main; raise SystemExit(main())")

TASK = Toy(objectives=2, worlds=60)
CONFIG = Config(steps=6, questions=3, rollouts=4, checkpoint_every=2)


COMMAND = ("train", "toy", "--objectives", "1", "--steps", "5", "--questions", "2", "--rollouts", "2")
"""A short run; the fixture `toy_run` is what it leaves."""


def wild(
    envs: SearchQAArrayVectorEnv, kind: str = "pointer", seed: int = 0, size: float = 1.0
) -> ArrayPolicy:
    """A policy with random weights everywhere."""
    policy = ArrayPolicy(envs.layout, kind, learning_rate=0.03, max_grad_norm=1.0, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in policy.heads.parameters():
            weight.copy_(size * torch.randn(weight.shape, generator=generator))
    return policy


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def played(policy: ArrayPolicy, envs: SearchQAArrayVectorEnv, group: int = 1, seed: int = 0) -> Rollouts:
    """Rollouts of a policy, groups of `group` copies of a question."""
    ids = draw_questions(envs, envs.num_envs // group, np.random.default_rng(seed))
    return rollouts(policy, envs, np.repeat(ids, group).tolist(), seeded(seed), seed)


def train(
    out: Path,
    task: Toy = TASK,
    config: Config = CONFIG,
    *,
    policy: ArrayPolicy | None = None,
    draw: Callable[[Policy], Draw] | None = None,
) -> ArrayPolicy:
    """A run of the real loop, without evaluation; with another policy or other rollouts where given."""
    learner = task.make_policy(config) if policy is None else policy
    source = ToyDraw(learner, task, config.rollouts, config.seed) if draw is None else draw(learner)
    settings = {"task": msgspec.to_builtins(task), "config": msgspec.to_builtins(config)}
    with Run(out, settings) as run:
        {"grpo": grpo, "ppo": ppo}[config.algo](learner, source, config, run)
    return learner


def with_config(**changes: Any) -> Config:
    return msgspec.structs.replace(CONFIG, **changes)


def metrics(out: Path) -> list[dict[str, Any]]:
    """The rows of a run but for the time they took."""
    lines = (out / "metrics.jsonl").read_bytes().splitlines()
    return [
        {name: value for name, value in msgspec.json.decode(line).items() if "seconds" not in name}
        for line in lines
    ]


@contextmanager
def disk_of(size: int) -> Iterator[None]:
    """Files of at most so many bytes; writing more fails, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def mempo(*args: str | Path, **popen: Any) -> subprocess.Popen[str]:
    """A command in a process of its own."""
    command = [*MEMPO, *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **popen)


def toy(out: Path, *args: str, **popen: Any) -> subprocess.Popen[str]:
    """`mempo train toy` in a process of its own."""
    return mempo("train", "toy", "--out", out, *args, **popen)


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit code and standard error."""
    _, err = process.communicate(timeout=300)
    return process.returncode, err


def copied(run: Path, folder: Path) -> Path:
    return Path(shutil.copytree(run, folder / "copy"))


def weights(out: Path) -> dict[str, torch.Tensor]:
    state = checkpoint.read(out / CHECKPOINT)["policy"]
    adam = state["optimizer"]["state"]
    return {**state["heads"], **{f"{i}.{name}": adam[i][name] for i in adam for name in adam[i]}}


def assert_same(one: Path, other: Path) -> None:
    """Equal metrics, weights and states of the optimiser, bit for bit."""
    assert metrics(one) == metrics(other)
    here, there = weights(one), weights(other)
    assert here.keys() == there.keys()
    for name, value in here.items():
        assert torch.equal(value, there[name]), name


def toml(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(inner)}" for key, inner in value.items()) + "}"
    return json.dumps(value)
