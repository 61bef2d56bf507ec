"""Episodes as compact data: questions, segments, passages and lines of text are stored once, in tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import asdict, replace

from mempo_env.types import Call, Episode, Hit, Question, Round, Segment
from mempo_env.viewer.words import FAILURES, FLAWS, STOPS

T = TypeVar("T")

UNSEEN = ("token_ids", "logprobs")
"""What a page leaves out of a round."""


SETTINGS = "settings.json"
"""The file in the folder of a training run by which it is known."""

SAMPLES = "episodes"
"""Files episodes-NAME.jsonl in a folder hold an episode a line: those that a training run leaves."""


class Entry(Struct, frozen=True):
    """An episode to show, and who played it.

    Attributes:
        label: The agent, or whatever tells this episode from others of the same question.
        episode: The episode; while its stop reason is None, no score and no failure is shown.
    """

    label: str
    episode: Episode


def pack(entries: Sequence[Entry]) -> dict[str, Any]:
    """The JSON-able data of a page: `entries`, and the tables that they refer to by index.

    A segment is [kind, round, tokens, lines], a passage [id, title, row, lines], a hit [passage, score]; a
    text is the list of its lines. The words for failures, stop reasons and flaws come along as `words`.
    """
    tables = _Tables()
    episodes = [asdict(entry) | {"episode": _episode(entry.episode, tables)} for entry in entries]
    segments = [(s.kind, s.round, s.tokens, _lines(s.text, tables)) for s in tables.segments]
    passages = [(p.id, p.title, p.row, _lines(p.text, tables)) for p in tables.passages]
    return {
        "entries": episodes,
        "questions": [*tables.questions],
        "segments": segments,
        "passages": passages,
        "lines": [*tables.lines],
        "words": {"failure": FAILURES, "stop": STOPS, "flaw": FLAWS},
    }


class _Tables(Struct):
    """What is stored once, each with its index: the number of others before it."""

    questions: dict[Question, int] = {}
    segments: dict[Segment, int] = {}
    passages: dict[Hit, int] = {}  # with score 0
    lines: dict[str, int] = {}


def _index(table: dict[T, int], value: T) -> int:
    return table.setdefault(value, len(table))


def _lines(text: str, tables: _Tables) -> list[int]:
    return [_index(tables.lines, line) for line in text.split("\n")]


def _episode(episode: Episode, tables: _Tables) -> dict[str, Any]:
    return asdict(episode) | {
        "questions": [_index(tables.questions, question) for question in episode.questions],
        "ledger": [_index(tables.segments, segment) for segment in episode.ledger],
        "rounds": [_round(round, episode, tables) for round in episode.rounds],
    }


def _round(round: Round, episode: Episode, tables: _Tables) -> dict[str, Any]:
    shown = {name: value for name, value in asdict(round).items() if name not in UNSEEN}
    return shown | {
        "text": _lines(round.text, tables),
        "memory": _lines(round.memory, tables),
        "hits": [(_index(tables.passages, replace(hit, score=0.0)), hit.score) for hit in round.hits],
        "calls": [_call(call, episode, tables) for call in round.calls],
    }


def _call(call: Call, episode: Episode, tables: _Tables) -> dict[str, Any]:
    segments = (episode.ledger[s] if isinstance(s, int) else s for s in call.segments)
    return {
        "segments": [_index(tables.segments, segment) for segment in segments],
        "output": _lines(call.output, tables),
        "finish_reason": call.finish_reason,
        "prompt_tokens": len(call.prompt_ids) or call.prompt_tokens,
        "output_tokens": len(call.output_ids) or call.output_tokens,
    }
