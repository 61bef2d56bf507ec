"""What a question asks for, where the reader understands all of it: a plan of what to look up."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TypeAlias

from msgspec import Struct

from mempo_agents.reader.telling import asked
from mempo_agents.reader.text import WORK


class Name(Struct, frozen=True):
    """A thing by its name."""

    text: str


class Of(Struct, frozen=True):
    """The value of a relation of a thing: `Of("teacher", Name("Ada"))` is the teacher of Ada."""

    relation: str
    thing: Plan


class Pick(Struct, frozen=True):
    """Of a group, the one for whom a relation has a value."""

    group: Plan
    relation: str
    value: Plan


class First(Struct, frozen=True):
    """Of two things, by their names, the one whose measure is smaller (or larger)."""

    names: tuple[str, str]
    measures: tuple[Plan, Plan]
    largest: bool


class Same(Struct, frozen=True):
    """Whether two values are the same: yes or no."""

    values: tuple[Plan, Plan]


Plan: TypeAlias = Name | Of | Pick | First | Same

_NAME = re.compile(
    r"(?:the )?(?:(?!(?:who|whose|where|which|that|of|by|in|behind|and|was|is|did)\b)[a-z-]+ ){0,2}"
    rf"(?P<name>{WORK}(?:, [A-Z]\w+)?(?: \([^()]*\))?)"
)

_ORDERED = {
    "born": "born",
    "older": "born",
    "younger": "born",
    "died": "died",
    "founded": "founded",
    "published": "published",
    "released": "released",
    "performed": "premiered",
    "painted": "painted",
    "charter": "charter",
    "inhabitants": "population",
}
_LARGEST = frozenset({"later", "more", "younger"})
_MAKERS = "author|director|composer|painter|performer"
_FIRST = re.compile(
    rf"(?:who|which)(?: [a-z]+)??(?: has the (?P<maker>{_MAKERS}) who)?(?: is| was| were| has| received its)?"
    rf"(?P<what>(?: (?:first|earlier|later|fewer|more|{'|'.join(_ORDERED)}))+), (?P<a>.+) or (?P<b>.+)",
    re.IGNORECASE,
)

_SHARED = {
    "born in": "birthplace",
    "die in": "deathplace",
    "study at": "school",
    "in": "region",
    "based in": "seat",
    "published by": "publisher",
    "directed by": "director",
    "written by": "author",
}
_SAME = re.compile(
    rf"(?:were|was|did|do|are|is) (?P<a>.+) and (?P<b>.+?) (?P<what>{'|'.join(_SHARED)}) the same [a-z]+",
    re.IGNORECASE,
)

_CONDITIONS = {
    "birthplace": ("(?:who )?(?:was )?born in", "(?:who )?(?:was )?born in the same town as"),
    "deathplace": ("(?:who )?died in", "(?:who )?died in the same town as"),
    "school": ("(?:who )?studied at", "(?:who )?went to the same university as"),
    "teacher": ("(?:who )?(?:was )?taught by", "(?:who )?had the same teacher as"),
}
_GROUPS = {
    "founders": "which (?:of the )?founders? of {x} {did}|which .+? {did} was among the founders of {x}",
    "cast": "which (?:of the )?stars? of {x} {did}|which .+? {did} played a leading role in {x}",
    "members": "which (?:of the )?members? of {x} {did}|which .+? {did} took part in {x}",
}


@lru_cache(maxsize=8192)
def understand(question: str) -> Plan | None:
    """The plan of a question; None if it is not understood."""
    text = " ".join(question.split()).rstrip("? ")
    return _first(text) or _same(text) or _pick(text) or _value(text)


@lru_cache(maxsize=8192)
def _value(phrase: str) -> Plan | None:
    """A thing by its name, or a relation of something that is understood."""
    match = _NAME.fullmatch(phrase)
    if match:
        return Name(match["name"])
    for relation, thing in asked(phrase):
        inner = _value(thing)
        if inner is not None:
            return Of(relation, inner)
    return None


def _first(text: str) -> Plan | None:
    match = _FIRST.fullmatch(text)
    if not match:
        return None
    what = match["what"].lower().split()
    relation = next((_ORDERED[word] for word in what if word in _ORDERED), None)
    a, b = _value(match["a"]), _value(match["b"])
    if relation is None or not isinstance(a, Name) or not isinstance(b, Name):
        return None
    left, right = (Of(match["maker"].lower(), thing) if match["maker"] else thing for thing in (a, b))
    return First((a.text, b.text), (Of(relation, left), Of(relation, right)), not _LARGEST.isdisjoint(what))


def _same(text: str) -> Plan | None:
    match = _SAME.fullmatch(text)
    if not match:
        return None
    a, b = _value(match["a"]), _value(match["b"])
    relation = _SHARED[match["what"].lower()]
    return Same((Of(relation, a), Of(relation, b))) if a is not None and b is not None else None


def _pick(text: str) -> Plan | None:
    for group, relation, like, pattern in _PICKS:
        match = pattern.fullmatch(text)
        if not match:
            continue
        x, v = (_value(next(filter(None, (match[f"{slot}0"], match[f"{slot}1"])))) for slot in "xv")
        if x is not None and v is not None:
            return Pick(Of(group, x), relation, Of(relation, v) if like else v)
    return None


def _picking(group: str, condition: str) -> re.Pattern[str]:
    forms = (
        form.replace("{x}", f"(?P<x{i}>.+?)").replace("{did}", f"{condition} (?P<v{i}>.+?)")
        for i, form in enumerate(_GROUPS[group].split("|"))
    )
    return re.compile("|".join(forms), re.IGNORECASE)


_PICKS = tuple(
    (group, relation, like, _picking(group, conditions[like]))
    for like in (1, 0)
    for group in _GROUPS
    for relation, conditions in _CONDITIONS.items()
)
