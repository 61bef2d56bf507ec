"""Questions about two things: which of them, whether both, or what they have in common."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal

from msgspec import Struct

from mempo_agents.reader.follow import Outcome, together
from mempo_agents.reader.gist import excerpt
from mempo_agents.reader.library import Library
from mempo_agents.reader.telling import told
from mempo_agents.reader.text import NAME, NUMBER, WORK, day, key, quantity, sentences, stems
from mempo_agents.view import Article


class Pair(Struct, frozen=True):
    """Two things by their names, and what is asked of them."""

    a: str
    b: str
    asks: Literal["which", "whether", "what"]


_ORDERS = {
    "early": "first earlier earliest older oldest elder",
    "late": "later latest younger youngest newer newest recent recently last",
    "more": "more most larger largest bigger taller tallest higher highest longer longest",
    "less": "fewer fewest less least smaller smallest shorter shortest lower",
}
_ORDER = {word: order for order, words in _ORDERS.items() for word in words.split()}
"""What is compared: dates (the early or the late one is asked for) or amounts."""

_PART = rf"(?:the |The |A )?{WORK.replace('|and', '')}"
_OR = re.compile(rf"[\"“]?(?P<a>{_PART})[\"”]?,? or [\"“]?(?P<b>{_PART})")
_AND = re.compile(rf"[\"“]?(?P<a>{_PART})[\"”]?,? and [\"“]?(?P<b>{_PART})")
_WHETHER = re.compile(r"(?:are|were|is|was|do|does|did|have|has|had|can)\b", re.IGNORECASE)
_SHARED = re.compile(r"\b(?:both|in common|share)\b", re.IGNORECASE)
_OF_TWO = re.compile(r"\b(?:which|who|out) of\b|\bbetween\b", re.IGNORECASE)
_PARENTHESES = re.compile(r"\s*\([^()]*\)")
_STARTS = "Are|Were|Is|Was|Do|Does|Did|Have|Has|Had|Can|Which|Who|What|Both|Of|In"
_START = re.compile(rf"^(?:{_STARTS})(?: both| of)? ")


@lru_cache(maxsize=8192)
def pair(question: str) -> Pair | None:
    """The two things that a question compares; None if it does not."""
    text = " ".join(question.split())
    bare = _START.sub("", _PARENTHESES.sub("", text))
    match = _OR.search(bare)
    if match:
        return Pair(match["a"], match["b"], "which")
    match = _AND.search(bare)
    if not match:
        return None
    if _OF_TWO.search(text):
        return Pair(match["a"], match["b"], "which")
    if _WHETHER.match(text):
        return Pair(match["a"], match["b"], "whether")
    return Pair(match["a"], match["b"], "what") if _SHARED.search(text) else None


def compare(question: str, two: Pair, library: Library) -> Outcome:
    """Answer from the articles about both; look for those that are missing."""
    a, b = _about(question, two.a, library), _about(question, two.b, library)
    if a is None or b is None:
        guess = {"which": two.a, "whether": "yes", "what": ""}[two.asks]
        missing = [Outcome(queries=(name,)) for name, one in ((two.a, a), (two.b, b)) if one is None]
        return Outcome(queries=together(*missing), support=tuple(filter(None, (a, b))), guess=guess)
    if two.asks == "which":
        value = (two.a, two.b)[_which(question, two, a, b)]
    elif two.asks == "whether":
        value = "yes" if _whether(question, two, a, b) else "no"
    else:
        value = common(a, b)
    return Outcome(values=(value,) if value else (), support=(a, b))


def _about(question: str, name: str, library: Library) -> Article | None:
    """What matters of the article about a thing, or else of one whose title begins with its name."""
    found = [mention.article for mention in library.about(name)]
    found += [article for article in library.articles if f"{key(article.title)} ".startswith(f"{key(name)} ")]
    return excerpt(question, found[0]) if found else None


# --- Which of the two --------------------------------------------------------------------------------------


def _which(question: str, two: Pair, a: Article, b: Article) -> int:
    """0 for the first, 1 for the second: by date, by amount, or by what is said of them."""
    said = key(question).split()
    order = next((_ORDER[word] for word in said if word in _ORDER), "")
    if order in ("early", "late"):
        dates = [_when(said, article) for article in (a, b)]
        if dates[0] and dates[1] and dates[0] != dates[1]:
            return int((dates[1] < dates[0]) == (order == "early"))
    if order in ("more", "less"):
        amounts = [_amount(question, article) for article in (a, b)]
        if amounts[0] != amounts[1]:
            return int((amounts[1] > amounts[0]) == (order == "more"))
    wanted = stems(question) - stems(two.a) - stems(two.b)
    return int(len(wanted & stems(b.text)) > len(wanted & stems(a.text)))


def _when(said: list[str], article: Article) -> tuple[int, int, int] | None:
    """The date that is asked about, or else the first one that the article tells."""
    found = told("died" if "died" in said else "born", article.text)
    return day(found[0][0]) if found else day(article.text)


def _amount(question: str, article: Article) -> float:
    """The number that stands before what is counted, or else the largest."""
    wanted = stems(question)
    best = 0.0
    for match in re.finditer(rf"({NUMBER})((?: [\w-]+){{1,3}})", article.text):
        number = quantity(match[1])
        if number is not None and not wanted.isdisjoint(stems(match[2])):
            return number
        best = max(best, number or 0.0)
    return best


# --- Whether both ------------------------------------------------------------------------------------------

_SAME = re.compile(r"\bsame (\w+)", re.IGNORECASE)
_PREDICATE = re.compile(r"\b(?:is|was|are|were) (?:an?|the|one of the)? ?(?P<what>.+)")
_SETTLEMENT = re.compile(r"(?:small |large )?(?:village|town|city|municipality)\b")
_ENOUGH = 0.6  # share of the words


def _whether(question: str, two: Pair, a: Article, b: Article) -> bool:
    """Whether what is said of both is found of each; of "the same", whether the values are equal."""
    same = _SAME.search(question)
    if same or "nationality" in question:
        first, second = (_belongs(same[1].lower() if same else "nationality", article) for article in (a, b))
        return bool(first) and first == second
    wanted = stems(question) - stems(two.a) - stems(two.b) - stems("kinds types")
    found = (len(wanted & (stems(article.text) | stems(article.title))) for article in (a, b))
    return all(number >= _ENOUGH * len(wanted) for number in found)


def _belongs(what: str, article: Article) -> str:
    """The country (or family, or whatever) of a thing, as a key; empty if it is not told."""
    if what not in ("country", "nationality"):
        near = re.search(
            rf"\b{re.escape(what)} (?:of )?(?:the )?({NAME})|({NAME}) {re.escape(what)}\b", article.text
        )
        if near:
            return key(near[1] or near[2])
    said = _says(article)
    names = re.findall(NAME, said)
    return key(names[-1 if _SETTLEMENT.match(said) else 0]) if names else ""


# --- What they have in common ------------------------------------------------------------------------------

_WORDS = re.compile(r"[\w'-]+")
_LONGEST = 5  # words of a run
_KIND_OF = re.compile(r"^(?:genus|species|family|type|kind|member) of ")


def common(a: Article, b: Article) -> str:
    """The longest run of words that both openings say of their things; empty if there is none."""
    first, second = (_WORDS.findall(_says(article)) for article in (a, b))
    text = f" {' '.join(second)} "
    runs = [
        first[i:j]
        for i in range(len(first))
        for j in range(i + 1, min(len(first), i + _LONGEST) + 1)
        if f" {' '.join(first[i:j])} " in text and stems(first[i]) and stems(first[j - 1])
    ]
    longest = max((run for run in runs if run[0].islower()), key=len, default=[])
    return _KIND_OF.sub("", " ".join(longest))


def _says(article: Article) -> str:
    """What the opening of an article says that its thing is."""
    predicate = _PREDICATE.search(sentences(article.text)[0]) if article.text else None
    return predicate["what"] if predicate else ""
