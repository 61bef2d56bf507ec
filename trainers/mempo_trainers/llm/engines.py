"""Who learns, and who generates with its weights: its own network in this process, or a server."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from mempo_agents.models.base import Engine, ModelError, Prompt, Sampling
from mempo_agents.models.huggingface import HuggingFace
from mempo_agents.table import make_agent
from mempo_env.files import digest
from mempo_env.types import Call
from mempo_trainers.llm.settings import Sampler
from mempo_trainers.policies.huggingface import HuggingFacePolicy, PolicySettings, open_policy
from mempo_trainers.policies.tiny_lm import TinyLM
from mempo_trainers.policies.tiny_lm.policy import SHAPE
from mempo_trainers.scoring.table import open_scorer
from mempo_trainers.text import Players, TextPolicy, players

WEIGHTS = "weights"
"""The folder in that of a run from which a server takes the policy's weights."""


class Saved(TextPolicy, Protocol):
    """A policy that can be written to a folder, from which it is opened."""

    def save(self, folder: Path) -> None:
        """Write a new folder."""
        ...


@dataclass(frozen=True)
class Opened:
    """A policy in training, and what plays with it.

    Attributes:
        policy: Who learns.
        players: Makes the agent that plays as the policy is then.
        began: A digest of what the policy began with.
    """

    policy: Saved
    players: Players
    began: str


def opened(
    settings: PolicySettings,
    sampler: Sampler,
    agent: str,
    out: Path,
    *,
    learning_rate: float,
    **learning: Any,
) -> Opened:
    """Load a policy and connect it to who generates.

    Args:
        settings: Which policy: a model of transformers, or the folder of a saved `TinyLM`, which is asked
            without an agent, in this process.
        sampler: Who generates.
        agent: How a model is asked.
        out: The folder of the run.
        learning_rate: Of the optimiser.
        learning: Further ones: max_grad_norm, seed.

    Raises:
        ConfigError: if there is no such model, or the server's address is none.
        ModelError: from the players, if the server does not take the weights.
    """
    folder = Path(settings.model)
    if (folder / SHAPE).is_file():
        learning.pop("seed", None)
        tiny = TinyLM.load(folder, learning_rate=learning_rate, max_new=settings.max_new, **learning)
        files = [path.read_bytes() for path in sorted(folder.iterdir())]
        return Opened(tiny, players(tiny), digest(*files))
    scorer = "naive" if sampler.scorer == "server" else sampler.scorer
    policy = open_policy(
        settings,
        lambda network: open_scorer(scorer, network, batch_tokens=settings.batch_tokens),
        learning_rate=learning_rate,
        **learning,
    )
    engine = _engine(sampler, policy, out)
    if sampler.scorer == "server":
        policy.scorer = open_scorer("server", model=_Late(engine))
    return Opened(policy, lambda _: make_agent(agent, model=engine()), str(policy.began))


def save_anew(policy: Saved, folder: Path) -> None:
    """Save a policy where there may be an older one."""
    shutil.rmtree(folder, ignore_errors=True)
    policy.save(folder)


def _engine(sampler: Sampler, policy: HuggingFacePolicy, out: Path) -> Callable[[], Engine]:
    """What makes the model that writes as the policy is when it is called, at temperature 1."""
    sampling = Sampling(temperature=1.0, top_p=1.0, max_tokens=policy.max_new)
    if sampler.url:
        from mempo_agents.models.sglang import SGLang

        server = SGLang(model=policy.settings.model, url=sampler.url, sampling=sampling)
        return Served(server, policy, out / WEIGHTS)
    inside = InProcess(HuggingFace(loaded=policy.loaded, batch=sampler.batch, sampling=sampling), policy)
    return lambda: inside


@dataclass(frozen=True)
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

    def generate(self, prompts: Sequence[Prompt]) -> Sequence[Call | ModelError]:
        """Answer each prompt, in order."""
        with self.policy.reader.mode():
            return self.model.generate(prompts)

    def score(
        self, asked: Sequence[tuple[Sequence[int], Sequence[int]]]
    ) -> Sequence[tuple[float, ...] | ModelError]:
        """Log-probabilities of the second ids after the first."""
        with self.policy.reader.mode():
            return self.model.score(asked)

    def update_weights(self, folder: Path) -> None:
        """Take the weights in a folder: those of the policy itself."""
        self.model.update_weights(folder)


@dataclass
class Served:
    """A server that gets the policy's weights whenever they have changed."""

    server: Engine
    policy: HuggingFacePolicy
    folder: Path
    updates: int = -1

    def __call__(self) -> Engine:
        """The server, with the policy's weights as they are now."""
        if self.policy.updates != self.updates:
            save_anew(self.policy, self.folder)
            self.server.update_weights(self.folder)
            self.updates = self.policy.updates
        return self.server


@dataclass(frozen=True)
class _Late:
    """Scores with an engine as it is when it is asked."""

    engine: Callable[[], Engine]

    def score(
        self, asked: Sequence[tuple[Sequence[int], Sequence[int]]]
    ) -> Sequence[tuple[float, ...] | ModelError]:
        return self.engine().score(asked)
