"""Who learns, and who generates with its weights: its own network in this process, or a server."""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from msgspec import Struct

from mempo_agents.models.base import Engine, ModelError, ModelTimeout, Prompt, Sampling
from mempo_agents.models.huggingface import HuggingFace
from mempo_agents.models.sglang import SGLang, wait_until_ready
from mempo_agents.rounds import ModelAgent, one_call
from mempo_agents.table import make_agent
from mempo_env.errors import ConfigError, RolloutError
from mempo_env.files import digest
from mempo_env.types import Call, Episode
from mempo_trainers import losses
from mempo_trainers.credit.data import NOT_GENERATED
from mempo_trainers.llm.settings import Sampler
from mempo_trainers.policies.base import Rollouts
from mempo_trainers.policies.huggingface import HuggingFacePolicy, PolicySettings, open_policy
from mempo_trainers.policies.tiny_lm import TinyLM
from mempo_trainers.policies.tiny_lm.policy import SHAPE
from mempo_trainers.sample import Draw
from mempo_trainers.scoring.table import open_scorer
from mempo_trainers.text import Players, TextPolicy, players
from mempo_trainers.tokens import Ragged, plain_responses

WEIGHTS = "weights"
"""The folder in that of a run from which a server takes the policy's weights."""


LONGEST = 600.0
"""Seconds for a call to a server that says that it is well: it may be writing, or reading weights."""

COMPARED = 16
"""Calls of an evaluation whose log-probs are held against the policy's own."""

Told: TypeAlias = tuple[Sequence[int], Sequence[int], Sequence[float]]
"""Ids, those that come after them, and what a server told of the log-probs of these."""


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
        network: Its weights.
        players: Makes the agent that plays as the policy is then.
        began: A digest of what the policy began with.
        spare: Episodes of a step, or of an evaluation, that may be played again where they failed.
        check: Called where an episode failed; a ModelError if the server that generates is gone.
        compared: `sampler_gap` of some episodes, where a server generates; a ConfigError if that is no longer
            the policy, see `Served.compared`.
        scored: `score_failed` and `score_gap` of a step, where a server scores, see `Served.scored`.
    """

    policy: Saved
    network: torch.nn.Module
    players: Players
    began: str
    spare: int = 0
    check: Callable[[], None] = lambda: None
    compared: Callable[[Sequence[Episode]], Mapping[str, float]] = lambda _: {}
    scored: Callable[[], Mapping[str, float]] = dict


def opened(
    settings: PolicySettings,
    sampler: Sampler,
    agent: str,
    out: Path,
    *,
    learning_rate: float,
    gap: float | None = None,
    **learning: Any,
) -> Opened:
    """Load a policy and connect it to who generates.

    Args:
        settings: Which policy: a model of transformers, or the folder of a saved `TinyLM`, which is asked
            in this process, by the environment's prompts.
        sampler: Who generates.
        agent: How a model is asked.
        out: The folder of the run.
        learning_rate: Of the optimiser.
        gap: Nats by which a server's log-probs may differ from the policy's own; None: `losses.SAMPLER_GAP`.
        learning: Further ones: max_grad_norm, seed.

    Raises:
        ConfigError: if there is no such model, its window has no room for a prompt before `max_new` tokens,
            the server's address is none, or a `TinyLM` is to be asked by prompts of an agent's own.
        ModelTimeout: if no server is healthy there in time.
        ModelError: from the players, if the server does not take the weights.
    """
    if (Path(settings.model) / SHAPE).is_file():
        learning.pop("seed", None)
        return _opened_tiny(settings, sampler, agent, learning_rate=learning_rate, **learning)
    scorer = "naive" if sampler.scorer == "server" else sampler.scorer
    policy = open_policy(
        settings,
        lambda network: open_scorer(scorer, network, batch_tokens=settings.batch_tokens),
        learning_rate=learning_rate,
        **learning,
    )
    window = policy.loaded.window
    if window is not None and policy.max_new >= window:
        raise ConfigError(
            f"max_new: wanted less than the {window:,} tokens of the model's window, which prompts share, "
            f"got {policy.max_new:,}"
        )
    sampling = Sampling(temperature=1.0, top_p=1.0, max_tokens=policy.max_new)
    network, began, spare = policy.loaded.network, str(policy.began), sampler.spare
    if not sampler.url:
        model = HuggingFace(loaded=policy.loaded, batch=sampler.batch, sampling=sampling)
        inside = InProcess(model, policy)
        return Opened(policy, network, lambda _: make_agent(agent, model=inside), began, spare)
    served = _served(sampler, sampling, policy, out / WEIGHTS, losses.SAMPLER_GAP if gap is None else gap)
    made = Opened(
        policy,
        network,
        lambda _: make_agent(agent, model=served()),
        began,
        spare,
        served.check,
        served.compared,
    )
    if sampler.scorer != "server":
        return made
    policy.scorer = open_scorer("server", model=served)
    return replace(made, scored=served.scored)


def _opened_tiny(settings: PolicySettings, sampler: Sampler, agent: str, **learning: Any) -> Opened:
    """A saved `TinyLM`, and what plays with it."""
    folder, asked = Path(settings.model), make_agent(agent)
    if sampler.url:
        raise ConfigError(f"sampler.url: wanted none for {folder}, which is asked in this process")
    if not (isinstance(asked, ModelAgent) and asked.play is one_call):
        raise ConfigError(
            f"task.agent: wanted one that is asked once a round by the environment's prompt, as {folder} "
            f"is, got {agent!r}: choose mempo, bank, window, react or no_memory"
        )
    tiny = TinyLM.load(folder, max_new=settings.max_new, **learning)
    files = [path.read_bytes() for path in sorted(folder.iterdir())]
    return Opened(tiny, tiny.model, players(tiny, asked.env_kwargs), digest(*files), sampler.spare)


def checked(draw: Draw, check: Callable[[], None]) -> Draw:
    """Draws that end the run where the server is gone, so that none is learned from in part.

    Args:
        draw: Plays with the server.
        check: Of `Opened`.
    """

    def drawn(step: int, attempt: int, questions: int) -> Rollouts:
        with _of_a_step():
            found = draw(step, attempt, questions)
            if found.data.masked_N.any():
                check()
        return found

    return drawn


@contextmanager
def _of_a_step() -> Iterator[None]:
    """What fails before a step has learned anything leaves the policy as the step before left it."""
    try:
        yield
    except ModelError as error:
        raise RolloutError(f"{error}; mend that, and let the run go on") from None


def save_anew(policy: Saved, folder: Path) -> None:
    """Save a policy where there may be an older one, which goes only when the new one is whole."""
    new, old = (folder.with_name(f".{folder.name}.{what}") for what in ("new", "old"))
    if old.exists() and not folder.exists():  # left by a process that was killed between two lines below
        old.rename(folder)
    for left in (new, old):
        shutil.rmtree(left, ignore_errors=True)
    policy.save(new)
    if folder.exists():
        folder.rename(old)
    new.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


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


class Blameless(SGLang, frozen=True, kw_only=True):
    """A server whose lateness is no fault of the policy: an episode that it ends is masked, not punished."""

    def generate(self, prompts: Sequence[Prompt]) -> list[Call | ModelError]:
        """As `SGLang.generate`, but a ModelTimeout is a plain ModelError."""
        answers = SGLang.generate(self, prompts)
        return [ModelError(str(one)) if isinstance(one, ModelTimeout) else one for one in answers]


class _Scores(Struct, frozen=True):
    """Of one call: how many were asked for, how many failed, and how far (nats) one was from the policy's."""

    asked: int
    failed: int
    gap: float


@dataclass
class Served:
    """A server that gets the policy's weights whenever they have changed, and is held against the policy.

    Attributes:
        server: Who generates.
        policy: Whose weights it gets,
        folder: in this folder.
        gap: Nats by which its log-probs may differ from the policy's own.
        wait: Raises a ModelError if the server is not there; tells whether it was at once.
        updates: Of the policy when it last got them; -1: never.
    """

    server: Engine
    policy: HuggingFacePolicy
    folder: Path
    gap: float = losses.SAMPLER_GAP
    wait: Callable[[], bool] = lambda: True
    updates: int = -1
    _scores: list[_Scores] = field(default_factory=list)
    _said: bool = False

    def __call__(self) -> Engine:
        """The server, with the policy's weights as they are now."""
        if self.policy.updates != self.updates:
            save_anew(self.policy, self.folder)
            self.server.update_weights(self.folder)
            self.updates = self.policy.updates
        return self.server

    def check(self) -> None:
        """A ModelError if the server is gone; one that may have been away has other weights: it gets ours."""
        self.updates = -1
        self.wait()

    def score(
        self, asked: Sequence[tuple[Sequence[int], Sequence[int]]]
    ) -> Sequence[tuple[float, ...] | ModelError]:
        """As `Engine.score` says, with the weights as they are now; why one failed is said once on stderr.

        Raises:
            RolloutError: if the server is gone, or all of them failed.
            ConfigError: if the shortest text is further than `gap` from what the policy itself says of it.
        """
        with _of_a_step():
            found = self().score(asked)
            errors = [one for one in found if isinstance(one, ModelError)]
            if errors:
                self.updates = self.updates if self.wait() else -1  # as it was, if it was there all the time
                self._lost(errors, len(found))
        good = [
            (*pair, told) for pair, told in zip(asked, found, strict=True) if not isinstance(told, ModelError)
        ]
        shortest = sorted(good, key=lambda text: len(text[0]) + len(text[1]))[:1]
        gap = _gap(self.policy, shortest, self.gap, "the server that scores")
        self._scores.append(_Scores(len(found), len(errors), gap))
        return found

    def _lost(self, errors: Sequence[ModelError], asked: int) -> None:
        """Say once why scores failed; a ModelError if all of them did."""
        told = f"{len(errors):,} of {asked:,} failed, the first one by: {errors[0]}"
        if len(errors) == asked:
            raise ModelError(f"wanted scores of memories, got none: {told}")
        if not self._said:
            print(f"scores of memories: {told}; score_failed counts them", file=sys.stderr)  # noqa: T201
        self._said = True

    def scored(self) -> dict[str, float]:
        """Of all scores since it was last asked: the share that failed, and the largest gap (nats).

        NaN where there were none.
        """
        scores, self._scores = self._scores, []
        asked = sum(one.asked for one in scores)
        return {
            "score_failed": sum(one.failed for one in scores) / asked if asked else math.nan,
            "score_gap": max((one.gap for one in scores), default=math.nan),
        }

    def compared(self, played: Sequence[Episode]) -> dict[str, float]:
        """The largest difference (nats) of log-probs from the policy's own in the first calls of episodes.

        Raises:
            ConfigError: if it is more than `gap`.
        """
        calls = [call for episode in played for round in episode.rounds for call in round.calls]
        some = calls[
            :: max(1, math.ceil(len(calls) / COMPARED))
        ]  # of all of it: a server may change meanwhile
        texts = [(call.prompt_ids, call.output_ids, call.logprobs) for call in some]
        return {"sampler_gap": _gap(self.policy, texts, self.gap, "the server in an evaluation")}


def _gap(policy: HuggingFacePolicy, texts: Sequence[Told], most: float, what: str) -> float:
    """The largest difference (nats) of told log-probs from the policy's own; NaN without texts.

    Raises:
        ConfigError: if it is more than `most`.
    """
    if not texts:
        return math.nan
    contexts = Ragged(tuple(np.array(before, np.int64) for before, _, _ in texts))
    responses = plain_responses([np.array(ids, np.int64) for _, ids, _ in texts])
    with torch.no_grad():
        ours_BK, _ = policy.logprobs(contexts, responses)
    live_BK = torch.from_numpy(responses.roles_BK != NOT_GENERATED)
    told_BK = torch.zeros_like(ours_BK)
    told_BK[live_BK] = torch.tensor([logprob for *_, told in texts for logprob in told])
    losses.check_same(ours_BK, told_BK, live_BK.float(), atol=most, what=what)
    return float((ours_BK - told_BK).abs().max())


def _served(
    sampler: Sampler, sampling: Sampling, policy: HuggingFacePolicy, folder: Path, gap: float
) -> Served:
    """A server that is healthy."""
    server = Blameless(
        model=policy.settings.model,
        url=sampler.url,
        sampling=sampling,
        patience=sampler.wait,
        concurrency=sampler.batch,
        read=LONGEST,
        total=LONGEST,
    )

    def wait() -> bool:
        print(f"{sampler.url}: waiting until it is healthy, at most {sampler.wait:g} s", file=sys.stderr)  # noqa: T201
        try:
            return wait_until_ready(server, sampler.wait)
        except ModelTimeout as error:
            raise ModelTimeout(f"sampler.url {sampler.url}: {error}") from None

    made = Served(server, policy, folder, gap, wait)
    made.check()
    return made
