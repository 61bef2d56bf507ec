"""The passages in view, found by the names of what they are about."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from msgspec import Struct

from mempo_agents.reader.text import NAME, key, plain, sentences
from mempo_agents.view import Article

_ALIAS = re.compile(
    rf"(?:also|formerly|better|commonly|sometimes|previously) (?:known|called) as (?:the )?(?P<v>{NAME})"
)


class Mention(Struct, frozen=True):
    """An article about a name; `because` is the sentence that gives it this name, empty if its title does."""

    article: Article
    because: str


class Library:
    """Articles by the names of what they are about: their titles, and other names that they tell."""

    def __init__(self, articles: Iterable[Article]) -> None:
        self.articles = _whole(tuple(dict.fromkeys(articles)))
        self._named: dict[str, list[Mention]] = {}
        for article in self.articles:
            for name, because in _names(article):
                self._named.setdefault(name, []).append(Mention(article, because))

    def about(self, name: str) -> list[Mention]:
        """The articles about a thing, those that have it in the title first."""
        found = self._named.get(key(name), []) or self._named.get(key(plain(name)), [])
        return sorted(found, key=lambda mention: bool(mention.because))


def _whole(articles: tuple[Article, ...]) -> tuple[Article, ...]:
    """The articles without parts of one another: a note of an article says nothing beside it."""
    titled: dict[str, list[Article]] = {}
    for article in articles:
        titled.setdefault(article.title, []).append(article)
    parts = {
        part
        for same in titled.values()
        if len(same) > 1
        for part in same
        for other in same
        if set(sentences(part.text)) < set(sentences(other.text))
    }
    return tuple(article for article in articles if article not in parts)


@lru_cache(maxsize=65_536)
def _names(article: Article) -> tuple[tuple[str, str], ...]:
    """The names of what an article is about, each with the sentence that tells it (empty for the title)."""
    names = {key(article.title): "", key(plain(article.title)): ""}
    for sentence in sentences(article.text)[:2]:
        for match in _ALIAS.finditer(sentence):
            names.setdefault(key(match["v"]), sentence)
    return tuple(names.items())
