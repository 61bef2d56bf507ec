"""How text becomes terms: one analyser for passages and queries, so that both sides always agree.

Words are runs of letters and digits, folded to ASCII where a letter has a plain form (é, ł, ﬁ), in lower case
and reduced to their stem (Snowball English). Queries also lose their function words, among them the wh-words
of questions: every passage has some, so they decide little and cost most of the time.
"""

from __future__ import annotations

import unicodedata

from tantivy import Filter, TextAnalyzer, TextAnalyzerBuilder, Tokenizer

from mempo_env.types import Passage

VERSION = 1
"""Raised with every change of this file that changes a term: indexes of another version are refused."""

MAX_CHARACTERS = 10_000
"""Characters of a query that count."""

MAX_TERMS = 128
"""Distinct terms of a query that count, the first ones."""

_LONGEST_WORD = 100  # bytes; a longer run of letters is no word

_FUNCTION_WORDS = """
a about after all also although am among an and any are as at be because been before being between both but by
can could did do does doing during each either for from had has have having he her here hers him his how i if
in into is it its itself me my no nor not of on once only or other our out over own s same she should so some
such t than that the their them then there these they this those through to too under until up upon was we
were what when where which while who whom whose why will with would you your
"""

STOP_WORDS = _FUNCTION_WORDS.split()
"""Function words, left out of queries (`s` and `t` are what is left of "'s" and "n't")."""


def _analyzer(*between: Filter) -> TextAnalyzer:
    filters = (
        Filter.remove_long(_LONGEST_WORD),
        Filter.ascii_fold(),
        Filter.lowercase(),
        *between,
        Filter.stemmer("english"),
    )
    builder = TextAnalyzerBuilder(Tokenizer.simple())
    for each in filters:
        builder = builder.filter(each)
    return builder.build()


ANALYZER = _analyzer()
"""The analyser of passages, as tantivy runs it while it indexes."""

_QUERY_ANALYZER = _analyzer(Filter.custom_stopword(STOP_WORDS))


def clean(text: str) -> str:
    """Text with letters composed (NFC) and lone surrogates, which no file can hold, replaced."""
    if text.isascii():
        return text
    return unicodedata.normalize("NFC", text.encode("utf-8", "replace").decode())


def body(passage: Passage) -> str:
    """What is indexed of a passage: its title, twice as it names what the text may call it, and its text."""
    return clean(f"{passage.title} {passage.title} {passage.text}")


def terms(text: str) -> list[str]:
    """The terms of a passage's body, in order and with repetitions."""
    return ANALYZER.analyze(clean(text))


def query_terms(query: str) -> dict[str, int]:
    """The terms of a query and how often each stands in it, in the order in which they come.

    Function words count only where there is nothing else ("The Who"). Any text is welcome; what goes beyond
    `MAX_CHARACTERS` or `MAX_TERMS` is left out.
    """
    text = clean(query[:MAX_CHARACTERS])
    counts: dict[str, int] = {}
    for term in _QUERY_ANALYZER.analyze(text) or ANALYZER.analyze(text):
        if term in counts:
            counts[term] += 1
        elif len(counts) < MAX_TERMS:
            counts[term] = 1
    return counts
