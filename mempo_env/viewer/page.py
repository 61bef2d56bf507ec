"""One self-contained HTML page for one episode or thousands: no network, opens from a file.

The episodes travel as one JSON block, compressed where it is large. Questions, passages and segments that
occur more than once are stored once, in tables, and referred to by index. Text reaches the page as text nodes
only; a content security policy that names the page's own script by its hash lets nothing else run.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from mempo_env.types import Call, Episode, Hit, Question, Round, Segment
from mempo_env.viewer.words import FAILURES, FLAWS, STOPS

T = TypeVar("T")

LARGE = 100_000
"""Bytes of JSON above which a page holds it compressed."""

UNSEEN = ("token_ids", "logprobs")
"""What a page leaves out of a round."""


class Entry(Struct, frozen=True):
    """An episode to show, and who played it.

    Attributes:
        label: The agent, or whatever tells this episode from others of the same question.
        episode: The episode.
        finished: False: still being played; its stop reason, score and failures are not shown.
    """

    label: str
    episode: Episode
    finished: bool = True


def document(template: str, *, title: str, style: str, script: str, data: bytes) -> str:
    """Assemble a self-contained page; text in `data` and `title` can't become markup or script in it.

    Args:
        template: HTML with `{{policy}}`, `{{title}}`, `{{style}}`, `{{data}}` and `{{script}}` where they go.
        title: Plain text.
        style: CSS of the one style element; the policy allows no other.
        script: JavaScript of the one script element, likewise.
        data: JSON, put in a `<script id="data">` that does not run; `load()` in parts.js reads it.

    Returns:
        The document. What a part holds is never searched for the names of others.
    """
    policy = (
        f"default-src 'none'; style-src {_hash_source(style)}; script-src {_hash_source(script)}; "
        "base-uri 'none'; form-action 'none'"
    )
    parts = {
        "policy": policy,
        "title": html.escape(title),
        "style": style,
        "script": script,
        "data": _data_element(data),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def episodes_page(entries: Sequence[Entry], title: str) -> str:
    """An HTML document, to be written as UTF-8, that shows the episodes one round at a time.

    Token ids and log-probabilities stay out of it; all else of an episode is in it.
    """
    return document(
        resource("viewer.html"),
        title=title,
        style=resource("base.css") + resource("viewer.css"),
        script=resource("parts.js") + resource("episode.js") + resource("viewer.js"),
        data=msgspec.json.encode(_pack(entries)),
    )


@cache
def resource(name: str) -> str:
    """The text of a file of this package, such as `base.css`."""
    return (files(__package__) / name).read_text(encoding="utf-8")


def _hash_source(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _data_element(data: bytes) -> str:
    if len(data) > LARGE:
        kind, text = "application/gzip", base64.b64encode(gzip.compress(data, 6, mtime=0)).decode()
    else:
        # "<" occurs within strings alone, where it must not look like the end of the element or a comment.
        kind, text = "application/json", data.decode().replace("<", "\\u003c")
    return f'<script type="{kind}" id="data">{text}</script>'


def _pack(entries: Sequence[Entry]) -> dict[str, Any]:
    tables = _Tables()
    return {
        "entries": [asdict(entry) | {"episode": _episode(entry.episode, tables)} for entry in entries],
        "questions": [*tables.questions],
        "segments": [*tables.segments],
        "passages": [*tables.passages],
        "words": {"failure": FAILURES, "stop": STOPS, "flaw": FLAWS},
    }


class _Tables(Struct):
    """What is stored once, each with its index: the number of others before it."""

    questions: dict[Question, int] = {}
    segments: dict[Segment, int] = {}
    passages: dict[tuple[str, str, str, int], int] = {}  # id, title, text, row


def _index(table: dict[T, int], value: T) -> int:
    return table.setdefault(value, len(table))


def _episode(episode: Episode, tables: _Tables) -> dict[str, Any]:
    return asdict(episode) | {
        "questions": [_index(tables.questions, question) for question in episode.questions],
        "ledger": [_index(tables.segments, segment) for segment in episode.ledger],
        "rounds": [_round(round, tables) for round in episode.rounds],
    }


def _round(round: Round, tables: _Tables) -> dict[str, Any]:
    shown = {name: value for name, value in asdict(round).items() if name not in UNSEEN}
    return shown | {
        "hits": [_hit(hit, tables) for hit in round.hits],
        "calls": [_call(call, tables) for call in round.calls],
    }


def _hit(hit: Hit, tables: _Tables) -> tuple[int, float]:
    return _index(tables.passages, (hit.id, hit.title, hit.text, hit.row)), hit.score


def _call(call: Call, tables: _Tables) -> dict[str, Any]:
    return {
        "segments": [_index(tables.segments, segment) for segment in call.segments],
        "output": call.output,
        "finish_reason": call.finish_reason,
        "prompt_tokens": len(call.prompt_ids) or call.prompt_tokens,
        "output_tokens": len(call.output_ids) or call.output_tokens,
    }
