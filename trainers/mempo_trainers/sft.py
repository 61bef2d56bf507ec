"""Supervised learning: a policy writes what an expert wrote in the same contexts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeAlias

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from mempo_agents.base import Agent
from mempo_agents.rollout import episodes
from mempo_env.errors import ConfigError, brief
from mempo_env.settings import Count, Settings, Whole
from mempo_env.types import Episode, Segment
from mempo_trainers.policies.base import Responses
from mempo_trainers.run import Run, Watch, no_watch
from mempo_trainers.text import TextPolicy
from mempo_trainers.tokens import Ragged, plain_responses


class SftConfig(Settings, frozen=True):
    """What the loop does.

    Attributes:
        seed: Of everything drawn at random.
        steps: Updates of the policy.
        batch: Examples a step.
        learning_rate: The highest one: it rises over the first tenth of the steps, then falls to a tenth.
        checkpoint_every: Steps between checkpoints.
    """

    seed: Whole = 0
    steps: Count = 200
    batch: Count = 24
    learning_rate: Annotated[float, Meta(gt=0, le=1e4)] = 5e-3
    checkpoint_every: Count = 50


class Examples(Struct, frozen=True, eq=False):
    """B contexts, as token ids, and the ids of what an expert wrote in each."""

    contexts: Ragged
    texts: Ragged

    def take(self, rows: NDArray[np.int64]) -> Examples:
        """Some of them."""
        return Examples(self.contexts[rows], self.texts[rows])

    @property
    def responses(self) -> Responses:
        """The texts, padded no more than they need; each token of them counts."""
        return plain_responses(self.texts.rows)


LEFT_OUT = 0.1
"""Share of texts that may be longer than the policy can write; without more it would learn little."""

Shown: TypeAlias = tuple[tuple[Segment, ...], str]
"""What was in view, and what an expert wrote then."""


def shown(agent: Agent, question_ids: Sequence[str], env_kwargs: Mapping[str, Any]) -> list[Shown]:
    """Each round of the episodes in which an agent answers everything exactly right, see `shown_in`.

    Arguments and errors are those of `right`.
    """
    played = right(agent, question_ids, env_kwargs)
    return shown_in([episode for _, episode in played], env_kwargs)


def right(
    agent: Agent, question_ids: Sequence[str], env_kwargs: Mapping[str, Any]
) -> list[tuple[int, Episode]]:
    """The episodes in which an agent answers everything exactly right, each with its place and its seed.

    The expert is told the protocol in words, whatever the policy is told of it.

    Args:
        agent: The expert.
        question_ids: What it is asked.
        env_kwargs: Keyword arguments of the environment, those with which the policy will play.

    Raises:
        ConfigError: if the expert needs other ones: the policy would learn from contexts that it never meets.
    """
    for name, value in agent.env_kwargs.items():
        if name in env_kwargs and env_kwargs[name] != value:
            raise ConfigError(
                f"{name}: the agent {agent.name!r} plays with {brief(value)}, the policy with "
                f"{brief(env_kwargs[name])}; choose the same, or it learns from contexts that it never "
                "meets"
            )
    playing = {name: value for name, value in env_kwargs.items() if name != "system_prompt"}
    played = sorted(episodes(agent, question_ids, env_kwargs=playing), key=lambda pair: pair[0])
    return [(i, episode) for i, episode in played if episode.score.em_all == 1]


def shown_in(played: Sequence[Episode], env_kwargs: Mapping[str, Any]) -> list[Shown]:
    """Each round of some episodes; what is in view begins with what the policy will be told."""
    told = env_kwargs.get("system_prompt")
    return [
        (_view([episode.ledger[i] for i in round.view], told), round.text)
        for episode in played
        for round in episode.rounds
    ]


def _view(segments: Sequence[Segment], told: str | None) -> tuple[Segment, ...]:
    """What the policy sees where the expert saw these; None: it is told the same."""
    if told is None:
        return tuple(segments)
    kept = tuple(segment for segment in segments if segment.kind != "system")
    return (Segment("system", 0, told, 0), *kept) if told else kept


def tokenised(rounds: Sequence[Shown], policy: TextPolicy) -> Examples:
    """Rounds as token ids, but for those of which `texts_used` says that they are too long, or its error."""
    tokenizer = policy.tokenizer
    texts = [np.array(tokenizer.encode(text), np.int64) for _, text in rounds]
    short = texts_used(texts, policy.max_new)
    contexts = tuple(np.array(tokenizer.prompt(rounds[i][0]), np.int64) for i in short)
    return Examples(Ragged(contexts), Ragged(tuple(texts[i] for i in short)))


def texts_used(texts: Sequence[Sequence[int] | NDArray[np.int64]], max_new: int) -> list[int]:
    """Places of the texts that a policy can write, of at most `max_new` tokens.

    Raises:
        ConfigError: if there are none at all, or more than `LEFT_OUT` of them are longer.
    """
    if not texts:
        raise ConfigError("wanted texts to imitate, got none: ask an expert that answers rightly")
    short = [i for i, text in enumerate(texts) if len(text) <= max_new]
    if len(texts) - len(short) > LEFT_OUT * len(texts):
        lengths = sorted(map(len, texts))
        most, out = lengths[math.ceil((1 - LEFT_OUT) * len(lengths)) - 1], len(texts) - len(short)
        raise ConfigError(
            f"max_new: wanted {lengths[-1]:,} tokens, the longest text to imitate, or at least {most:,}, "
            f"got {max_new:,}, which leaves out {out:,} of {len(texts):,} texts: the policy would learn "
            "to write short ones alone"
        )
    return short


def sft(policy: TextPolicy, examples: Examples, config: SftConfig, run: Run, watch: Watch = no_watch) -> None:
    """Train a policy on examples: cross-entropy of its own tokens, never of the contexts.

    Args:
        policy: Learns in place.
        examples: What the expert wrote.
        config: Settings.
        run: Takes the metrics and the checkpoints, and knows where to go on.
        watch: Tells more of a step when it is done.
    """
    for step in run.steps(policy, config.steps, config.checkpoint_every, "imitating the expert"):
        chance = np.random.default_rng([config.seed, step])
        for group in policy.optimizer.param_groups:
            group["lr"] = config.learning_rate * _pace(step / config.steps)
        rows = chance.integers(len(examples.contexts), size=config.batch)
        told = _learn(policy, examples.take(rows))
        run.log(step, watch, **told)


def _pace(done: float) -> float:
    """Share of the learning rate when so much of the training is done, both in [0, 1]."""
    return min(1.0, 10 * done) * (1 - 0.9 * done)


def _learn(policy: TextPolicy, batch: Examples) -> dict[str, float]:
    """One step down the mean loss of a batch's tokens; micro-batches share its denominator."""
    parts = policy.batches(batch.contexts, batch.responses)
    tokens = sum(map(len, batch.texts))
    loss = 0.0
    for rows in parts:
        part = batch.take(rows)
        logprobs_BK, _ = policy.logprobs(part.contexts, part.responses)
        mean = -logprobs_BK.sum() / tokens
        one = mean.detach() * 0 + 1  # nan where the loss is not finite: so are then the gradients
        mean.backward(one)  # type: ignore[no-untyped-call]
        loss += float(mean.detach())
    norm = policy.update()
    skipped = float(not math.isfinite(norm))
    return {"loss": loss, "tokens": tokens, "grad_norm": norm, "skipped_updates": skipped}
