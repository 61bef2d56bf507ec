"""What came of it: memory, counts, rewards and scores, up to a whole episode."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from mempo_env.types.rounds import Action, Call, FinishReason, Hit, Question, Segment

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
    AGENT_ERROR = "agent_error"
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
