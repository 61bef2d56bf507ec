"""The frozen data that travels between the boxes, with JSON in and out.

    Question --env.reset--> Segments --agent--> Completion --parse--> Action --> Observation ... --> Episode

All of them are immutable msgspec structs (docs/decisions/0001): they compare by value, are cheap to make, and
`msgspec.json` writes them and reads them back with every type checked. Plain frozen data forms no cycles,
so the garbage collector does not follow them (gc=False): with many episodes it would have much to walk.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from enum import StrEnum
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
            if n is not None and (type(n) is not int or n < 0):
                raise ValueError(f"wanted a number of tokens, 0 or more, got {n!r}")


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

Role: TypeAlias = Literal["mem", "think", "call", "answer"]


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

# --- What came of it ---------------------------------------------------------------------------------------


EntryState: TypeAlias = Literal["active", "merged", "discarded"]


class Entry(Struct, frozen=True, kw_only=True, gc=False):
    """One entry of a memory bank; its vector is computed from its text.

    Attributes:
        id: 1 for the first of its episode.
        text: What it says.
        tokens: How long that is.
        created_round: The round that wrote it.
        last_access_round: The last round that read it, or wrote it.
        access_count: How often it was read.
        episode_id: The episode it belongs to.
        state: "active", or a tombstone.
        merged_into: The entry that stands for it now.
    """

    id: int
    text: str
    tokens: int
    created_round: int
    last_access_round: int
    access_count: int = 0
    episode_id: str
    state: EntryState = "active"
    merged_into: int | None = None


class BankRecord(Struct, frozen=True, gc=False):
    """One line of a bank's log: an operation, and what came of it.

    Attributes:
        round: When.
        kind: What was asked, or "evict": the bank was full.
        ids: The entries concerned: those read, discarded or evicted; the one written, or that a refused write
            is like; those merged and, last, the one made of them.
        accepted: Whether it was done.
        why: Why not, or what else happened: "duplicate", "not_novel", "merged" (a write that became part of
            another entry), "evicted".
        tokens: Tokens written, read, or let go.
    """

    round: int
    kind: Literal["write", "read", "merge", "discard", "evict"]
    ids: tuple[int, ...]
    accepted: bool
    why: Literal["", "duplicate", "not_novel", "merged", "evicted"]
    tokens: int


class Tokens(Struct, frozen=True, gc=False):
    """Token counts after a round, by the environment's counter or the exact ids where a completion has them.

    Attributes:
        prompt: Prompt tokens of the round's calls (0 after reset).
        output: Output tokens of the round's calls (0 after reset).
        memory: Tokens of the memory in force.
        peak: Longest single call so far, prompt + output.
        total: Sum of prompt + output over all calls so far.
        dependency: Sum of (2 n_prompt + n_output) n_output / 2 over all calls so far (MEM1, 2506.15841).
    """

    prompt: int
    output: int
    memory: int
    peak: int
    total: int
    dependency: float


class Diagnostics(Struct, frozen=True, gc=False):
    """What the agent has seen and kept of the gold evidence; None where there is no gold to compare with.

    Attributes:
        evidence_recall: Share of the gold passages shown so far, in [0, 1].
        evidence_kept: Share of the gold facts that the coming prompt, as the environment renders it, still
            holds, or the memory bank does, in [0, 1].
        facts_lost: Gold facts that some prompt held and the coming one does not, likewise.
        answer_in_retrieved: For each objective, whether a passage shown so far contains a gold answer
            (None for yes / no answers, which any passage may contain).
        answer_in_memory: For each objective, whether the memory contains a gold answer (None likewise).
        redundant_query: Whether this round's query was asked before, up to case and punctuation.
    """

    evidence_recall: float | None
    evidence_kept: float | None
    facts_lost: int | None
    answer_in_retrieved: tuple[bool | None, ...]
    answer_in_memory: tuple[bool | None, ...]
    redundant_query: bool


class RewardTerms(Struct, frozen=True, gc=False):
    """One value for each term of the reward."""

    outcome: float = 0.0
    invalid_action: float = 0.0
    duplicate_write: float = 0.0
    context_overflow: float = 0.0
    write_cost: float = 0.0
    memory_efficiency: float = 0.0

    def total(self) -> float:
        """Sum of all terms."""
        return (
            self.outcome
            + self.invalid_action
            + self.duplicate_write
            + self.context_overflow
            + self.write_cost
            + self.memory_efficiency
        )


class RewardBreakdown(Struct, frozen=True, gc=False):
    """The raw value of every term and what it contributed; the step's reward is `weighted.total()`."""

    raw: RewardTerms
    weighted: RewardTerms


class ObjectiveScore(Struct, frozen=True, gc=False):
    """The score of one objective: the prediction, EM and F1 (HotpotQA), EM after folding (`em_relaxed`)."""

    prediction: str
    em: float
    f1: float
    em_relaxed: float
    contains: bool


class Score(Struct, frozen=True, gc=False):
    """The score of an episode: means over its objectives, `em_all` for all exactly right, and each one."""

    em: float
    f1: float
    em_relaxed: float
    em_all: float
    well_formed: bool
    objectives: tuple[ObjectiveScore, ...]


class StopReason(StrEnum):
    """Why an episode ended."""

    ANSWERED = "answered"
    MAX_ROUNDS = "max_rounds"
    CONTEXT_OVERFLOW = "context_overflow"
    GENERATION_LENGTH = "generation_length"
    RETRIEVER_ERROR = "retriever_error"
    MEMORY_ERROR = "memory_error"
    MODEL_ERROR = "model_error"
    TIMEOUT = "timeout"
    AGENT_ERROR = "agent_error"


NO_FAULT = (StopReason.RETRIEVER_ERROR, StopReason.MEMORY_ERROR, StopReason.MODEL_ERROR)
"""Ends that are not the policy's fault: trainers leave such episodes out."""


class Failure(StrEnum):
    """Why an objective was not answered rightly; the first that holds, in this order."""

    ENVIRONMENT = "environment"
    OUT_OF_BUDGET = "out_of_budget"
    WRONG_FORM = "wrong_form"
    UNKNOWN = "unknown"
    NOT_RETRIEVED = "not_retrieved"
    RETRIEVED_NOT_KEPT = "retrieved_not_kept"
    KEPT_THEN_LOST = "kept_then_lost"
    KEPT_NOT_USED = "kept_not_used"


class Round(Struct, frozen=True, kw_only=True, gc=False):
    """One round of an episode, exactly as it happened.

    Attributes:
        number: 1 for the first.
        view: Indices into the episode's ledger: the segments that the agent saw.
        text: What the policy wrote.
        token_ids: Exact ids of `text` as sampled; empty for plain text.
        logprobs: Their log-probabilities (nats); empty if unknown.
        finish_reason: Why the policy stopped writing.
        calls: Calls of models handed over by the agent; empty: one call over `view`.
        action: What was read in the text.
        hits: The passages that the search returned.
        memory: The memory in force after the round; of a bank, its active entries, a line each.
        operations: What was done to the memory bank, where there is one.
        tokens: Token counts after the round.
        diagnostics: Evidence seen and kept after the round.
        evidence_in_prompt: Share of the gold facts that the prompt from which it was written held, or the
            memory bank did: that of the last of its calls, if the agent composed its own; None without gold.
        reward: The reward of the round.
        state_hash: Of the state after the round.
    """

    number: int
    view: tuple[int, ...]
    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    finish_reason: FinishReason = ""
    calls: tuple[Call, ...] = ()
    action: Action
    hits: tuple[Hit, ...] = ()
    memory: str = ""
    operations: tuple[BankRecord, ...] = ()
    tokens: Tokens
    diagnostics: Diagnostics
    evidence_in_prompt: float | None = None
    reward: RewardBreakdown
    state_hash: str


class Episode(Struct, frozen=True, kw_only=True, gc=False):
    """A finished episode: the ledger of all segments, and the rounds that refer to it.

    Attributes:
        question_id: Ids of the objectives, joined by "+".
        questions: The objectives.
        ledger: Every segment in the order in which it came to be; `Round.view` indexes it.
        rounds: The rounds, at least one unless the episode was aborted before.
        final_view: What the agent would have seen next.
        stop_reason: Why it ended; None while it is still running.
        stop_detail: What exactly failed, where the reason alone does not tell; for people, never for agents.
        broken_off: Calls of a round that was broken off, the one after `rounds`; the tokens have them.
        score: EM, F1 and the rest; zeros where no answer was given.
        failure: For each objective, why it failed; None where it did not.
        tokens: Token counts at the end.
        rewards: Sum of the rewards of all rounds, term by term.
        mask_episode: True if it failed by no fault of the agent: trainers leave it out.
        settings: The environment's keyword arguments that decide what an agent sees.
    """

    question_id: str
    questions: tuple[Question, ...]
    ledger: tuple[Segment, ...]
    rounds: tuple[Round, ...]
    final_view: tuple[int, ...]
    stop_reason: StopReason | None
    stop_detail: str = ""
    broken_off: tuple[Call, ...] = ()
    score: Score
    failure: tuple[Failure | None, ...]
    tokens: Tokens
    rewards: RewardTerms
    mask_episode: bool
    settings: dict[str, Any]
