"""English text as the reader takes it apart: sentences, words, names, dates, numbers."""

from __future__ import annotations

import re
from functools import lru_cache

from mempo_env.retrieval.analysis import STOP_WORDS, query_terms, terms
from mempo_env.scoring import fold, normalise

_UPPER = "A-ZÀ-ÖØ-ÞĀĂĄĆČĎĐĒĖĘĚĞĢĪĮİĶĹĻĽŁŃŅŇŌŐŒŔŘŚŞŠŢŤŪŮŰŲŹŻŽ"
_INITIAL = rf"(?:[{_UPPER}]\.(?: ?[{_UPPER}]\.)*|(?:St|Jr|Sr|Dr|Mr|Mrs|Mt)\.)"
_CAPITAL = rf"(?:{_INITIAL}|[{_UPPER}][\w-]*(?:['’](?!s\b)\w+)*)"
_NUMERAL = r"(?:\d[\w-]*)"
_SMALL = r"(?:of|the|de|la|le|du|des|von|van|der|den|del|di|da|dos|y|al|el|bin|ibn|e|&|for|on|a)"
_SMALLER = r"(?:of|de|la|le|du|des|von|van|der|den|del|di|da|dos|y|al|el|bin|ibn|e|&)"
_MONTH = r"(?:January|February|March|April|May|June|July|August|September|October|November|December)"

NAME = rf"{_CAPITAL}(?: (?:{_SMALLER} (?:(?:the|la|el|los|der) )?)?(?:{_CAPITAL}|{_NUMERAL}))*"
"""A name: words with capitals, joined by of, de, von and the like."""
_OWNER = rf"{_CAPITAL}(?:['’]s(?= [{_UPPER}]|[?,]?$))?"
WORK = rf"{_OWNER}(?: (?:(?:{_SMALL}|to|in|near|at|from|and|with|by) ){{0,2}}(?:{_OWNER}|{_NUMERAL}))*"
"""The name of a book, film or the like, which may hold any preposition."""
DATE = rf"(?:\d{{1,2}} {_MONTH},? \d{{4}}|{_MONTH} \d{{1,2}}, ?\d{{4}}|{_MONTH} \d{{4}}|\d{{4}})"
"""A day, or as much of one as is told: at least a year of four digits."""
NUMBER = r"\d[\d,.]*(?<![,.])"
"""A number in digits."""

MAX_TEXT, MAX_SENTENCE, MAX_QUESTION = 20_000, 1_000, 1_000
"""Characters that are read of an article, a sentence, a question: real ones are shorter."""

_MONTHS = _MONTH[3:-1].split("|")
_ABBREVIATED = re.compile(
    rf"(?:\b(?:[{_UPPER}]|St|Jr|Sr|Dr|Mr|Mrs|Mt|vs|No|Inc|Ltd|Co|c|ca|feat|approx|Vol)|\.[A-Za-z])\.$"
)
_LAST = 8  # characters before a full stop that tell whether it ends an abbreviation
_BREAK = re.compile(r"(?<=[.!?])[\"'”’)\]]* +(?=[\"'“‘(\[]*[^\Wa-z_])")
_DAY = re.compile(DATE)
_WORD = re.compile(r"\w+(?:['’]\w+)?")
_PARENTHESES = re.compile(r"\s*\([^()]*\)")


@lru_cache(maxsize=32_768)
def sentences(text: str) -> tuple[str, ...]:
    """The sentences of a text, in order; what goes beyond `MAX_TEXT` and `MAX_SENTENCE` is not read."""
    text = text[:MAX_TEXT]
    parts: list[str] = []
    start = 0
    for gap in _BREAK.finditer(text):
        if not _ABBREVIATED.search(text[max(start, gap.start() - _LAST) : gap.start()]):
            parts.append(text[start : gap.end()].strip())
            start = gap.end()
    return tuple(part[:MAX_SENTENCE] for part in (*parts, text[start:].strip()) if part)


@lru_cache(maxsize=65_536)
def key(name: str) -> str:
    """A name as names are compared: case, accents, punctuation and articles do not count."""
    return normalise(fold(name))


def holds(text: str, name: str) -> bool:
    """Whether a text, given as a key, has a name in it, whole."""
    name = key(name)
    return bool(name) and f" {name} " in f" {text} "


def plain(title: str) -> str:
    """A title without what tells it from its namesakes in parentheses."""
    return _PARENTHESES.sub("", title).strip() or title


def day(text: str) -> tuple[int, int, int] | None:
    """(year, month, day) of the first date in a text, 0 for what is not told; None if there is none."""
    match = _DAY.search(text)
    if not match:
        return None
    numbers = [int(number) for number in re.findall(r"\d+", match[0])]
    month = next((i for i, name in enumerate(_MONTHS, 1) if name in match[0]), 0)
    return max(numbers), month, min(numbers) if len(numbers) > 1 else 0


def quantity(text: str) -> float | None:
    """The first number in digits; None if there is none."""
    match = re.search(NUMBER, text)
    return float(match[0].replace(",", "")) if match and match[0].count(".") < 2 else None


def words(text: str) -> list[str]:
    """The words of a text in lower case."""
    return [word.lower() for word in _WORD.findall(text)]


@lru_cache(maxsize=65_536)
def stems(text: str) -> frozenset[str]:
    """The stems of a text's content words, as the search engine has them."""
    return frozenset(query_terms(text)) - _FUNCTION_STEMS


_FUNCTION_STEMS = frozenset(terms(" ".join(STOP_WORDS)))
