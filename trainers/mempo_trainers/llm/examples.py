"""What is imitated: the calls of an expert that was right, or the last messages of a file's chats."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from mempo_agents.base import Agent
from mempo_agents.models.base import Message, Model, ModelError, Prompt
from mempo_agents.models.table import make_model
from mempo_agents.rounds import ModelAgent, composed, one_call
from mempo_agents.table import make_agent
from mempo_env.errors import ConfigError, DataError
from mempo_env.files import read_jsonl
from mempo_env.types import Call, Episode
from mempo_trainers.llm.settings import SftSetup
from mempo_trainers.policies.huggingface import HuggingFacePolicy
from mempo_trainers.sft import Examples, right, shown_in, texts_used, tokenised
from mempo_trainers.text import TextPolicy
from mempo_trainers.tokens import Ragged


def examples_of(
    setup: SftSetup, asked: Sequence[str], policy: TextPolicy
) -> tuple[Examples, dict[str, float]]:
    """What is imitated, and how much there was: chats, or what an expert wrote in episodes that it got right.

    The figures are `texts`, `texts_used` and `longest_text` (tokens); of an expert `expert_episodes` and
    `expert_right`, too.

    Raises:
        ConfigError: if the expert plays in another way than the policy will, or more than a tenth of the
            texts is longer than the policy may write.
        DataError: for a line that is no chat, by its number.
    """
    if setup.examples:
        if not isinstance(policy, HuggingFacePolicy):
            raise ConfigError(
                f"examples: wanted a model of transformers, which knows chats, got {setup.policy.model}"
            )
        examples, told = chats(Path(setup.examples), policy)
        said = f"{setup.examples}: "
    else:
        examples, told = _of_expert(setup, asked, policy)
        said = f"{setup.expert} is right in {told['expert_right']:,} of {len(asked):,} episodes; "
    used, texts = told["texts_used"], told["texts"]
    rest = f"; the others are longer than policy.max_new ({policy.max_new})" if used < texts else ""
    print(  # noqa: T201
        f"{said}{used:,} of {texts:,} texts are used, of at most {told['longest_text']:,} tokens{rest}",
        file=sys.stderr,
    )
    return examples, told


# --- An expert ---------------------------------------------------------------------------------------------


@dataclass
class Noting:
    """A model, and what it was asked and wrote in each episode, by the episode's seed."""

    model: Model
    noted: dict[int, list[tuple[Prompt, str]]] = field(default_factory=lambda: defaultdict(list))

    @property
    def name(self) -> str:
        """The model's."""
        return self.model.name

    @property
    def fingerprint(self) -> str:
        """The model's."""
        return self.model.fingerprint

    def generate(self, prompts: Sequence[Prompt]) -> Sequence[Call | ModelError]:
        """Answer each prompt, in order."""
        answers = self.model.generate(prompts)
        for prompt, answer in zip(prompts, answers, strict=True):
            if isinstance(answer, Call):
                self.noted[prompt.draw].append((prompt, answer.output))
        return answers


def _of_expert(
    setup: SftSetup, asked: Sequence[str], policy: TextPolicy
) -> tuple[Examples, dict[str, float]]:
    """Each call of an expert in the episodes that it gets right, with the prompt that it was asked by."""
    noting, task = Noting(make_model("scripted")), setup.task
    expert = make_agent(setup.expert, task.questions("train"), noting)
    env_kwargs, player = task.env_kwargs("train"), make_agent(task.agent, model=noting)
    playing = {**env_kwargs, **_without_prompt(player.env_kwargs)}
    if not isinstance(policy, HuggingFacePolicy):
        _check_one_call(setup, expert)
        played = right(expert, asked, playing)
        rounds = shown_in([episode for _, episode in played], env_kwargs)
        texts = [policy.tokenizer.encode(text) for _, text in rounds]
        examples = tokenised(rounds, policy)
    else:
        _check_alike(setup, expert, player)
        played = right(expert, asked, playing)
        told = env_kwargs.get("system_prompt")
        calls = [
            (_as_told(prompt, episode, told), text)
            for i, episode in played
            for prompt, text in noting.noted.get(i)
            or [(composed([episode.ledger[j] for j in r.view]), r.text) for r in episode.rounds]
        ]
        texts = [policy.tokenizer.encode(text) for _, text in calls]
        used = texts_used(texts, policy.max_new)
        examples = _examples([policy.tokenizer.chat(calls[i][0]) for i in used], [texts[i] for i in used])
        for i in range(len(used)):
            _check_fits(examples.take(np.array([i])), policy)
    return examples, {
        "expert_episodes": len(asked),
        "expert_right": len(played),
        **_counted(texts, examples),
    }


def _examples(contexts: Sequence[Sequence[int]], texts: Sequence[Sequence[int]]) -> Examples:
    arrays = [[np.array(ids, np.int64) for ids in rows] for rows in (contexts, texts)]
    return Examples(Ragged(tuple(arrays[0])), Ragged(tuple(arrays[1])))


def _check_fits(one: Examples, policy: HuggingFacePolicy) -> None:
    """A ConfigError for an example that is longer than the model's window."""
    policy.reader.check(one.contexts, one.responses)


def _counted(texts: Sequence[Sequence[int]], examples: Examples) -> dict[str, float]:
    used = len(examples.contexts)
    return {"texts": len(texts), "texts_used": used, "longest_text": max(map(len, texts))}


def _check_one_call(setup: SftSetup, expert: Agent) -> None:
    """A policy that is asked without an agent, by the environment's prompt, cannot imitate other prompts."""
    if isinstance(expert, ModelAgent) and expert.play is not one_call:
        raise ConfigError(
            f"expert: wanted one that is asked once a round by the environment's prompt, as the policy is, "
            f"got {setup.expert!r}: choose mempo or oracle"
        )


def _check_alike(setup: SftSetup, expert: Agent, player: Agent) -> None:
    """An expert that asks a model asks by the prompts of the agent that the policy will play as.

    One that asks none writes whole rounds to the environment's prompt, and so must the policy.
    """
    agent = setup.task.agent
    if hasattr(expert, "model"):
        alike, choose = expert.fingerprint == player.fingerprint, f"expert={agent}"
    else:
        alike = isinstance(player, ModelAgent) and player.play is one_call
        choose = f"expert={agent}, or task.agent=mempo"
    if not alike:
        raise ConfigError(
            f"expert: wanted one that plays by the prompts of task.agent={agent}, got {setup.expert!r}, "
            f"whose contexts the policy would never meet: choose {choose}"
        )


def _without_prompt(env_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in env_kwargs.items() if name != "system_prompt"}


def _as_told(prompt: Prompt, episode: Episode, told: str | None) -> Prompt:
    """The prompt with what the policy is told in place of what the expert was told; None: the same.

    A message of the system that is the agent's own, not the environment's, stays.
    """
    said = [segment.text for segment in episode.ledger if segment.kind == "system"]
    first = prompt.messages[0]
    if told is None or first.role != "system" or first.content not in said:
        return prompt
    return Prompt((*([Message("system", told)] if told else []), *prompt.messages[1:]))


# --- Chats -------------------------------------------------------------------------------------------------


LINE = '{"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}'
"""What a line of a file of chats must be."""


class _Chat(msgspec.Struct, frozen=True):
    messages: tuple[Message, ...]


def chats(file: Path, policy: HuggingFacePolicy) -> tuple[Examples, dict[str, float]]:
    """The last messages of a file's chats, after those before them, and the figures of `examples_of`."""
    contexts, texts = list[Sequence[int]](), list[Sequence[int]]()
    for number, chat in read_jsonl(file, _Chat, f"; wanted a line such as {LINE}"):
        if len(chat.messages) < 2 or chat.messages[-1].role != "assistant":
            raise DataError(
                f"{file}:{number}: wanted messages of which the last is the assistant's, got roles "
                f"{[message.role for message in chat.messages]}"
            )
        try:
            contexts.append(policy.tokenizer.chat(Prompt(chat.messages[:-1])))
            texts.append(policy.tokenizer.encode(chat.messages[-1].content))
            _check_fits(_examples(contexts[-1:], texts[-1:]), policy)
        except (ConfigError, ModelError) as error:
            raise DataError(f"{file}:{number}: {error}") from None
        if not len(texts[-1]):
            raise DataError(f"{file}:{number}: wanted a last message with a text, got an empty one")
    if not texts:
        raise DataError(f"{file}: wanted at least one chat, found none")
    try:
        used = texts_used(texts, policy.max_new)
    except ConfigError as error:
        raise ConfigError(f"policy.{error}") from None
    examples = _examples([contexts[i] for i in used], [texts[i] for i in used])
    return examples, _counted(texts, examples)
