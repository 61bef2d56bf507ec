"""A state of the environment as JSON text, and the way back."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from mempo_env import diagnostics
from mempo_env.context import Ledger
from mempo_env.errors import MempoError, StateError
from mempo_env.files import BAD_JSON, digest
from mempo_env.play import Play, Rules, follow, record
from mempo_env.types import Call, Question, RewardTerms, Round, Score, Segment, StopReason, Tokens

VERSION = 3


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A state of the environment; what is not here follows from it."""

    version: int = VERSION
    digest: str = ""
    settings: dict[str, Any]
    rng: str
    question_ids: tuple[str, ...]
    segments: tuple[Segment, ...]
    head: int
    steps: tuple[tuple[int, int], ...]
    memory_index: int | None
    information_index: int | None
    memory: str
    memory_tokens: int
    store: Any
    view: tuple[int, ...]
    observation: str
    prompt_tokens: int
    state_hash: str
    rounds: tuple[Round, ...]
    tokens: Tokens
    rewards: RewardTerms
    stop_reason: StopReason | None
    stop_detail: str
    broken_off: tuple[Call, ...]
    score: Score | None


_SAME = (
    *("memory", "memory_tokens", "view", "observation", "prompt_tokens", "state_hash", "tokens", "rewards"),
    *("stop_reason", "stop_detail", "broken_off", "score"),
)
"""Fields that a play and its snapshot share."""


def freeze(play: Play, settings: dict[str, Any], rng: np.random.Generator) -> str:
    """The snapshot of a play as JSON text."""
    ledger = play.ledger
    snapshot = Snapshot(
        settings=settings,
        rng=json.dumps(rng.bit_generator.state),
        question_ids=tuple(question.id for question in play.questions),
        segments=tuple(ledger.segments),
        head=ledger.head,
        steps=tuple(ledger.steps),
        memory_index=ledger.memory,
        information_index=ledger.information,
        rounds=tuple(play.rounds),
        store=None if play.store is None else play.store.state(),
        **{name: getattr(play, name) for name in _SAME},
    )
    return msgspec.json.encode(replace(snapshot, digest=_digest(snapshot))).decode()


def _digest(snapshot: Snapshot) -> str:
    """Of all of it but the digest itself."""
    return digest(msgspec.json.encode(replace(snapshot, digest="")))


def thaw(text: str, settings: Mapping[str, Any]) -> Snapshot:
    """Read a snapshot, and refuse one of another environment.

    Raises:
        StateError: if the text is no snapshot, was edited, or was taken with other settings; names the
            first that differs.
    """
    try:
        snapshot = msgspec.json.decode(text, type=Snapshot)
    except (*BAD_JSON, TypeError, ValueError) as error:
        raise StateError(
            f"state: wanted the text that get_state() returned, got {str(text)[:40]!r}: {error}"
        ) from None
    if snapshot.version != VERSION:
        raise StateError(f"state: wanted version {VERSION}, got {snapshot.version}; take it again")
    if snapshot.digest != _digest(snapshot):
        raise StateError("state: it was changed after get_state() returned it; take it again")
    ours = msgspec.to_builtins(settings)
    for name in ours:
        if snapshot.settings.get(name) != ours[name]:
            raise StateError(
                f"state: it was taken with {name}={snapshot.settings.get(name)!r}, this environment has "
                f"{ours[name]!r}; make one with the same keyword arguments"
            )
    return snapshot


def restore(text: str, by_id: Callable[[str], Question], rules: Rules) -> tuple[Play, Mapping[str, Any]]:
    """The play that a snapshot was taken of, and the state of its random numbers.

    Args:
        text: What `freeze` returned.
        by_id: Finds a question.
        rules: Of the environment.

    Raises:
        StateError: if it is no snapshot, or of another environment.
    """
    snapshot = thaw(text, rules.settings)
    try:
        _check(snapshot, rules)
        play = _revive(snapshot, tuple(map(by_id, snapshot.question_ids)), rules)
        record(play, rules)
        rng = json.loads(snapshot.rng)
        _check_rng(rng)
    except Exception as error:  # whoever edits and signs a state may have changed anything in it
        told = error if isinstance(error, MempoError) else f"{type(error).__name__}: {error}"
        raise StateError(f"state: it cannot be gone on with: {told}; take it again") from error
    return play, rng


def _check(snapshot: Snapshot, rules: Rules) -> None:
    """Refuse a snapshot whose parts do not belong together."""
    n, done = len(snapshot.segments), len(snapshot.rounds)
    borders = [snapshot.head, *(border for step in snapshot.steps for border in step), n]
    views = (i for view in (snapshot.view, *(round.view for round in snapshot.rounds)) for i in view)
    indices = [i for i in (snapshot.memory_index, snapshot.information_index, *views) if i is not None]
    if borders != sorted(borders) or borders[0] < 1 or not all(0 <= i < n for i in indices):
        raise StateError(f"it refers to segments that are not among its {n}")
    if snapshot.view[: snapshot.head] != tuple(range(snapshot.head)):
        raise StateError("the coming prompt lacks the first segments, system or question")
    if [round.number for round in snapshot.rounds] != list(range(1, done + 1)):
        raise StateError(f"its {done} rounds are not numbered one after the other")
    if len(snapshot.steps) != done or not all(0 <= segment.round <= done for segment in snapshot.segments):
        raise StateError(f"it has segments of other rounds than its {done}")
    if len(snapshot.question_ids) != rules.objectives:
        raise StateError(f"wanted {rules.objectives} questions, got {len(snapshot.question_ids)}")
    if done > rules.max_rounds or (done == rules.max_rounds and snapshot.stop_reason is None):
        raise StateError(f"it goes on after {done} rounds, at most {rules.max_rounds} are allowed")


def _revive(snapshot: Snapshot, questions: tuple[Question, ...], rules: Rules) -> Play:
    segments, tracker = snapshot.segments, diagnostics.start(questions)
    question_id = "+".join(snapshot.question_ids)
    play = Play(
        questions=questions,
        question_id=question_id,
        store=None if rules.make_store is None else rules.make_store(question_id, snapshot.store),
        ledger=Ledger(
            segments=list(segments),
            count=rules.count,
            head=snapshot.head,
            steps=list(snapshot.steps),
            memory=snapshot.memory_index,
            information=snapshot.information_index,
        ),
        tracker=tracker,
        asked=tracker,
        diagnostics=tracker.diagnostics(),
        segments=tuple(segments[i] for i in snapshot.view),
        **{name: getattr(snapshot, name) for name in _SAME},
    )
    views = [*(round.view for round in snapshot.rounds), snapshot.view]
    for round, view in zip(snapshot.rounds, views[1:], strict=True):
        prompt = (segments[i] for i in view)
        play.asked = diagnostics.asked(
            play.tracker, segments, round.view, round.calls, stored=play.store is not None
        )
        play.tracker = follow(play, prompt, round.action, round.hits, round.memory)
        play.diagnostics = round.diagnostics
        play.rounds.append(round)
    return play


def _check_rng(state: Any) -> None:
    """Try a state of random numbers on a generator that nobody needs."""
    try:
        np.random.default_rng().bit_generator.state = state
    except Exception as error:
        raise StateError(f"its random state cannot be read: {error}") from None
