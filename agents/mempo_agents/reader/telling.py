"""Finding the relations of `relations.py` in questions and in the sentences of articles."""

from __future__ import annotations

import re
from functools import lru_cache

from mempo_agents.reader.relations import RELATIONS
from mempo_agents.reader.text import DATE, NAME, NUMBER, WORK, sentences

_ORIGIN = r"(?:[A-Z][\w-]*(?:an|ish|ese|ch|ic) (?!(?:in|on|at|of|and|from|to|by|with|as|who)\b)(?=[a-z]))?"
_LEAD = rf"(?:(?:the|an?|his|her|its|their) )?{_ORIGIN}(?:[a-z-]+ ){{0,3}}?(?:of )?"
_VALUES = {
    "name": f"{_LEAD}(?P<v>{NAME})",
    "work": f"{_LEAD}(?P<v>{WORK})",
    "names": f"{_LEAD}(?P<v>{NAME}(?:, {_LEAD}{NAME})*(?:,? and {_LEAD}{NAME})?)",
    "date": f"(?P<v>{DATE})",
    "number": f"(?P<v>{NUMBER})",
}
_KIN = re.compile(
    r"\b(?:brother|sister|cousin|uncle|aunt|niece|nephew|father|mother|son|daughter|grand\w+)\b"
)


@lru_cache(maxsize=8192)
def asked(phrase: str) -> tuple[tuple[str, str], ...]:
    """What a question or noun phrase may ask for, as (relation, the thing it is asked of)."""
    return tuple(
        (name, match["x"])
        for name, patterns in _ASKS.items()
        for pattern in patterns
        if (match := pattern.fullmatch(phrase))
    )


@lru_cache(maxsize=65_536)
def told(relation: str, text: str) -> tuple[tuple[str, ...], str] | None:
    """The values of a relation that a text about a thing tells, with the sentence; None if it tells none.

    Patterns are tried in their order, each on all sentences; what is said of a relative is left out.
    """
    for pattern in _TELLS[relation]:
        for sentence in sentences(text):
            match = pattern.search(sentence)
            if match and not (relation not in _FAMILY and _KIN.search(sentence, 0, match.start())):
                return _values(relation, match["v"]), sentence
    return None


def _values(relation: str, text: str) -> tuple[str, ...]:
    """One value, or the names of a list."""
    if RELATIONS[relation].kind != "names":
        return (text,)
    return tuple(match["v"] for part in _COMMA.split(text) if (match := _ITEM.fullmatch(part)))


_FAMILY = frozenset({"father", "mother"})
_COMMA = re.compile(r",? and |, ")
_ITEM = re.compile(_VALUES["name"])
_ASKS = {
    name: tuple(re.compile(ask.replace("{x}", "(?P<x>.+?)"), re.IGNORECASE) for ask in relation.asks)
    for name, relation in RELATIONS.items()
}
_TELLS = {
    name: tuple(re.compile(tell.replace("{v}", _VALUES[relation.kind])) for tell in relation.tells)
    for name, relation in RELATIONS.items()
}
