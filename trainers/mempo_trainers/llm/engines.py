"""Who generates: the policy's own network in this process, or a server that is given its weights."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mempo_agents.models.base import Engine, Model, ModelError, Prompt, Sampling
from mempo_agents.models.huggingface import HuggingFace
from mempo_env.types import Call
from mempo_trainers.llm.settings import Sampler
from mempo_trainers.policies.huggingface import HuggingFacePolicy

WEIGHTS = "weights"
"""The folder in that of a run from which a server takes the policy's weights."""


def save_anew(policy: HuggingFacePolicy, folder: Path) -> None:
    """Save a policy where there may be an older one."""
    shutil.rmtree(folder, ignore_errors=True)
    policy.save(folder)


def sampling(policy: HuggingFacePolicy) -> Sampling:
    """How a policy samples: at temperature 1 from all tokens, as its log-probs are."""
    return Sampling(temperature=1.0, top_p=1.0, max_tokens=policy.max_new)


def open_engine(sampler: Sampler, policy: HuggingFacePolicy, out: Path) -> Callable[[], Model]:
    """What makes the model that writes as the policy is when it is called.

    Args:
        sampler: Which.
        policy: Who learns.
        out: The folder of the run.

    Raises:
        ConfigError: if the server's address is none.
        ModelError: from the call, if the server does not take the weights.
    """
    if sampler.url:
        from mempo_agents.models.sglang import SGLang

        server = SGLang(model=policy.settings.model, url=sampler.url, sampling=sampling(policy))
        return Served(server, policy, out / WEIGHTS)
    inside = HuggingFace(loaded=policy.loaded, batch=sampler.batch, sampling=sampling(policy))
    return lambda: InProcess(inside, policy)


@dataclass
class InProcess:
    """The policy's network, run as its log-probs are."""

    model: HuggingFace
    policy: HuggingFacePolicy

    @property
    def name(self) -> str:
        """The model's."""
        return self.model.name

    @property
    def fingerprint(self) -> str:
        """Names nothing: a policy in training changes."""
        return ""

    def generate(self, prompts: Sequence[Prompt]) -> list[Call | ModelError]:
        """Answer each prompt, in order."""
        with self.policy.reader.mode():
            return self.model.generate(prompts)


@dataclass
class Served:
    """A server that gets the policy's weights whenever they have changed."""

    server: Engine
    policy: HuggingFacePolicy
    folder: Path
    updates: int = field(default=-1)

    def __call__(self) -> Engine:
        """The server, with the policy's weights as they are now."""
        if self.policy.updates != self.updates:
            save_anew(self.policy, self.folder)
            self.server.update_weights(self.folder)
            self.updates = self.policy.updates
        return self.server
