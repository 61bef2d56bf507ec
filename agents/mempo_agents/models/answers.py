"""What a model's server answers, read: JSON as servers write it, and refusals."""

from __future__ import annotations

import json
import re
from typing import Any, TypeVar

import msgspec

from mempo_agents.models.base import ModelError, ModelOverflow
from mempo_env.files import BAD_JSON
from mempo_env.retrieval.link import retry_after
from mempo_env.types import MOST_TOKENS, storable

T = TypeVar("T")

TOO_LONG = re.compile(
    "available context size"  # llama.cpp
    "|maximum context length|maximum model length|max_tokens must be at least 1, got -"  # vLLM
    "|too long to fit into the model"  # vLLM of early 2025
    "|model's context length|exceeds the maximum allowed length"  # SGLang
    "|exceed context window",  # llama-cpp-python
    re.IGNORECASE,
)
"""How servers say that a prompt is longer than their window, where they have no code for it."""

_TOO_LONG_CODES = ("context_length_exceeded", "exceed_context_size_error")  # OpenAI's code, llama.cpp's type
_TOO_LONG_STATUSES = (400, 413, 422, 500)  # 500: llama.cpp until September 2025, llama-cpp-python
_WRONG_FOR_ALL = (401, 404)  # no key, no such model; 403 may be about one prompt: what a filter refuses
_MESSAGES = ("message", "detail", "error")
_TOLD = 240  # characters of what a server says that count, and that a message shows


class Fault(Exception):
    """A try without a usable answer.

    Attributes:
        kind: What it is if it was the last one.
        wait: Seconds that the server asks to wait, if it does.
        final: Whether asking again would give the same.
        for_all: Whether it would for every other call, too; if it is final, as long as none was answered.
    """

    def __init__(
        self,
        reason: str,
        kind: type[ModelError] = ModelError,
        wait: float | None = None,
        final: bool = False,
        for_all: bool = False,
    ) -> None:
        super().__init__(reason)
        self.kind, self.wait, self.final, self.for_all = kind, wait, final, for_all


def decoded(body: bytes, kind: type[T]) -> T:
    """JSON of a type, or a Fault.

    What Python's own decoder takes is taken, too, as servers in Python write it: a byte order mark, halves of
    characters, NaN, Infinity. Numbers of twenty digits and more are floats, as no int of theirs is needed.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except BAD_JSON as first:
        try:
            text = body.decode("utf-8-sig", "replace")
            return msgspec.convert(json.loads(text, parse_int=_number), kind)
        except (*BAD_JSON, ValueError):
            raise Fault(f"an answer that is not what was asked for: {first}") from None


def _number(digits: str) -> int | float:
    return int(digits) if len(digits) < 20 else float(digits)


def count(value: Any, most: int = MOST_TOKENS) -> int | None:
    """A number of tokens that a server tells; None where it is none, or an absurd one."""
    return value if type(value) is int and 0 <= value <= most else None


def refusal(status: int, answer: bytes, asked: str | None = None) -> Fault:
    """What to make of a status other than 200: 408, 409, 429 and 5xx may pass, others stay."""
    said = _said(answer)
    told = said["message"] or answer.decode("utf-8", "replace")
    reason = f"status {status}{f': {told}' if told else ''}"
    if status in _TOO_LONG_STATUSES and _too_long(said):
        return Fault(reason, ModelOverflow, final=True)
    passing = status in (408, 409, 429) or status >= 500
    wait = retry_after(asked) if status in (429, 503) else None
    return Fault(reason, wait=wait, final=not passing, for_all=status in _WRONG_FOR_ALL)


def _said(answer: bytes) -> dict[str, str]:
    """`message`, `code` and `type` of an error, where they are texts; other members may echo the input."""
    found: Any
    try:
        found = decoded(answer, object)
    except Fault:
        found = answer.decode("utf-8", "replace")
    for key in ("error", "detail"):
        if isinstance(found, dict) and isinstance(found.get(key), dict | list):
            found = found[key]
    if isinstance(found, list):  # FastAPI's
        found = "; ".join(str(one["msg"]) for one in found if isinstance(one, dict) and "msg" in one)
    said = found if isinstance(found, dict) else {"message": found}
    texts: dict[str, str] = {
        key: said[key] for key in (*_MESSAGES, "code", "type") if isinstance(said.get(key), str)
    }
    return texts | {"message": next((texts[key] for key in _MESSAGES if texts.get(key)), "")}


def _too_long(said: dict[str, str]) -> bool:
    """By a code, or by the beginning of what is said; what comes later may be quoted from the prompt."""
    coded = any(said.get(key) in _TOO_LONG_CODES for key in ("code", "type"))
    return coded or bool(TOO_LONG.search(said["message"][:_TOLD]))


def shown(text: str) -> str:
    """What a server says, on one line and cut."""
    line = " ".join(storable(text[: 8 * _TOLD]).split())
    return line if len(line) <= _TOLD else f"{line[:_TOLD]}..."
