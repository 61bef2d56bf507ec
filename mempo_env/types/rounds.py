"""What is asked, seen, written and read: from a question to an action."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, get_args

from msgspec import Struct
from msgspec.structs import force_setattr

from mempo_env.files import digest

# --- Questions and corpora ---------------------------------------------------------------------------------


class Passage(Struct, frozen=True, gc=False):
    """One paragraph of a corpus. `id` is unique in its corpus; titles may repeat."""

    id: str
    title: str
    text: str


def passage_id(title: str, text: str) -> str:
    """Name a paragraph by its content: equal paragraphs are one, different ones with one title are not."""
    return digest(title, text)


class Hit(Passage, frozen=True):
    """A retrieved passage: its row in the corpus and the retriever's score (higher is better)."""

    row: int
    score: float


class Evidence(Struct, frozen=True, gc=False):
    """A passage that supports the answer, and the sentences in it that do (empty: not annotated)."""

    passage_id: str
    title: str
    sentences: tuple[str, ...] = ()


Split: TypeAlias = Literal["train", "dev", "test"]


class Question(Struct, frozen=True, kw_only=True, gc=False):
    """One question with every answer that counts as right, and the evidence for it where it is known.

    Attributes:
        id: Unique in its set.
        text: The question itself.
        answers: Accepted answers (aliases); at least one, none of them blank.
        split: The split it belongs to.
        kind: "bridge", "comparison", "intersection" or whatever the source says; empty if unknown.
        level: Difficulty as the source says; empty if unknown.
        hops: Passages that must be combined; 0 if unknown.
        evidence: Gold passages; empty if unknown.
        source: The data set it came from.
    """

    id: str
    text: str
    answers: tuple[str, ...]
    split: Split = "train"
    kind: str = ""
    level: str = ""
    hops: int = 0
    evidence: tuple[Evidence, ...] = ()
    source: str = ""


# --- What the agent sees and writes ------------------------------------------------------------------------

SegmentKind: TypeAlias = Literal[
    "system",
    "question",
    "mem",
    "think",
    "call",
    "answer",
    "invalid",
    "memory",
    "recall",
    "information",
    "error",
    "hint",
]
OWN_KINDS: frozenset[SegmentKind] = frozenset({"mem", "think", "call", "answer", "invalid"})
"""Kinds of segments that the policy wrote."""


class Segment(Struct, frozen=True, gc=False):
    """A piece of text in the ledger: what it is, the round that made it (0: before the first), its tokens."""

    kind: SegmentKind
    round: int
    text: str
    tokens: int


FinishReason: TypeAlias = Literal["", "stop", "length", "error"]
_FINISH_REASONS = frozenset(get_args(FinishReason))


def storable(text: str) -> str:
    """The text with halves of characters (lone surrogates), which no UTF-8 file can hold, as "?"."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _sampled(
    token_ids: Sequence[int], logprobs: Sequence[float], finish_reason: FinishReason
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Ids and log-probabilities as plain numbers, or a ValueError that says what is wrong with them."""
    if finish_reason not in _FINISH_REASONS:
        raise ValueError(f"finish_reason: wanted one of {sorted(_FINISH_REASONS)}, got {finish_reason!r}")
    if len(logprobs) not in (0, len(token_ids)):
        raise ValueError(
            f"wanted one log-probability a token, got {len(logprobs)} for {len(token_ids)} tokens"
        )
    if len(token_ids) == 0:
        return (), ()
    ids, logs = tuple(map(operator.index, token_ids)), tuple(map(float, logprobs))
    if not all(map(math.isfinite, logs)):
        raise ValueError("wanted finite log-probabilities: those of tokens that were sampled")
    return ids, logs


Role: TypeAlias = Literal["mem", "think", "call", "answer"]

MOST_TOKENS = 2**31 - 1
"""Of a call; more are no tokens, and sums of them leave what a file holds."""


class Call(Struct, frozen=True, kw_only=True, gc=False):
    """One call of a model within a round, as it was made.

    Attributes:
        segments: The segments that the prompt was composed of; in an episode, those that its round saw by
            their index in the ledger.
        output: The text that came back.
        prompt_ids: Exact token ids of the prompt; empty if the model works on text.
        output_ids: Exact token ids of the output; empty if the model works on text.
        logprobs: The sampler's log-probabilities of `output_ids` (nats); empty if unknown.
        finish_reason: Why the model stopped.
        prompt_tokens: Tokens of the prompt where their number is known without the ids (an endpoint's usage).
        output_tokens: Tokens of the output, likewise.
        cached_tokens: Those of the prompt that came from the server's prefix cache, where it tells.
        role: What the text is, where it is no part of the round's: "mem" if the agent made it memory.
    """

    segments: tuple[Segment | int, ...] = ()
    output: str = ""
    prompt_ids: tuple[int, ...] = ()
    output_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    finish_reason: FinishReason = ""
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    role: Role = "think"

    def __post_init__(self) -> None:
        """Turn what came into plain data, or refuse it with a ValueError."""
        ids, logprobs = _sampled(self.output_ids, self.logprobs, self.finish_reason)
        plain = {
            "output": storable(self.output),
            "prompt_ids": tuple(map(operator.index, self.prompt_ids)),
            "output_ids": ids,
            "logprobs": logprobs,
        }
        for name, value in plain.items():
            force_setattr(self, name, value)
        for n in (self.prompt_tokens, self.output_tokens, self.cached_tokens):
            if n is not None and (type(n) is not int or not 0 <= n <= MOST_TOKENS):
                raise ValueError(f"wanted a number of tokens, 0 to {MOST_TOKENS:,}, got {n!r}")


class Completion(str):
    """What a policy wrote in one round: a `str` that carries how it was made.

    `step()` takes plain text as well; then one call over the visible segments is assumed.

    Attributes:
        token_ids: Exact ids as sampled; empty for plain text.
        logprobs: Log-probabilities of `token_ids` (nats), as sampled.
        finish_reason: "stop", "length", "error" or "" (unknown).
        calls: Every call of a model in this round, in order; empty: one call over the visible segments.
    """

    __slots__ = ("calls", "finish_reason", "logprobs", "token_ids")

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason
    calls: tuple[Call, ...]

    def __new__(
        cls,
        text: str,
        token_ids: Sequence[int] = (),
        logprobs: Sequence[float] = (),
        finish_reason: FinishReason = "",
        calls: Sequence[Call] = (),
    ) -> Completion:
        """Make a completion.

        Halves of characters (lone surrogates), which no UTF-8 file could hold, become "?".

        Raises:
            ValueError: if log-probabilities are given, but not one for each token, or not finite ones; if the
                finish reason is none of those above.
            TypeError: if a token id is no whole number, or a call no `Call`.
        """
        self = str.__new__(cls, storable(text))
        self.token_ids, self.logprobs, self.finish_reason, self.calls = (), (), finish_reason, ()
        if len(token_ids) or len(logprobs) or finish_reason:
            self.token_ids, self.logprobs = _sampled(token_ids, logprobs, finish_reason)
        if len(calls):
            self.calls = tuple(calls)
            for call in self.calls:
                if not isinstance(call, Call):
                    raise TypeError(
                        f"calls: wanted a Call for each call of a model, got {type(call).__name__}"
                    )
        return self

    def __getnewargs__(self) -> tuple[Any, ...]:
        """Arguments to pickle and copy with."""
        return (str(self), self.token_ids, self.logprobs, self.finish_reason, self.calls)


# --- What was read in it -----------------------------------------------------------------------------------


class Span(Struct, frozen=True, gc=False):
    """Characters [start, end) of the policy's text and their role; the spans of a round cover its text."""

    role: Role
    start: int
    end: int


OperationKind: TypeAlias = Literal["write", "read", "merge", "discard"]


class Operation(Struct, frozen=True, kw_only=True, gc=False):
    """What a policy asks of a memory bank.

    Attributes:
        kind: What to do.
        text: What to write, to read for, or to put in place of merged entries ("": their texts joined).
        ids: The entries to merge or discard.
        k: Entries to read at most; None: as many as the bank's settings say.
    """

    kind: OperationKind
    text: str = ""
    ids: tuple[int, ...] = ()
    k: int | None = None


class _Written(Struct, frozen=True, kw_only=True, gc=False):
    """What every action has: the memory it wrote (None: none), its flaws, and the roles of its text.

    `operations` are those on a memory bank, where there is one.
    """

    memory: str | None = None
    operations: tuple[Operation, ...] = ()
    flaws: tuple[str, ...] = ()
    spans: tuple[Span, ...] = ()


class Search(_Written, frozen=True, tag="search"):
    """Search for `query`."""

    query: str


class Answer(_Written, frozen=True, tag="answer"):
    """End the episode with `text` as the answer to all objectives."""

    text: str


class Invalid(_Written, frozen=True, tag="invalid"):
    """Nothing that can be acted on: `reason` is a word of the protocol, `detail` a line for the agent."""

    reason: str
    detail: str


Action: TypeAlias = Search | Answer | Invalid
