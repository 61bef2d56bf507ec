"""What the agent has seen and kept of the gold evidence, and why it failed.

A *fact* is one gold passage of one objective. It is *seen* once a search has returned its passage. The coming
prompt *holds* a seen fact if it shows the passage, or if the memory has the fact: its key phrases (the gold
answers, and the titles of the objective's other gold passages, as far as they occur in the fact's sentences)
count, any one of them; a fact without a key phrase counts if the memory holds half of its content words
outside the title. This is a heuristic on words: a memory that paraphrases both the answer and the sentence is
missed, and one that names the answer by chance is not.

The prompt is the environment's, unless the agent handed over calls that it composed itself: then the last
call of a round, the one that acted, tells what was held when the round was written (`asked`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from mempo_env.protocol import one_line
from mempo_env.scoring import bare, contains, holds, is_closed, normalise, normalised_answers
from mempo_env.types import (
    NO_FAULT,
    Call,
    Diagnostics,
    Evidence,
    Failure,
    Hit,
    ObjectiveScore,
    Question,
    Segment,
    StopReason,
)

CONTENT_SHARE = 0.5
"""Share of a fact's content words that a memory must hold where the fact has no key phrase."""

_FUNCTION_WORDS = frozenset(
    normalise(
        "and are as at be been but by for from had has have he her his in is it its of on or she that their "
        "they this to was were which who whose with"
    ).split()
)

Fact = tuple[int, int]
"""(objective, index of the gold passage in its evidence), both from 0."""


@lru_cache(maxsize=8192)
def _words(text: str) -> frozenset[str]:
    return frozenset(normalise(text).split()) - _FUNCTION_WORDS


def _text(hit: Hit) -> str:
    return f"{hit.title}\n{hit.text}"


@lru_cache(maxsize=1024)
def _bare(text: str) -> str:
    """The bare form of a text: environments that step together are shown the same passages."""
    return bare(text)


class Tracker(Struct, frozen=True, kw_only=True, gc=False):
    """What one episode has shown and kept so far; `after_round` makes the next one.

    Attributes:
        questions: The objectives.
        facts: How many facts they have.
        seen: Facts whose passage was retrieved, with its text.
        held: Facts that the coming prompt holds.
        ever_held: Facts that some prompt held.
        in_memory: Facts that the memory in force has.
        ever_in_memory: Facts that the memory ever had.
        answer_seen: For each objective, whether a retrieved passage contained a gold answer; None for yes /
            no.
        answer_in_memory: For each objective, whether the memory in force contains a gold answer; None
            likewise.
        memory: The memory in force.
        queries: Queries asked so far, in normal form.
        redundant: Whether the last round's query had been asked before.
    """

    questions: tuple[Question, ...]
    facts: int
    seen: dict[Fact, str] = {}
    held: frozenset[Fact] = frozenset()
    ever_held: frozenset[Fact] = frozenset()
    in_memory: frozenset[Fact] = frozenset()
    ever_in_memory: frozenset[Fact] = frozenset()
    answer_seen: tuple[bool | None, ...]
    answer_in_memory: tuple[bool | None, ...]
    memory: str = ""
    queries: frozenset[str] = frozenset()
    redundant: bool = False

    @property
    def share_held(self) -> float | None:
        """Share of the facts that the prompt holds; None if there are none."""
        return len(self.held) / self.facts if self.facts else None

    def diagnostics(self) -> Diagnostics:
        """What is known now."""
        total = self.facts
        return Diagnostics(
            evidence_recall=len(self.seen) / total if total else None,
            evidence_kept=self.share_held,
            facts_lost=len(self.ever_held - self.held) if total else None,
            answer_in_retrieved=self.answer_seen,
            answer_in_memory=self.answer_in_memory,
            redundant_query=self.redundant,
        )


def start(questions: tuple[Question, ...]) -> Tracker:
    """Nothing seen: False for each objective, None for those with yes / no answers."""
    unseen = tuple(None if is_closed(q.answers) else False for q in questions)
    facts = sum(len(question.evidence) for question in questions)
    return Tracker(questions=questions, facts=facts, answer_seen=unseen, answer_in_memory=unseen)


def after_round(
    before: Tracker,
    *,
    query: str | None,
    hits: Sequence[Hit],
    memory: str,
    shown: Collection[str],
) -> Tracker:
    """The tracker after one more round; the same one if that changed nothing.

    Args:
        before: The one before the round.
        query: What was searched for; None: nothing.
        hits: The passages that came back.
        memory: The memory in force after the round, which the coming prompt shows.
        shown: Ids of the passages in the coming prompt.
    """
    seen, answer_seen, queries, redundant = before.seen, before.answer_seen, before.queries, False
    if query is not None:
        norm = normalise(query)
        queries, redundant = queries | {norm}, norm in queries
    if hits:
        found = {hit.id: hit for hit in hits}
        new = {fact: found[i] for fact, i in _facts(before.questions) if i in found and fact not in seen}
        seen = {**seen, **{fact: _text(hit) for fact, hit in new.items()}} if new else seen
        if False in answer_seen:
            answer_seen = _look_for_answers(before.questions, answer_seen, list(map(_text, hits)))
    in_memory, answer_in_memory = before.in_memory, before.answer_in_memory
    if memory != before.memory or seen is not before.seen:
        norm = normalise(memory)
        in_memory = _remembered(before.questions, seen, norm)
        absent = tuple([None if flag is None else False for flag in answer_seen])
        answer_in_memory = _look_for_answers(before.questions, absent, [memory])
    held = in_memory
    if shown:
        held |= {fact for fact, i in _facts(before.questions) if i in shown}
    if query is None and memory == before.memory and held == before.held and not before.redundant:
        return before
    return Tracker(
        questions=before.questions,
        facts=before.facts,
        seen=seen,
        held=held,
        ever_held=before.ever_held | held,
        in_memory=in_memory,
        ever_in_memory=before.ever_in_memory | in_memory,
        answer_seen=answer_seen,
        answer_in_memory=answer_in_memory,
        memory=memory,
        queries=queries,
        redundant=redundant,
    )


def asked(
    tracker: Tracker,
    ledger: Sequence[Segment],
    view: tuple[int, ...],
    calls: Sequence[Call],
    stored: bool,
) -> Tracker:
    """The tracker in the state of the prompt that a round was written from.

    Where an agent composed a prompt of its own, a fact is held if its passage stands in it word for word, or
    if the memory, the thoughts and what was recalled in it have the fact.

    Args:
        tracker: In the state of the environment's prompt.
        ledger: All segments.
        view: Indices of those in the environment's prompt.
        calls: Of the round, as they are recorded.
        stored: Whether the memory in force lies outside of the prompt, in a bank: what it has is held, too.
    """
    shown = calls[-1].segments if calls else ()
    if shown in ((), view):
        return tracker
    segments = [ledger[one] if isinstance(one, int) else one for one in shown]
    passages = "\n".join(one.text for one in segments if one.kind in ("information", "recall"))
    notes = "\n".join(one.text for one in segments if one.kind in ("mem", "think", "recall"))
    held = _remembered(tracker.questions, tracker.seen, normalise(notes))
    held |= {fact for fact, text in tracker.seen.items() if _as_shown(text) in passages}
    return replace(tracker, held=held | tracker.in_memory if stored else held)


def _as_shown(passage: str) -> str:
    """The text of a passage, which stands behind its title, as a prompt shows it."""
    return one_line(passage.partition("\n")[2])


def _look_for_answers(
    questions: Sequence[Question], found: tuple[bool | None, ...], texts: Sequence[str]
) -> tuple[bool | None, ...]:
    """Turn False into True for each objective with a gold answer in one of the texts."""
    pairs = [(text, _bare(text)) for text in texts]
    return tuple(
        any(holds(*pair, gold) for pair in pairs for gold in normalised_answers(question.answers))
        if flag is False
        else flag
        for flag, question in zip(found, questions, strict=True)
    )


def _remembered(questions: Sequence[Question], seen: dict[Fact, str], memory_norm: str) -> frozenset[Fact]:
    """Facts among those seen that a memory has; see the module for when it has one."""
    if not memory_norm or not seen:
        return frozenset()
    words = frozenset(memory_norm.split())
    return frozenset(
        f for f, text in seen.items() if _remembers(questions[f[0]], f[1], text, memory_norm, words)
    )


def _remembers(
    question: Question, index: int, passage: str, memory_norm: str, memory_words: frozenset[str]
) -> bool:
    evidence = question.evidence[index]
    text = " ".join(evidence.sentences) or passage
    text_norm = normalise(text)
    phrases = _phrases(question, evidence, text_norm)
    if phrases:
        return any(contains(memory_norm, phrase) for phrase in phrases)
    content = _words(text) - _words(evidence.title)
    return bool(content) and len(content & memory_words) >= CONTENT_SHARE * len(content)


def _phrases(question: Question, evidence: Evidence, text_norm: str) -> list[str]:
    """The key phrases of a fact: gold answers and titles of the other gold passages that its text has."""
    others = (normalise(e.title) for e in question.evidence if e.passage_id != evidence.passage_id)
    answers = () if is_closed(question.answers) else normalised_answers(question.answers)
    return [phrase for phrase in (*answers, *others) if contains(text_norm, phrase)]


def key_phrases(questions: Sequence[Question]) -> tuple[str, ...]:
    """The key phrases, in normal form, of all facts whose sentences are annotated."""
    found = (
        phrase
        for question in questions
        for evidence in question.evidence
        for phrase in _phrases(question, evidence, normalise(" ".join(evidence.sentences)))
    )
    return tuple(dict.fromkeys(found))


def _facts(questions: Sequence[Question]) -> Iterator[tuple[Fact, str]]:
    for i, question in enumerate(questions):
        for j, evidence in enumerate(question.evidence):
            yield (i, j), evidence.passage_id


def failure(
    objective: int,
    tracker: Tracker,
    score: ObjectiveScore,
    *,
    answered: bool,
    stop: StopReason | None,
) -> Failure | None:
    """Why an objective failed: the first reason that holds, in the order of `Failure`; None if it was right.

    Args:
        objective: Its index from 0.
        tracker: In the state of the prompt from which the last round was written (`asked`).
        score: Its score.
        answered: Whether an answer was given.
        stop: Why the episode ended.
    """
    if stop in NO_FAULT:
        return Failure.ENVIRONMENT
    if stop is StopReason.AGENT_ERROR:
        return Failure.AGENT_ERROR
    if not answered:
        return Failure.OUT_OF_BUDGET
    if score.em == 1.0:
        return None
    if score.em_relaxed == 1.0 or score.contains:
        return Failure.WRONG_FORM
    facts = {fact for fact, _ in _facts(tracker.questions) if fact[0] == objective}
    if not facts:
        return Failure.UNKNOWN
    if not facts <= set(tracker.seen):
        return Failure.NOT_RETRIEVED
    missing = facts - tracker.held
    if missing:
        kept_once = missing <= tracker.ever_in_memory
        return Failure.KEPT_THEN_LOST if kept_once else Failure.RETRIEVED_NOT_KEPT
    return Failure.KEPT_NOT_USED
