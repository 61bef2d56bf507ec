"""One episode while it is played: what is written, kept, counted, earned and told."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from mempo_env import diagnostics, protocol, rewards, tokens
from mempo_env.context import ContextRule, Ledger
from mempo_env.diagnostics import Tracker
from mempo_env.errors import MemoryFault
from mempo_env.memory.base import MakeStore, Store
from mempo_env.memory.operations import Fault
from mempo_env.rewards import NOTHING, RewardConfig
from mempo_env.scoring import score_episode
from mempo_env.tokens import NO_TOKENS, TokenCounter
from mempo_env.types import (
    NO_FAULT,
    Action,
    Answer,
    Call,
    Completion,
    Diagnostics,
    Episode,
    Hit,
    Invalid,
    Question,
    RewardTerms,
    Round,
    Score,
    Search,
    Segment,
    StopReason,
    Tokens,
    storable,
)

MemoryKind: TypeAlias = Literal["inline", "none", "bank", "own"]

_text, _tokens = attrgetter("text"), attrgetter("tokens")


class Rules(Struct, frozen=True, kw_only=True):
    """What holds for every episode of an environment; see `SearchQAEnv` for the meaning of each."""

    objectives: int
    max_rounds: int
    context: ContextRule
    memory: MemoryKind
    make_store: MakeStore | None
    reward: RewardConfig
    count: TokenCounter
    max_context_tokens: int | None
    max_memory_tokens: int | None
    hint: bool
    system: Segment | None
    settings: dict[str, Any]


class Play(Struct, gc=False):
    """One episode under way: the only data here that changes.

    Attributes:
        questions: The objectives.
        question_id: Their ids, joined by "+".
        ledger: All that was said.
        tracker: What was seen and kept of the evidence.
        asked: The same in the prompt from which the last round was written.
        diagnostics: The same, as it is told.
        view: Indices of the segments of the coming prompt.
        segments: These segments.
        observation: Their texts, joined by newlines.
        prompt_tokens: Their tokens.
        state_hash: Of what decides the future.
        rounds: The rounds so far.
        memory: The memory in force.
        memory_tokens: Its tokens.
        store: The memory where it is not text in the prompt: a bank, or a user's own.
        trial: The store as it will be once the round under way is concluded, and what is told of that.
        fault: What the store failed with in the round under way.
        tokens: Token counts so far.
        rewards: Sum of the weighted reward terms so far.
        stop_reason: Why the episode ended; None while it runs.
        stop_detail: What exactly failed, where the reason alone does not tell.
        broken_off: Calls of a round that was broken off.
        score: The score of the answer; None until there is one.
        pending: What the policy wrote in the round under way, between its two halves.
    """

    questions: tuple[Question, ...]
    question_id: str
    ledger: Ledger
    tracker: Tracker
    asked: Tracker
    diagnostics: Diagnostics
    view: tuple[int, ...] = ()
    segments: tuple[Segment, ...] = ()
    observation: str = ""
    prompt_tokens: int = 0
    state_hash: str = ""
    rounds: list[Round] = []
    memory: str = ""
    memory_tokens: int = 0
    store: Store | None = None
    trial: tuple[Store, str] | None = None
    fault: MemoryFault | None = None
    tokens: Tokens = NO_TOKENS
    rewards: RewardTerms = NOTHING
    stop_reason: StopReason | None = None
    stop_detail: str = ""
    broken_off: tuple[Call, ...] = ()
    score: Score | None = None
    pending: tuple[Completion, Action] | None = None

    def copy(self) -> Play:
        """An independent play in the same state."""
        store = None if self.store is None else self.store.copy()
        trial = None if self.trial is None else (self.trial[0].copy(), self.trial[1])
        return replace(self, ledger=self.ledger.copy(), rounds=self.rounds.copy(), store=store, trial=trial)


def begin(rules: Rules, questions: tuple[Question, ...]) -> Play:
    """A new episode, before its first round."""
    ledger = Ledger([] if rules.system is None else [rules.system], rules.count)
    ledger.add("question", 0, protocol.render_question([question.text for question in questions]))
    ledger.head = len(ledger.segments)
    question_id = "+".join([question.id for question in questions])
    tracker = diagnostics.start(questions)
    play = Play(questions, question_id, ledger, tracker, tracker, tracker.diagnostics())
    if rules.make_store is not None:
        play.store = rules.make_store(question_id, None)
        _remember(play)
    look(play, rules)
    return play


def read(play: Play, rules: Rules, completion: Completion) -> Action:
    """Parse what the policy wrote; a memory that cannot be, or is beyond its budget, is an invalid action."""
    play.trial = play.fault = None
    wants_memory = rules.memory in ("inline", "own") and bool(play.rounds)
    action = protocol.parse(completion, completion.finish_reason, wants_memory, rules.memory == "bank")
    length = 0
    if isinstance(action, Invalid):
        return action
    if play.store is not None:
        store = play.store.copy()
        try:
            told = store.update(action, len(play.rounds) + 1)
        except MemoryFault as fault:
            play.fault = fault
            return action
        if isinstance(told, Fault):
            return Invalid(reason=told.reason, detail=told.detail, flaws=action.flaws, spans=action.spans)
        play.trial, length = (store, told), store.tokens
    elif rules.max_memory_tokens is not None and action.memory is not None:
        length = rules.count(action.memory)
    if rules.max_memory_tokens is None or length <= rules.max_memory_tokens:
        return action
    detail = f"the memory had {length} tokens, at most {rules.max_memory_tokens} are allowed"
    return Invalid(reason="memory_too_long", detail=detail, flaws=action.flaws, spans=action.spans)


def conclude(
    play: Play, rules: Rules, completion: Completion, action: Action, outcome: tuple[Hit, ...] | Exception
) -> Round:
    """Play one round to its end, and return it.

    Args:
        play: Changed in place.
        rules: Of the environment.
        completion: What the policy wrote.
        action: What was read in it.
        outcome: The hits of a search, () for other actions, or the fault of a retriever that gave none, or of
            the memory.
    """
    before, view, spent = play.tracker, play.view, _spent(play, rules, completion)
    calls = _recorded(play, completion.calls)
    play.asked = diagnostics.asked(before, play.ledger.segments, view, calls, stored=play.store is not None)
    hits = () if isinstance(outcome, Exception) else outcome
    if isinstance(outcome, Exception):
        of_memory = isinstance(outcome, MemoryFault)
        play.stop_reason = StopReason.MEMORY_ERROR if of_memory else StopReason.RETRIEVER_ERROR
        play.stop_detail = storable(str(outcome))
    elif isinstance(action, Answer):
        play.stop_reason = StopReason.ANSWERED
        parts, well_formed = protocol.split_answer(action.text, rules.objectives)
        play.score = _score(play, parts, well_formed)
    _write(play, rules, completion, action, hits)
    number = len(play.ledger.steps)
    if play.stop_reason is None and number == rules.max_rounds:
        cut = completion.finish_reason == "length"
        play.stop_reason = StopReason.GENERATION_LENGTH if cut else StopReason.MAX_ROUNDS
    look(play, rules)
    overflow = play.stop_reason is None and overflows(play, rules)
    if overflow:
        play.stop_reason = StopReason.CONTEXT_OVERFLOW
    play.tracker = follow(play, play.segments, action, hits, play.memory)
    if play.tracker is not before:
        play.diagnostics = play.tracker.diagnostics()
    play.tokens = tokens.spend(play.tokens, spent, play.memory_tokens)
    reward = rewards.weigh(_earned(play, rules, action, overflow), rules.reward)
    play.rewards = rewards.add(play.rewards, reward.weighted)
    done = Round(
        number=number,
        view=view,
        text=str(completion),
        token_ids=completion.token_ids,
        logprobs=completion.logprobs,
        finish_reason=completion.finish_reason,
        calls=calls,
        action=action,
        hits=hits,
        memory=play.memory,
        operations=() if play.store is None else tuple(play.store.done(number)),
        tokens=play.tokens,
        diagnostics=play.diagnostics,
        evidence_in_prompt=play.asked.share_held,
        reward=reward,
        state_hash=play.state_hash,
    )
    play.rounds.append(done)
    return done


def _score(play: Play, parts: Sequence[str], well_formed: bool) -> Score:
    return score_episode(parts, [question.answers for question in play.questions], well_formed)


def _write(play: Play, rules: Rules, completion: Completion, action: Action, hits: tuple[Hit, ...]) -> None:
    """Put what was written and what came back into the ledger, and store the memory."""
    ledger = play.ledger
    number, start = len(ledger.steps) + 1, len(ledger.segments)
    if isinstance(action, Invalid):
        ledger.add("invalid", number, str(completion))
        ledger.add("error", number, protocol.render_error(action))
    else:
        for role, text in protocol.own_segments(completion, action):
            if role != "mem" or play.store is not None:
                ledger.add(role, number, text)
            elif rules.memory == "inline":
                ledger.memory = ledger.add(role, number, text)
        if action.memory is not None and rules.memory == "inline":
            play.memory, play.memory_tokens = action.memory, rules.count(action.memory)
        if play.trial is not None:
            play.store, told = play.trial
            _remember(play)
            if told:
                ledger.add("recall", number, told)
    play.trial = play.fault = None
    if play.stop_reason is StopReason.MEMORY_ERROR:
        ledger.add("error", number, protocol.MEMORY_FAILED)
    elif play.stop_reason is StopReason.RETRIEVER_ERROR:
        ledger.add("error", number, protocol.RETRIEVER_FAILED)
    elif isinstance(action, Search):
        ledger.information = ledger.add("information", number, protocol.render_information(hits))
    ledger.close_step(start)


def _remember(play: Play) -> None:
    """Read off what the store holds."""
    assert play.store is not None
    play.memory, play.memory_tokens = play.store.text(), play.store.tokens


def look(play: Play, rules: Rules) -> None:
    """Compose the coming prompt; a hint is of use only while the episode runs."""
    ledger, number, store = play.ledger, len(play.ledger.steps), play.store
    if store is not None:
        shown = store.show()
        ledger.memory = ledger.add("memory", number, shown) if shown else None
    view = ledger.visible(rules.context)
    segments = list(map(ledger.segments.__getitem__, view))
    texts = list(map(_text, segments))
    kept = "\n".join(texts[ledger.head :])
    future = f"{play.question_id}\0{play.memory}\0{number}\0{kept}"
    if store is not None:
        future += "\0" + json.dumps(store.state(), sort_keys=True)
    play.state_hash = hashlib.blake2b(future.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    n_tokens = sum(map(_tokens, segments))
    if rules.hint and play.stop_reason is None:
        limit = rules.max_context_tokens
        left = None if limit is None else max(0, limit - n_tokens)
        due = store is not None and store.check_is_due(number)
        view.append(ledger.add("hint", number, protocol.render_hint(rules.max_rounds - number, left, due)))
        hint = ledger.segments[-1]
        segments.append(hint)
        texts.append(hint.text)
        n_tokens += hint.tokens
    play.view, play.segments, play.prompt_tokens = tuple(view), tuple(segments), n_tokens
    play.observation = "\n".join(texts)


def overflows(play: Play, rules: Rules) -> bool:
    """Whether the coming prompt is longer than allowed."""
    return rules.max_context_tokens is not None and play.prompt_tokens > rules.max_context_tokens


def follow(
    play: Play, prompt: Iterable[Segment], action: Action, hits: tuple[Hit, ...], memory: str
) -> Tracker:
    """The tracker after a round, which is not yet among the play's; `prompt` is what comes after it."""
    shown: list[str] = []
    for segment in prompt:
        if segment.kind == "information":
            past = segment.round <= len(play.rounds)
            shown += [hit.id for hit in (play.rounds[segment.round - 1].hits if past else hits)]
    query = action.query if isinstance(action, Search) else None
    return diagnostics.after_round(play.tracker, query=query, hits=hits, memory=memory, shown=shown)


def break_off(play: Play, rules: Rules, calls: tuple[Call, ...]) -> None:
    """Count the calls of a round that will not be played to its end."""
    spent = tuple(tokens.of_call(call, rules.count, play.prompt_tokens) for call in calls)
    play.broken_off = _recorded(play, calls)
    if calls:
        play.tokens = tokens.spend(play.tokens, spent, play.memory_tokens)


def _spent(play: Play, rules: Rules, completion: Completion) -> tuple[tuple[int, int], ...]:
    """(prompt tokens, output tokens) of each call of the round."""
    if not completion.calls:
        return ((play.prompt_tokens, len(completion.token_ids) or rules.count(completion)),)
    return tuple(tokens.of_call(call, rules.count, play.prompt_tokens) for call in completion.calls)


def _recorded(play: Play, calls: tuple[Call, ...]) -> tuple[Call, ...]:
    """The calls of a round, with the segments in view as their indices: a record says nothing twice."""
    index = dict(zip(play.segments, play.view, strict=True)) if calls else {}
    return tuple(
        replace(call, segments=tuple(index.get(s, s) if isinstance(s, Segment) else s for s in call.segments))
        for call in calls
    )


def _earned(play: Play, rules: Rules, action: Action, overflow: bool) -> RewardTerms:
    """Raw values of the reward's terms in the round that is being concluded."""
    kept, written = rules.memory != "none", action.memory is not None
    done = () if play.store is None else play.store.done(len(play.ledger.steps))
    writes = [record for record in done if record.kind == "write"]
    ended = play.stop_reason is not None and play.stop_reason not in NO_FAULT
    budget = rules.reward.memory_budget
    return RewardTerms(
        outcome=0.0 if play.score is None else rewards.outcome(play.score, rules.reward.outcome),
        invalid_action=float(isinstance(action, Invalid)),
        context_overflow=float(overflow),
        duplicate_write=float(sum(record.why in ("duplicate", "merged") for record in writes)),
        write_cost=float(len(writes) if rules.memory == "bank" else kept and written),
        memory_efficiency=rewards.memory_efficiency(play.memory_tokens, budget) if kept and ended else 0.0,
    )


def tell(play: Play, done: Round | None) -> dict[str, Any]:
    """What `info` holds after every step; `done` is the round that was concluded, if one was."""
    return {
        "question_id": play.question_id,
        "round": len(play.rounds),
        "segments": play.segments,
        "messages": protocol.messages(play.segments, play.observation),
        "action": None if done is None else done.action,
        "retrieved": () if done is None else done.hits,
        "memory": play.memory,
        "operations": () if done is None else done.operations,
        "tokens": play.tokens,
        "diagnostics": play.diagnostics,
        "reward_terms": rewards.NO_REWARD if done is None else done.reward,
        "state_hash": play.state_hash,
    }


def record(play: Play, rules: Rules) -> Episode:
    """The episode so far, or whole."""
    score = play.score or _score(play, [""] * len(play.questions), well_formed=False)
    reasons = [
        diagnostics.failure(i, play.asked, objective, answered=play.score is not None, stop=play.stop_reason)
        for i, objective in enumerate(score.objectives)
    ]
    return Episode(
        question_id=play.question_id,
        questions=play.questions,
        ledger=tuple(play.ledger.segments),
        rounds=tuple(play.rounds),
        final_view=play.view,
        stop_reason=play.stop_reason,
        stop_detail=play.stop_detail,
        broken_off=play.broken_off,
        score=score,
        failure=() if play.stop_reason is None else tuple(reasons),
        tokens=play.tokens,
        rewards=play.rewards,
        mask_episode=play.stop_reason in NO_FAULT,
        settings=rules.settings,
    )
