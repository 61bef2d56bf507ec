"""What a policy asks of a memory bank, read from its tags, and what it is told where that is refused."""

from __future__ import annotations

import re
from typing import NamedTuple

from mempo_env.types import BankRecord, Operation, OperationKind

TAGS: dict[str, OperationKind] = {
    "memory_write": "write",
    "memory_read": "read",
    "memory_merge": "merge",
    "memory_discard": "discard",
}

_PARAMETERS: dict[OperationKind, str] = {"write": "", "read": "k", "merge": "ids", "discard": "ids"}
_PARAMETER = re.compile(r"""\s*(\w+)\s*=\s*(?:"([^"]*)"|'([^']*)')""")
_IDS = re.compile(r"\s*\d{1,9}\s*(?:,\s*\d{1,9}\s*)*", re.ASCII)
_NUMBER = re.compile(r"\s*(\d{1,9})\s*", re.ASCII)


class Fault(NamedTuple):
    """Why an operation cannot be done: a word of the protocol, and a line for the agent."""

    reason: str
    detail: str


_BESIDE = {"duplicate": "too similar to", "not_novel": "judged to be no news beside"}


def refusal(record: BankRecord) -> str:
    """The line for the agent where a gate refused a write, and how to write it nevertheless."""
    id = record.ids[0]
    told = f"Not written ({record.why}): {_BESIDE[record.why]} entry [{id}]."
    return f"{told} If it says more, merge [{id}] with a text that says both."


def read_operation(tag: str, parameters: str, text: str) -> Operation | Fault:
    """Read one operation; total, and it never guesses.

    Args:
        tag: Its name, in `TAGS`.
        parameters: What stands in the opening tag after the name, without a closing slash.
        text: What stands between the tags.
    """
    kind, text = TAGS[tag], text.strip()
    given = _parameters(parameters)
    if given is None:
        return Fault("bad_parameter", f'a parameter of <{tag}> is written name="value"')
    wanted = _PARAMETERS[kind]
    unknown = [name for name in given if name != wanted]
    if unknown:
        takes = f"{wanted} only" if wanted else "none"
        return Fault("unknown_parameter", f"<{tag}> does not take {unknown[0]}; it takes {takes}")
    if kind in ("write", "read") and not text:
        return Fault("empty", f"<{tag}> was empty")
    if kind == "discard" and text:
        return Fault("bad_parameter", f"<{tag}> takes ids and no text")
    if kind == "write":
        return Operation(kind=kind, text=text)
    if kind == "read":
        return _read(tag, text, given.get("k"))
    if "ids" not in given:
        return Fault("missing_parameter", f'<{tag}> needs ids, as in <{tag} ids="3,7">')
    if not _IDS.fullmatch(given["ids"]):
        return Fault("bad_parameter", f'ids of <{tag}> are numbers, as in ids="3,7"')
    ids = tuple(int(number) for number in given["ids"].split(","))
    if len(set(ids)) != len(ids):
        return Fault("bad_parameter", f"<{tag}> names an entry twice")
    if kind == "merge" and len(ids) == 1 and not text:
        return Fault("bad_parameter", f"<{tag}> needs two entries or more, or one and its new text")
    return Operation(kind=kind, text=text, ids=ids)


def _read(tag: str, query: str, k: str | None) -> Operation | Fault:
    number = None if k is None else _NUMBER.fullmatch(k)
    if k is not None and (number is None or int(number[1]) < 1):
        return Fault("bad_parameter", f"k of <{tag}> is a number of entries, at least 1")
    return Operation(kind="read", text=query, k=None if number is None else int(number[1]))


def _parameters(text: str) -> dict[str, str] | None:
    """The parameters by name, or None if they are not written as such, or one is given twice."""
    given: dict[str, str] = {}
    text, at = text.rstrip(), 0
    while at < len(text):
        match = _PARAMETER.match(text, at)
        if match is None or match[1].lower() in given:
            return None
        given[match[1].lower()] = match[2] if match[2] is not None else match[3]
        at = match.end()
    return given
