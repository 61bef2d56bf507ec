"""The facts of a toy world as integers: who is related to what, in which article, asked by which question."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from mempo_env.arguments import at_least_one
from mempo_env.errors import ConfigError

Ints: TypeAlias = NDArray[np.int64]

VALUES = ("harvest", "height", "census", "toll", "tonnage", "garrison")
"""Relations whose object is a number; their ids are 0 to 5."""

LINKS = ("capital", "rival", "patron", "heir")
"""Relations whose object is a name, which has an article; their ids follow."""

_RELATIONS = len(VALUES) + len(LINKS)
MOST_FACTS = 2 * (_RELATIONS - 1) + 1
"""Of an article: half of those that distract name its subject, with a relation of their own."""

_NUMBERS = range(10_000, 100_000)


class ToySpec(Struct, frozen=True):
    """What a toy world is made from; equal specs make equal worlds.

    Attributes:
        questions: Questions in all splits together, at least 10; 60 % train, 20 % dev, 20 % test.
        facts: Facts in an article, 1 to 19: one that a question needs, the others distract.
        hops: Facts that a question must combine.
        seed: Of all that is drawn, 0 or more.

    Raises:
        ConfigError: if a figure cannot be.
    """

    questions: int = 1000
    facts: int = 5
    hops: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be made."""
        for name in ("questions", "facts", "hops"):
            at_least_one(name, getattr(self, name))
        if isinstance(self.seed, bool) or not isinstance(self.seed, (int, np.integer)) or self.seed < 0:
            raise ConfigError(f"seed of a world: wanted a whole number of at least 0, got {self.seed!r}")
        if self.questions < 10:
            raise ConfigError(
                f"questions: wanted at least 10, so that every split has 2, got {self.questions}"
            )
        if self.facts > MOST_FACTS:
            raise ConfigError(
                f"facts: wanted at most {MOST_FACTS} in an article, for half of them name its "
                f"subject with a relation of their own, got {self.facts}"
            )
        if self.questions * self.hops * self.facts > len(_NUMBERS):
            raise ConfigError(
                f"wanted questions x hops x facts of at most {len(_NUMBERS):,}, for every number in a world "
                f"is its own, got {self.questions} x {self.hops} x {self.facts}"
            )


class Facts(Struct, frozen=True, kw_only=True, eq=False):
    """M facts in A articles of F facts, asked about by Q questions of h hops.

    Words have one id space of W: names first, then numbers, so an object that is a name has the id that the
    subject of its facts has, and `id < names` tells a name. An index of -1 means "none" and reads as -1: the
    arrays over facts end in a row of -1, beyond their M facts.

    Attributes:
        spec: What they were made from.
        names: How many ids are names.
        subject_M: Word id of each fact's subject; of length M + 1.
        relation_M: Relation id, `VALUES` first, then `LINKS`; of length M + 1.
        object_M: Word id of the object; of length M + 1.
        number_W: The number that a word id stands for, 0 for names.
        article_AF: The facts of each article, in the order of its sentences.
        article_of_W: The article whose title a word is, -1 if there is none.
        question_of_A: The question that an article was made for.
        subject_Q: Word id of the name in each question.
        relations_Qh: Relations in the order in which they are followed from it.
        gold_Qh: The facts that answer it, in that order.
        answer_Q: Word id of the answer: the object of the last of them.
        split_Q: 0 train, 1 dev, 2 test.
    """

    spec: ToySpec
    names: int
    subject_M: Ints
    relation_M: Ints
    object_M: Ints
    number_W: Ints
    article_AF: Ints
    article_of_W: Ints
    question_of_A: Ints
    subject_Q: Ints
    relations_Qh: Ints
    gold_Qh: Ints
    answer_Q: Ints
    split_Q: Ints

    @property
    def n_facts(self) -> int:
        """M."""
        return len(self.subject_M) - 1


def make_facts(spec: ToySpec) -> Facts:
    """Draw a world.

    Every question has h entities of its own, each with an article of its own: one gold fact (the link to the
    next entity, or in the last article the number asked for) and distractors, half of them (rounded up) on
    the same subject with other relations, half with the gold fact's relation on a name without an article.
    The objects of distracting links are entities of the same split. Facts stand in random order.
    """
    rng = np.random.default_rng(spec.seed)
    n_questions, hops, n_facts = spec.questions, spec.hops, spec.facts
    n_articles, same, other = n_questions * hops, n_facts // 2, (n_facts - 1) // 2
    articles_A1 = np.arange(n_articles)[:, None]
    relations_Qh = len(VALUES) + rng.integers(0, len(LINKS), (n_questions, hops))
    relations_Qh[:, -1] = rng.integers(0, len(VALUES), n_questions)
    gold_A1 = relations_Qh.reshape(-1, 1)
    steps = 1 + _orders(rng, (n_articles, _RELATIONS - 1))[:, :same]
    relation_AF = np.hstack([gold_A1, (gold_A1 + steps) % _RELATIONS, np.repeat(gold_A1, other, axis=1)])
    others = n_articles + np.arange(n_articles * other).reshape(n_articles, other)
    subject_AF = np.hstack([np.repeat(articles_A1, 1 + same, axis=1), others])
    names = n_articles * (1 + other)

    bounds = np.array([0, n_questions * 6 // 10, n_questions * 8 // 10, n_questions])
    split_Q = np.searchsorted(bounds, np.arange(n_questions), side="right") - 1
    start_A1, stop_A1 = (bounds[split_Q + end].repeat(hops)[:, None] * hops for end in (0, 1))
    turns = 1 + rng.integers(0, stop_A1 - start_A1 - 1, relation_AF.shape)
    object_AF = start_A1 + (articles_A1 - start_A1 + turns) % (stop_A1 - start_A1)
    object_AF[:, 0] = articles_A1[:, 0] + 1
    value_AF = relation_AF < len(VALUES)
    n_values = int(value_AF.sum())
    object_AF[value_AF] = names + np.arange(n_values)
    numbers = rng.choice(len(_NUMBERS), n_values, replace=False) + _NUMBERS.start

    order_AF = _orders(rng, relation_AF.shape)
    subject_M, relation_M, object_M = (
        np.append(np.take_along_axis(x, order_AF, axis=1).ravel(), -1)
        for x in (subject_AF, relation_AF, object_AF)
    )
    article_AF = np.arange(n_articles * n_facts).reshape(n_articles, n_facts)
    gold_Qh = article_AF[order_AF == 0].reshape(n_questions, hops)
    return Facts(
        spec=spec,
        names=names,
        subject_M=subject_M,
        relation_M=relation_M,
        object_M=object_M,
        number_W=np.concatenate([np.zeros(names, np.int64), numbers]),
        article_AF=article_AF,
        article_of_W=np.where(np.arange(names + n_values) < n_articles, np.arange(names + n_values), -1),
        question_of_A=np.repeat(np.arange(n_questions), hops),
        subject_Q=np.arange(n_questions) * hops,
        relations_Qh=relations_Qh,
        gold_Qh=gold_Qh,
        answer_Q=object_M[gold_Qh[:, -1]],
        split_Q=split_Q,
    )


def _orders(rng: np.random.Generator, shape: tuple[int, ...]) -> Ints:
    """A random order of the columns for each row."""
    return np.argsort(rng.random(shape), axis=1)
