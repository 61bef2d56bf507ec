"""The best candidate for an answer in what was read, where a question is not understood as a whole."""

from __future__ import annotations

import re
from functools import lru_cache

from msgspec import Struct

from mempo_agents.reader.gist import named_by, share
from mempo_agents.reader.inquiry import inquire
from mempo_agents.reader.text import DATE, NAME, NUMBER, holds, key, plain, sentences, stems
from mempo_agents.view import Article

WEIGHTS = {
    "sentence": 0.9,  # share of the question's words in its sentence and title
    "near": 1.1,  # the same of the words close to it
    "asked": 0.8,  # its article is named in the question
    "linked": 3.1,  # its article is not, but is named in one that is
    "described": 1.0,  # share of the question's words in the article about it
    "kind_described": 1.4,  # that article opens with the noun that is asked for
    "kind_named": 1.1,  # its own name has that noun
    "place": 1.4,  # a place is asked for, and it stands behind "in" or the like
    "person": 1.2,  # a person is asked for, and it looks like the name of one
    "adjective": 1.6,  # a nationality is asked for, and it ends like one
    "one_word": -0.2,
    "digits": -1.0,  # it has digits, and no date or number is asked for
}
"""What speaks for a candidate, and how much.

Fitted by logistic regression on 365 questions of HotpotQA, none of those that figures are reported on."""

_COUNTED = {
    "date": re.compile(DATE),
    "year": re.compile(r"\b(?:1\d{3}|20\d\d)\b"),
    "number": re.compile(rf"{NUMBER}(?: (?:million|billion|thousand|hundred))?"),
}
_NAME = re.compile(NAME)
_PLACE = re.compile(rf"{NAME}, {NAME}")
_QUOTED = re.compile(r"[\"“]([^\"”]{2,60}?)[,.]?[\"”]")
_ADJECTIVE = re.compile(r"(?:an|ish|ese|ch)$")
_AT = re.compile(r"\b(?:in|at|of|from|near) (?:the )?$")
_NEAR = 60  # characters on either side


class Candidate(Struct, frozen=True):
    """What may be the answer, with what its sentence and its article say for it."""

    text: str
    key: str
    score: float


@lru_cache(maxsize=65_536)
def spans(sentence: str, kind: str) -> tuple[tuple[int, int], ...]:
    """Where something of a kind stands in a sentence: [start, end)."""
    if kind in _COUNTED:
        return tuple(match.span() for match in _COUNTED[kind].finditer(sentence))
    found = [match.span(1) for match in _QUOTED.finditer(sentence)]
    for start, end in (match.span() for match in _NAME.finditer(sentence)):
        if start == 0:  # its capital may be that of the sentence
            while not stems(sentence[start:end].split(" ", 1)[0]) and " " in sentence[start:end]:
                start = sentence.index(" ", start) + 1
        if stems(sentence[start:end]) and sentence[start].isupper():
            found.append((start, end))
    if kind == "place":
        found += [match.span() for match in _PLACE.finditer(sentence)]
    return tuple(found)


@lru_cache(maxsize=32_768)
def candidates(question: str, article: Article) -> tuple[Candidate, ...]:
    """The candidates in an article, as far as it alone tells; nothing that the question names is one."""
    inquiry, asked = inquire(question), key(question)
    title = stems(article.title)
    base = WEIGHTS["asked"] * holds(asked, plain(article.title))
    found = []
    for sentence in sentences(article.text):
        here = base + WEIGHTS["sentence"] * share(inquiry, stems(sentence) | title)
        for start, end in spans(sentence, inquiry.kind):
            text = sentence[start:end]
            if key(text) and not holds(asked, text):
                before, after = sentence[max(0, start - _NEAR) : start], sentence[end : end + _NEAR]
                near = WEIGHTS["near"] * share(inquiry, stems(before) | stems(after))
                score = here + near + _form(text, inquiry.kind, inquiry.noun, before)
                found.append(Candidate(text, key(text), score))
    return tuple(found)


def _form(text: str, kind: str, noun: str, before: str) -> float:
    """What the form of a candidate says: does it look like what is asked for?"""
    parts = text.split()
    digits = any(character.isdigit() for character in text)
    one_word = len(parts) == 1
    person = not digits and 2 <= len(parts) <= 3 and all(part[0].isupper() for part in parts)
    signs = {
        "kind_named": noun in stems(text),
        "place": kind == "place" and bool(_AT.search(before)),
        "person": kind == "person" and person,
        "adjective": kind == "adjective" and one_word and bool(_ADJECTIVE.search(text)),
        "one_word": one_word,
        "digits": digits and kind not in _COUNTED,
    }
    return sum(WEIGHTS[sign] for sign, holds_here in signs.items() if holds_here)


def best(question: str, articles: tuple[Article, ...]) -> str:
    """The best candidate in some articles; empty if there is none."""
    linked = named_by(question, articles)
    own = {key(plain(article.title)): article for article in articles}
    top, answer = float("-inf"), ""
    for article in articles:
        by_link = WEIGHTS["linked"] * _linked(question, article, linked)
        for candidate in candidates(question, article):
            score = candidate.score + by_link
            if candidate.key in own:
                score += _description(question, own[candidate.key])
            if score > top:
                top, answer = score, candidate.text
    return answer


def _linked(question: str, article: Article, linked: str) -> bool:
    """Whether an article that the question names leads to this one, which the question does not name."""
    title = plain(article.title)
    return not holds(key(question), title) and holds(linked, title)


@lru_cache(maxsize=32_768)
def _description(question: str, article: Article) -> float:
    """What the candidate's own article says for it."""
    inquiry = inquire(question)
    told = sentences(article.text)
    described = share(inquiry, stems(article.text) - stems(article.title))
    kind = bool(told) and inquiry.noun in stems(told[0])
    return WEIGHTS["described"] * described + WEIGHTS["kind_described"] * kind
