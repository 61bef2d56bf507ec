"""Rollouts of agents whose models learn, in the text environment."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import msgspec
import numpy as np
import torch

from mempo_agents.base import Agent, Context
from mempo_agents.rollout import episodes
from mempo_env.errors import ConfigError, RolloutError
from mempo_env.types import Call, Completion, Episode, FinishReason, StopReason
from mempo_trainers.credit.data import Ints
from mempo_trainers.episodes import TextTokenizer, from_episodes, numbers
from mempo_trainers.policies.base import Policy, Rollouts
from mempo_trainers.sample import Draw
from mempo_trainers.tokens import Ragged

Players: TypeAlias = Callable[[np.random.Generator], Agent]
"""Makes the agent that plays a step, with chance of its own."""


class TextPolicy(Policy, Protocol):
    """A policy whose contexts are token ids; it writes at most `max_new` tokens a round."""

    max_new: int

    @property
    def tokenizer(self) -> TextTokenizer:
        """Of its ids."""
        ...

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """What `update` steps."""
        ...

    def finish_reason(self, ids: Sequence[int]) -> FinishReason:
        """Why a text of these ids ended."""
        ...


@dataclass
class Player:
    """A policy as an agent: each completion carries the exact ids that were read and written.

    Attributes:
        policy: Who writes.
        generator: Of its choices.
        name: What to call it.
        fingerprint: Names nothing: a policy in training changes.
        env_kwargs: Keyword arguments of the environment that it plays with.
    """

    policy: TextPolicy
    generator: torch.Generator
    name: str = "policy"
    fingerprint: str = ""
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def act(self, contexts: Sequence[Context]) -> list[Completion]:
        """Write the next round of each episode."""
        tokenizer = self.policy.tokenizer
        prompts = [np.array(tokenizer.prompt(context.segments), np.int64) for context in contexts]
        responses = self.policy.act(Ragged(tuple(prompts)), self.generator)
        completions = []
        for row, (context, prompt) in enumerate(zip(contexts, prompts, strict=True)):
            n = int((responses.roles_BK[row] != 0).sum())
            ids = tuple(responses.tokens_BK[row, :n].tolist())
            logprobs = tuple(responses.logprobs_BK[row, :n].tolist())
            reason, text = self.policy.finish_reason(ids), tokenizer.decode(ids)
            call = Call(
                segments=context.segments,
                output=text,
                prompt_ids=tuple(prompt.tolist()),
                output_ids=ids,
                logprobs=logprobs,
                finish_reason=reason,
            )
            completions.append(Completion(text, ids, logprobs, reason, (call,)))
        return completions


def players(policy: TextPolicy, env_kwargs: Mapping[str, Any] | None = None) -> Players:
    """A policy as the agent of each step, as it is then, with keyword arguments of its environment."""

    def player(chance: np.random.Generator) -> Player:
        generator = torch.Generator().manual_seed(int(chance.integers(1 << 62)))
        return Player(policy, generator, env_kwargs=env_kwargs or {})

    return player


@dataclass
class _Timed:
    """An agent, and how long each of its calls took (s)."""

    agent: Agent
    seconds: list[float] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.agent.name

    @property
    def env_kwargs(self) -> Mapping[str, Any]:
        return self.agent.env_kwargs

    @property
    def fingerprint(self) -> str:
        return self.agent.fingerprint

    def act(self, contexts: Sequence[Context]) -> Sequence[Completion | str | Exception]:
        start = time.perf_counter()
        written = self.agent.act(contexts)
        self.seconds.append(time.perf_counter() - start)
        return written


def drawing(
    players: Players,
    tokenizer: TextTokenizer,
    question_ids: Sequence[str],
    env_kwargs: Mapping[str, Any],
    group: int,
    seed: int,
    spare: int = 0,
) -> Draw:
    """What a loop draws its rollouts from; the groups of a draw are of different questions.

    Args:
        players: Who plays.
        tokenizer: Of the ids that its calls hold.
        question_ids: What may be asked: ids of questions, or of objectives joined by "+".
        env_kwargs: Keyword arguments of the environment.
        group: Rollouts of each question.
        seed: Of the run.
        spare: Episodes that a draw may play again where one failed by no fault of the agent.

    Raises:
        ConfigError: from a draw of more questions than there are different ones.
    """
    number_Q = numbered(question_ids)

    def draw(step: int, attempt: int, questions: int) -> Rollouts:
        chance = np.random.default_rng([seed, step, attempt])
        chosen = _chosen(number_Q, questions, chance)
        agent = players(chance)
        ids = [question_ids[i] for i in chosen for _ in range(group)]
        return rollouts(agent, tokenizer, ids, env_kwargs, int(chance.integers(1 << 31)), spare)

    return draw


def numbered(question_ids: Sequence[str]) -> Ints:
    """A number for each, from 0 on, equal for equal questions, in whichever order they are joined by "+"."""
    return numbers(frozenset(ids.split("+")) for ids in question_ids)


def check_enough(number_Q: Ints, questions: int) -> None:
    """ConfigError if so many different questions are more than there are."""
    most = len(np.unique(number_Q))
    if questions > most:
        raise ConfigError(f"questions: wanted at most the {most:,} different ones, got {questions:,}")


def _chosen(number_Q: Ints, questions: int, chance: np.random.Generator) -> Ints:
    """Places of so many different questions; where a draw repeats one, others take its place."""
    check_enough(number_Q, questions)
    drawn = chance.choice(len(number_Q), questions, replace=False)
    others = chance.spawn(1)[0].permutation(len(number_Q))
    places = np.concatenate([drawn, others])
    _, first = np.unique(number_Q[places], return_index=True)
    chosen: Ints = places[np.sort(first)[:questions]]
    return chosen


def rollouts(
    agent: Agent,
    tokenizer: TextTokenizer,
    question_ids: Sequence[str],
    env_kwargs: Mapping[str, Any],
    seed: int,
    spare: int = 0,
) -> Rollouts:
    """Play one episode for each question id, all at once; equal ids are a group.

    A failed episode is data: one that failed by no fault of the agent is played again while there are spare
    ones, else it is masked. `extra` tells how many failed for each that was asked for, and how long
    environment and agent took in a round (s).

    Args:
        agent: Who plays; its calls carry exact token ids.
        tokenizer: Of these ids.
        question_ids: The objectives of each episode: an id, or ids joined by "+".
        env_kwargs: Keyword arguments of the environment.
        seed: Episode i gets seed + i.
        spare: Episodes that may be played again.

    Raises:
        RolloutError: if every episode failed by no fault of the agent, or ended before its first round.
    """
    timed, start = _Timed(agent), time.perf_counter()
    played, failed = persistently(timed, question_ids, env_kwargs, seed, spare)
    if not any(episode.rounds for episode in played if not episode.mask_episode):
        masked = all(episode.mask_episode for episode in played)
        how = "failed by no fault of the policy" if masked else "ended before their first round"
        raise RolloutError(
            f"wanted rollouts, got {len(played)} that all {how}, the first one by "
            f"{played[0].stop_reason}: {played[0].stop_detail}; mend that, and let the run go on"
        )
    waited = time.perf_counter() - start - sum(timed.seconds)
    found = from_episodes(played, tokenizer)
    times = {
        "environment_seconds": waited / len(timed.seconds),
        "agent_seconds": sum(timed.seconds) / len(timed.seconds),
        "failed": failed / len(played),
    }
    return msgspec.structs.replace(found, extra={**found.extra, **times})


def persistently(
    agent: Agent, question_ids: Sequence[str], env_kwargs: Mapping[str, Any], seed: int, spare: int
) -> tuple[list[Episode], int]:
    """As `play`, but up to `spare` episodes that failed by no fault of the agent are played again.

    Returns:
        The episodes, and how many failed, those played again among them.
    """
    played, failed = play(agent, question_ids, env_kwargs, seed), 0
    while rows := [i for i, episode in enumerate(played) if episode.mask_episode][:spare]:
        failed, spare, seed = failed + len(rows), spare - len(rows), seed + len(played)
        again = play(agent, [question_ids[i] for i in rows], env_kwargs, seed)
        for i, episode in zip(rows, again, strict=True):
            played[i] = episode
    return played, failed + sum(episode.mask_episode for episode in played)


def play(
    agent: Agent, question_ids: Sequence[str], env_kwargs: Mapping[str, Any], seed: int
) -> list[Episode]:
    """The episodes behind `rollouts`, in the order of the question ids.

    Raises:
        RuntimeError: if the agent failed to write: such an episode tells nothing about what it has learned.
    """
    made = episodes(agent, question_ids, env_kwargs=env_kwargs, num_envs=len(question_ids), seed=seed)
    ordered = [episode for _, episode in sorted(made, key=lambda pair: pair[0])]
    for episode in ordered:
        if episode.stop_reason is StopReason.AGENT_ERROR:
            raise RuntimeError(f"{episode.question_id}: the policy failed to write: {episode.stop_detail}")
    return ordered
