"""The same facts in words: sentences, articles, questions, and a retriever that knows titles."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np

from mempo_env.arrays.facts import LINKS, VALUES, Facts, Ints, ToySpec, make_facts
from mempo_env.files import digest
from mempo_env.questions.set import SPLITS, QuestionSet
from mempo_env.questions.world.names import stem
from mempo_env.retrieval.corpus import Corpus
from mempo_env.types import Evidence, Hit, Passage, Question, passage_id

FACT_WORDS = 4
"""White-space separated words of every sentence: a memory of c facts has 4 c of them."""


class TitleRetriever:
    """Finds the article whose title a query is, white space around it apart; one hit, or none.

    Args:
        corpus: Passages whose titles are unique.
    """

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus
        self._rows = {passage.title: row for row, passage in enumerate(corpus)}

    @property
    def fingerprint(self) -> str:
        """Of the corpus, for nothing else decides."""
        return digest("titles", self.corpus.fingerprint)

    def search(self, queries: Sequence[str], k: int) -> list[tuple[Hit, ...]]:
        """The article of each query."""
        return [self._find(query.strip())[:k] for query in queries]

    def _find(self, title: str) -> tuple[Hit, ...]:
        row = self._rows.get(title)
        if row is None:
            return ()
        passage = self.corpus[row]
        return (Hit(passage.id, passage.title, passage.text, row, 1.0),)

    def __copy__(self) -> TitleRetriever:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> TitleRetriever:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return TitleRetriever, (self.corpus,)


class World(Facts, frozen=True, kw_only=True, eq=False):
    """Facts with their texts; equal specs share one world, which copies to itself.

    Attributes:
        words: The text of each word id.
        sentences: The text of each fact.
        questions: The questions, in order of their rows in the arrays.
        corpus: The articles, in order of theirs.
        retriever: Finds them by their titles.
        fact_of: The fact that a sentence states.
        row_of: The row of a question's text.
        word_of: The id of a word.
    """

    words: tuple[str, ...]
    sentences: tuple[str, ...]
    questions: QuestionSet
    corpus: Corpus
    retriever: TitleRetriever
    fact_of: dict[str, int]
    row_of: dict[str, int]
    word_of: dict[str, int]

    def rows(self, split: str) -> Ints:
        """The rows of the questions of a split, in order."""
        self.questions.split(split)  # names those that there are, if there is none of that name
        return np.flatnonzero(self.split_Q == SPLITS.index(split))

    def __copy__(self) -> World:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> World:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return make_world, (self.spec,)


@lru_cache(maxsize=8)
def make_world(spec: ToySpec) -> World:
    """The world of a spec, made once a process."""
    facts = make_facts(spec)
    words = _words(facts)
    relations = (*VALUES, *LINKS)
    sentences = tuple(
        f"{words[subject]}'s {relations[relation]} is {words[object]}."
        for subject, relation, object in zip(
            facts.subject_M[:-1].tolist(),
            facts.relation_M[:-1].tolist(),
            facts.object_M[:-1].tolist(),
            strict=True,
        )
    )
    passages = [
        Passage(passage_id(title, text), title, text)
        for title, text in (
            (words[article], " ".join(sentences[fact] for fact in row))
            for article, row in enumerate(facts.article_AF.tolist())
        )
    ]
    questions, corpus = _questions(facts, words, sentences, passages), Corpus.of(passages)
    return World(
        **msgspec.structs.asdict(facts),
        words=words,
        sentences=sentences,
        questions=questions,
        corpus=corpus,
        retriever=TitleRetriever(corpus),
        fact_of={sentence: fact for fact, sentence in enumerate(sentences)},
        row_of={question.text: row for row, question in enumerate(questions)},
        word_of={word: id for id, word in enumerate(words)},
    )


def _words(facts: Facts) -> tuple[str, ...]:
    names = [stem(facts.spec.seed, number).capitalize() for number in range(facts.names)]
    return (*names, *map(str, facts.number_W[facts.names :].tolist()))


def _questions(
    facts: Facts, words: Sequence[str], sentences: Sequence[str], passages: Sequence[Passage]
) -> QuestionSet:
    """A question a row: "What is the r_h of the ... of the r_1 of S?"."""
    names, spec, rows = (*VALUES, *LINKS), facts.spec, []
    for row, relations in enumerate(facts.relations_Qh.tolist()):
        path = " of the ".join(names[relation] for relation in reversed(relations))
        gold = facts.gold_Qh[row].tolist()
        articles = (passages[fact // spec.facts] for fact in gold)
        rows.append(
            Question(
                id=f"toy-{spec.seed}-{spec.hops}-{row}",
                text=f"What is the {path} of {words[facts.subject_Q[row]]}?",
                answers=(words[facts.answer_Q[row]],),
                split=SPLITS[facts.split_Q[row]],
                kind="toy",
                hops=spec.hops,
                evidence=tuple(
                    Evidence(article.id, article.title, (sentences[fact],))
                    for article, fact in zip(articles, gold, strict=True)
                ),
                source="toy",
            )
        )
    return QuestionSet(rows, name="toy")
