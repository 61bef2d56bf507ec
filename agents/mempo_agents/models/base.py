"""What a model is: a function from prompts to calls, the same for every agent."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, Protocol, TypeAlias

from msgspec import Meta, Struct

from mempo_env.errors import MempoError
from mempo_env.files import digest
from mempo_env.settings import Count, Settings, Share, Whole
from mempo_env.types import Call, Segment
from mempo_env.types import Role as TextRole

Role: TypeAlias = Literal["system", "user", "assistant"]


class Message(Struct, frozen=True):
    """One message of a chat."""

    role: Role
    content: str


class Prompt(Struct, frozen=True):
    """What a model is asked.

    Attributes:
        messages: The chat, at least one message.
        segments: The segments that it was composed of, for the record.
        stop: Texts after which the model stops; the one that ended it is part of what comes back.
        draw: Which of many draws it is: equal prompts of one seed get different texts where it differs.
        role: What the answer is, where it is no part of the round's text: "mem" if the agent makes it memory.
    """

    messages: tuple[Message, ...]
    segments: tuple[Segment, ...] = ()
    stop: tuple[str, ...] = ()
    draw: int = 0
    role: TextRole = "think"

    @property
    def text(self) -> str:
        """The contents of all messages, joined by newlines."""
        return "\n".join(message.content for message in self.messages)


class Sampling(Settings, frozen=True):
    """How a model samples.

    Attributes:
        temperature: 0 takes the likeliest token.
        top_p: Smallest probability mass that tokens are drawn from.
        max_tokens: Tokens of one call at most.
        seed: Of what is drawn; the same prompt, draw and seed give the same text where the back end can
            promise it.
    """

    temperature: Annotated[float, Meta(ge=0, le=100)] = 0.0
    top_p: Share = 1.0
    max_tokens: Count = 1024
    seed: Whole = 0


def seed_of(sampling: Sampling, prompt: Prompt) -> int:
    """The seed of a prompt's draws: that of the sampling, and another one for each `draw` but 0."""
    if not prompt.draw:
        return sampling.seed
    return int(digest(str(sampling.seed), str(prompt.draw)), 16) % 2**31


class ModelError(MempoError):
    """A call that failed after its bounded retries; it ends its episode, not the run.

    Attributes:
        reason: The stop reason of the episode.
        calls: Those of the same round that were answered before it: they cost all the same.
    """

    reason: Literal["model_error", "timeout", "context_overflow"] = "model_error"
    calls: tuple[Call, ...] = ()


class ModelTimeout(ModelError, TimeoutError):
    """No answer in time."""

    reason = "timeout"


class ModelOverflow(ModelError):
    """A prompt that is longer than the model's window."""

    reason = "context_overflow"


NOTHING_BEFORE = "wanted at least one id before those to be scored, got none: give what they come after"


class Model(Protocol):
    """A model, asked for many prompts at a time."""

    @property
    def name(self) -> str:
        """What to call it in tables."""
        ...

    @property
    def fingerprint(self) -> str:
        """Changes whenever what it answers may: model, version, sampling, never a key or a host."""
        ...

    def generate(self, prompts: Sequence[Prompt]) -> Sequence[Call | ModelError]:
        """Answer each prompt, in order; a call that failed is its error, and the others are answered."""
        ...


Ids: TypeAlias = Sequence[int]


class Engine(Model, Protocol):
    """A model that a trainer can use: exact ids, log-probabilities of given ids, and weights that change."""

    def score(self, asked: Sequence[tuple[Ids, Ids]]) -> Sequence[tuple[float, ...] | ModelError]:
        """Log-probabilities (nats, at temperature 1, over all tokens) of the second ids after the first.

        In order, one number for each of the second ids, of which there may be none; the first are at least
        one. What does not fit the model's window is a ModelOverflow, any other call that failed its error.
        """
        ...

    def update_weights(self, folder: Path) -> None:
        """Take the weights that lie in a folder of a Hugging Face model of the same shape, all or none.

        Raises:
            ConfigError: if there are none, or others than the model's.
            ModelError: if a server does not take them, after its bounded tries.
        """
        ...
