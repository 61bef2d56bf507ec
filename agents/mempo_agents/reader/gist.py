"""What of the passages matters to a question: the few sentences that the reader judges by, and keeps."""

from __future__ import annotations

from functools import lru_cache

from mempo_agents.reader.inquiry import Inquiry, inquire
from mempo_agents.reader.library import Library
from mempo_agents.reader.text import holds, key, plain, sentences, stems
from mempo_agents.view import Article

ARTICLES = 4
"""Articles kept at most."""
SENTENCES = 2
"""Sentences kept of an article besides its first one, which says what it is about."""

_NAMED = 0.4  # what it counts that the question, or an article that it names, names the article


def share(inquiry: Inquiry, found: frozenset[str]) -> float:
    """The share of the question's words, by their weight, among those found; in [0, 1]."""
    total = sum(inquiry.words.values())
    return sum(weight for word, weight in inquiry.words.items() if word in found) / total if total else 0.0


@lru_cache(maxsize=65_536)
def excerpt(question: str, article: Article) -> Article:
    """The first sentence and those that have most of the question's words; of an excerpt, the same."""
    inquiry, told, title = inquire(question), sentences(article.text), stems(article.title)
    ranked = sorted(range(len(told)), key=lambda i: -share(inquiry, stems(told[i]) | title))
    kept = sorted({*ranked[:SENTENCES], *range(min(1, len(told)))})
    return Article(article.title, " ".join(told[i] for i in kept))


def named_by(question: str, articles: tuple[Article, ...]) -> str:
    """The texts, as one key, of the articles whose title the question names."""
    asked = key(question)
    return " ".join(key(article.text) for article in articles if holds(asked, plain(article.title)))


def gist(question: str, library: Library) -> tuple[Article, ...]:
    """Excerpts of the articles that have most to do with the question, best first."""
    excerpts = tuple(dict.fromkeys(excerpt(question, article) for article in library.articles))
    asked, linked = key(question), named_by(question, excerpts)

    def worth(article: Article) -> float:
        title = plain(article.title)
        named = holds(asked, title) + holds(linked, title)
        return share(inquire(question), stems(article.text) | stems(article.title)) + _NAMED * named

    return tuple(sorted(excerpts, key=worth, reverse=True)[:ARTICLES])
