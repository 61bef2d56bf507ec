"""What a question is about, where not all of it is understood: its words, its names, the kind of answer."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal, TypeAlias

from msgspec import Struct

from mempo_agents.reader.text import WORK, stems

Kind: TypeAlias = Literal["person", "place", "date", "year", "number", "adjective", "name"]
"""What an answer may be; "name" is anything with a name."""


class Inquiry(Struct, frozen=True):
    """A question, taken apart.

    Attributes:
        text: The question.
        words: The stems of its content words, each with its weight: names and numbers count double.
        names: The names in it, in order, quoted titles first.
        kind: What the answer should be.
        noun: Stem of the noun that says what is asked for ("band" of "which rock band"); empty if none does.
    """

    text: str
    words: dict[str, float]
    names: tuple[str, ...]
    kind: Kind
    noun: str


_PEOPLE = """
actor actress architect artist author businessman character chemist coach comedian composer designer director
drummer economist emperor entrepreneur figure filmmaker footballer founder general guitarist host journalist
king leader manager man mathematician model musician novelist person philosopher physicist player playwright
poet politician president producer queen rapper scientist screenwriter singer songwriter woman wrestler writer
brother daughter father husband mother sister son wife
"""
_PLACES = """
area borough capital city community continent country county district island location municipality nation
neighborhood place province region state suburb town village
"""
_NOUNS: dict[str, Kind] = {
    **dict.fromkeys(_PEOPLE.split(), "person"),
    **dict.fromkeys(_PLACES.split(), "place"),
    "date": "date",
    "day": "date",
    "birthday": "date",
    "year": "year",
    "decade": "year",
    "population": "number",
    "number": "number",
    "amount": "number",
    "nationality": "adjective",
}
"""What kind of answer a noun asks for."""

_WH = re.compile(
    r"\b(?:whom|whose|who|when|where|how (?:many|much|long|old|far|tall)|what|which)\b", re.IGNORECASE
)
_BEFORE = frozenset(
    {"", "in", "on", "at", "for", "from", "to", "by", "with", "of", "until", "since", "about"}
)
_QUOTED = re.compile(r"[\"“]\s*([^\"”]+?)[\s,.]*[\"”]")
_VERBS = "is|was|were|are|do|does|did|has|had|have"
_NOT_NOUNS = frozenset({*_VERBS.split("|"), "the", "a", "an", "of", "in", "on", "by", "for", "s", "name"})
_NOT_NAMES = """
what which who whom whose when where how why in on at for of is are was were do does did has have the a an and
both between during after before from to this that name
"""
_FIRST_WORDS = frozenset(_NOT_NAMES.split())
_AFTER_WH = re.compile(
    rf"((?: [\w'-]+){{1,6}}?)"
    rf"(?: (?:{_VERBS}|(?!united)\w+ed|who|that|which|in|of|by|on|with|from|for|to|at|and)\b|[,?]|$)"
)
_AFTER_VERB = re.compile(
    r"(?: (?:is|was|are|were))? (?:the |an? )?(?:name of the )?((?:[\w'-]+ ?){1,4}?)"
    r"(?: of| for| that| in|,|\?|$)"
)


@lru_cache(maxsize=8192)
def inquire(question: str) -> Inquiry:
    """Take a question apart."""
    text = " ".join(question.split())
    kind, noun = _wanted(text)
    names = _names(text)
    named = frozenset(stem for name in names for stem in stems(name))
    words = {stem: 2.0 if stem in named or stem.isdigit() else 1.0 for stem in stems(text)}
    return Inquiry(text, words, names, kind, noun)


def _names(text: str) -> tuple[str, ...]:
    """The quoted titles and the names of a question; a capital at its start alone makes no name."""
    found = [match[1] for match in _QUOTED.finditer(text)]
    rest = _QUOTED.sub(" ", text)
    for match in re.finditer(WORK, rest):
        name = match[0]
        while (first := name.split(" ", 1))[0].lower() in _FIRST_WORDS and len(first) > 1:
            name = first[1]
        if name.lower() not in _FIRST_WORDS and name[0].isupper():
            found.append(name)
    return tuple(dict.fromkeys(found))


def _wanted(text: str) -> tuple[Kind, str]:
    """What the answer should be, and the noun that says so."""
    matches = list(_WH.finditer(text))
    if not matches:
        return "name", ""
    match = max(matches, key=lambda m: (_asks(text, m), m.start()))
    wh, rest = match[0].lower(), text[match.end() :].lower()
    if wh in ("who", "whom", "whose"):
        return "person", ""
    if wh in ("when", "where"):
        return ("date" if wh == "when" else "place"), ""
    if wh.startswith("how"):
        noun = re.match(r"\s*([a-z]+)", rest)
        return "number", _stem(noun[1]) if noun else ""
    return _by_noun(rest)


def _asks(text: str, match: re.Match[str]) -> int:
    """How likely a wh-word is the one that asks, as others begin clauses: one at the start, else "what"."""
    if match.start() < 10 and text[: match.start()].strip().lower() in _BEFORE:
        return 3
    if match[0].lower().startswith(("what", "how")):
        return 2
    return int(match[0].lower() == "which" and not text[: match.start()].rstrip().endswith(","))


def _by_noun(rest: str) -> tuple[Kind, str]:
    """By the noun that stands last between "what" or "which" and the verb, or else after the verb."""
    match = _AFTER_WH.match(rest)
    if not match or _NOT_NOUNS.issuperset(match[1].split()):
        match = _AFTER_VERB.match(rest)
    nouns = match[1].split() if match else []
    known = next((noun for noun in reversed(nouns) if noun in _NOUNS), "")
    if known:
        return _NOUNS[known], _stem(known)
    return "name", _stem(nouns[-1]) if nouns else ""


def _stem(word: str) -> str:
    return next(iter(stems(word)), "")
