"""The Search-R1 protocol on the wire: requests and answers in all their spellings, both ways.

    POST /retrieve {"queries": [str], "topk": int | null, "return_scores": bool}
    -> {"result": [[{"document": {"id", "title", "text", "contents"}, "score": float}]]}

`contents` is `"Title"` in quotes, a line break, and the text; many clients read nothing else, many servers
send nothing else. Without scores a hit is its document. SkyRL sends `query`, one string. ZeroSearch sends
`query` and `top_k` and expects a bare list of `{"text"}`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from mempo_env.files import BAD_JSON
from mempo_env.types import Hit

DEFAULT_TOPK = 3
MAX_TOPK = 1_000
MAX_QUERIES = 10_000
MAX_HITS = 50_000
"""Queries times hits of a request: an answer of this size, of passages of 100 words, has some 50 MB."""

_ROW_DIGITS = 18  # digits of a row at most: 64 bits hold it

_FILLER = 3e38  # faiss fills up with id -1 and a score of this size where it has fewer than k hits


class Malformed(Exception):
    """A request or an answer that does not follow the protocol; its text says how, in one line."""


class Request(Struct, frozen=True):
    """A request that was understood.

    Attributes:
        queries: The queries.
        k: Hits wanted for each.
        scores: Whether each hit is to come with its score.
        bare: Whether one list of `{"text"}` is expected.
    """

    queries: tuple[str, ...]
    k: int
    scores: bool
    bare: bool


class _Body(Struct, frozen=True):
    queries: list[str] | UnsetType = UNSET
    query: str | UnsetType = UNSET
    topk: int | UnsetType | None = UNSET
    top_k: int | UnsetType | None = UNSET
    k: int | UnsetType | None = UNSET
    return_scores: bool = False


def read_request(body: bytes) -> Request:
    """Read a request in any spelling; Malformed if it is none."""
    try:
        asked = msgspec.json.decode(body, type=_Body)
    except BAD_JSON as error:
        raise Malformed(f"wanted JSON with queries, topk and return_scores: {error}") from None
    if isinstance(asked.query, str) == isinstance(asked.queries, list):
        raise Malformed("wanted either queries, a list, or query, a string")
    queries = tuple(asked.queries) if isinstance(asked.queries, list) else (str(asked.query),)
    sizes = [size for size in (asked.topk, asked.top_k, asked.k) if isinstance(size, int)]
    if len(sizes) > 1:
        raise Malformed("wanted one of topk, top_k and k")
    k = sizes[0] if sizes else DEFAULT_TOPK
    if not 1 <= k <= MAX_TOPK:
        raise Malformed(f"wanted a topk of 1 to {MAX_TOPK}, got {k}")
    if len(queries) > MAX_QUERIES:
        raise Malformed(f"wanted at most {MAX_QUERIES} queries, got {len(queries)}")
    if len(queries) * k > MAX_HITS:
        raise Malformed(
            f"wanted at most {MAX_HITS} hits in one request, got {len(queries)} queries for {k} each"
        )
    return Request(queries, k, asked.return_scores, isinstance(asked.query, str) and asked.top_k is not UNSET)


def write_rankings(request: Request, rankings: Sequence[Sequence[Hit]]) -> bytes:
    """Write the answer to a request in the form that it expects."""
    if request.bare:
        return msgspec.json.encode([{"text": _contents(hit)} for hit in rankings[0]])
    write = _scored if request.scores else _document
    return msgspec.json.encode({"result": [[write(hit) for hit in hits] for hits in rankings]})


def _scored(hit: Hit) -> dict[str, Any]:
    return {"document": _document(hit), "score": hit.score}


def _document(hit: Hit) -> dict[str, Any]:
    return {"id": hit.id, "title": hit.title, "text": hit.text, "contents": _contents(hit), "row": hit.row}


def _contents(hit: Hit) -> str:
    return f'"{hit.title}"\n{hit.text}'


def read_rankings(body: bytes, count: int, k: int) -> list[tuple[Hit, ...]]:
    """Read an answer to `count` queries for k hits each, in any form.

    Hits are ordered by (-score, row) and cut to k. A hit's row is the one that the server tells, else its id
    where that is a number of up to 18 digits, else its rank. Without scores the order of the answer counts,
    with 1, 1/2, 1/3, ... as scores. Hits with id -1 are the filling of an index that had no more to offer,
    and left out.

    Raises:
        Malformed: if it is no answer to this request.
    """
    try:
        answer = msgspec.json.decode(body)
    except BAD_JSON:
        raise Malformed("the answer is not JSON, or cut off") from None
    rankings = answer.get("result") if isinstance(answer, dict) else answer
    if not isinstance(rankings, list):
        raise Malformed("the answer has no list of results")
    if isinstance(answer, list) and count == 1 and all(isinstance(hit, dict) for hit in answer):
        rankings = [answer]
    if len(rankings) != count:
        raise Malformed(f"wanted results for {count} queries, got {len(rankings)}")
    return [_ranking(hits, k) for hits in rankings]


def _ranking(items: Any, k: int) -> tuple[Hit, ...]:
    if not isinstance(items, list):
        raise Malformed(f"wanted a list of hits for each query, got {type(items).__name__}")
    hits = [hit for rank, item in enumerate(items) if (hit := _hit(item, rank)) is not None]
    return tuple(sorted(hits, key=lambda hit: (-hit.score, hit.row))[:k])


def _hit(item: Any, rank: int) -> Hit | None:
    document = item.get("document", item) if isinstance(item, dict) else None
    if not isinstance(document, dict):
        raise Malformed(f"wanted a hit with a document, got {type(item).__name__}")
    name, score = str(document.get("id", rank)), item.get("score")
    if not isinstance(score, int | float):
        score = 1 / (1 + rank)
    if name == "-1" or abs(score) >= _FILLER:
        return None
    title, text = _title_and_text(document)
    row = str(document.get("row", name))
    known = row.isdecimal() and len(row) <= _ROW_DIGITS
    return Hit(name, title, text, int(row) if known else rank, float(score))


def _title_and_text(document: dict[str, Any]) -> tuple[str, str]:
    contents, title, text = (document.get(key) for key in ("contents", "title", "text"))
    if not isinstance(text, str) and not isinstance(contents, str):
        raise Malformed("wanted a document with text or contents, found neither")
    if isinstance(title, str) and isinstance(text, str):
        return title, text
    whole = contents if isinstance(contents, str) else str(text)
    first, line_break, rest = whole.partition("\n")
    if not line_break:
        return title if isinstance(title, str) else "", whole
    return title if isinstance(title, str) else first.strip().removeprefix('"').removesuffix('"'), rest
