"""Readers of questions without paragraphs: FlashRAG, Bamboogle, Search-R1, MEM1, DeepResearcher, our own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from msgspec import Struct, field

from mempo_env.errors import ConfigError, DataError, lookup
from mempo_env.questions.formats.common import Item, Source, answers_of, fields
from mempo_env.questions.formats.rows import Row
from mempo_env.types import Evidence, Question

ANSWER_SPLIT = "<|answer_split|>"
"""Stands between the aliases of DeepResearcher's answers."""


class _Plain(Struct):
    id: str | int = ""
    question: str = ""
    text: str = ""
    answers: list[str] | str = ""
    answer: list[str] | str = ""
    golden_answers: list[str] | str = ""
    split: str | None = None
    kind: str = ""
    level: str = ""
    hops: int = 0
    evidence: tuple[Evidence, ...] = ()
    source: str = ""


def plain(row: Row, source: Source) -> Iterator[Item]:
    """FlashRAG and Bamboogle: a question, and its answers under one of their names."""
    given = fields({key.lower(): value for key, value in row.items()}, _Plain, source)
    id = str(given.id) or f"{source.path.stem}-{source.number}"
    yield Item(
        question=Question(
            id=id,
            text=(given.question or given.text).strip(),
            answers=answers_of(given.answers or given.golden_answers or given.answer),
            split=source.split_of(id, given.split),
            kind=given.kind,
            level=given.level,
            hops=given.hops or len(given.evidence),
            evidence=given.evidence,
            source=given.source or source.name,
        )
    )


def own(row: Row, source: Source) -> Iterator[Item]:
    """Lines of one's own: an unknown field is an error, so that a misspelt one is not lost silently."""
    known = dict.fromkeys(_Plain.__struct_fields__)
    for name in row:
        try:
            lookup(known, name.lower(), "field")
        except ConfigError as error:
            raise DataError(
                f"{source.place}: {error}; or name the format of the file instead of jsonl"
            ) from None
    yield from plain(row, source)


class _Message(Struct):
    content: str


class _Target(Struct):
    target: Any


class _Reward(Struct):
    ground_truth: _Target | str | list[str]


class _Extra(Struct):
    split: str | None = None
    index: str | int = ""
    ids: list[str] = []


class _Verl(Struct):
    """The rows that trainers built on verl read: Search-R1, MEM1, DeepResearcher."""

    data_source: str = ""
    prompt: list[_Message] = []
    reward_model: _Reward | None = None
    extra_info: _Extra = field(default_factory=_Extra)
    id: str = ""
    question: str = ""
    golden_answers: list[str] | str = ""


def _target(given: _Verl, source: Source) -> Any:
    if given.reward_model is None:
        raise DataError(f"{source.place}: wanted answers in reward_model.ground_truth, found no reward_model")
    truth = given.reward_model.ground_truth
    return truth.target if isinstance(truth, _Target) else truth


def _strings(answers: Any, source: Source) -> str | list[str]:
    if isinstance(answers, str) or (isinstance(answers, list) and all(isinstance(a, str) for a in answers)):
        return answers
    raise DataError(f"{source.place}: wanted a list of strings as answers, got {answers!r}")


def _text(given: _Verl, source: Source) -> str:
    """The question: on its own, or the last message of the prompt."""
    if not given.question and not given.prompt:
        raise DataError(f"{source.place}: wanted a question or a prompt, found neither")
    return (given.question or given.prompt[-1].content).strip()


def searchr1(row: Row, source: Source) -> Iterator[Item]:
    """Search-R1; an id that does not name its data set gets its name, as `train_0` is in each of them."""
    given = fields(row, _Verl, source)
    answers = _strings(given.golden_answers or _target(given, source), source)
    name = given.data_source or source.name
    id = given.id or f"{given.extra_info.split or source.path.stem}_{given.extra_info.index or source.number}"
    id = id if id.startswith(f"{name}_") else f"{name}_{id}"
    split = source.split_of(id, given.extra_info.split)
    text = _text(given, source)
    yield Item(question=Question(id=id, text=text, answers=answers_of(answers), split=split, source=name))


def deepresearcher(row: Row, source: Source) -> Iterator[Item]:
    """DeepResearcher: aliases joined with `<|answer_split|>`."""
    given = fields(row, _Verl, source)
    answers = _target(given, source)
    if not isinstance(answers, str):
        raise DataError(f"{source.place}: wanted answers joined with {ANSWER_SPLIT}, got {answers!r}")
    index = given.extra_info.index or source.number
    id = index if isinstance(index, str) else f"{given.data_source}_{source.path.stem}_{index}"
    yield Item(
        question=Question(
            id=id,
            text=_text(given, source),
            answers=answers_of(answers.split(ANSWER_SPLIT)),
            split=source.split_of(id, given.extra_info.split),
            source=given.data_source or source.name,
        )
    )


def mem1(row: Row, source: Source) -> Iterator[Item]:
    """MEM1: N questions joined with "; " in one row; they stay next to each other."""
    given = fields(row, _Verl, source)
    targets = _target(given, source)
    if not isinstance(targets, list) or not targets:
        raise DataError(f"{source.place}: wanted a list of answers for each question, got {targets!r}")
    texts = split_questions(_text(given, source), len(targets), source.place)
    ids = given.extra_info.ids or [
        f"{source.path.stem}-{source.number}-{i}" for i in range(1, len(texts) + 1)
    ]
    if len(ids) != len(texts):
        raise DataError(f"{source.place}: wanted {len(texts)} ids, one a question, got {len(ids)}")
    for id, text, answers in zip(ids, texts, targets, strict=True):
        if not isinstance(answers, str | list) or not all(isinstance(answer, str) for answer in answers):
            raise DataError(
                f"{source.place}, id {id!r}: wanted a list of strings as answers, got {answers!r}"
            )
        split = source.split_of(id, given.extra_info.split)
        name = given.data_source or source.name
        yield Item(question=Question(id=id, text=text, answers=answers_of(answers), split=split, source=name))


def split_questions(joined: str, count: int, place: str) -> list[str]:
    """The questions that were joined with "; ".

    If a question has a "; " within, only those behind a question mark can stand between two questions.

    Raises:
        DataError: if neither gives as many questions as there are answers.
    """
    if count == 1 and joined.strip():
        return [joined.strip()]
    for pattern in (r"; ", r"(?<=\?) *; "):
        parts = [part.strip() for part in re.split(pattern, joined)]
        if len(parts) == count and all(parts):
            return parts
    raise DataError(
        f"{place}: wanted {count} questions joined with '; ', one for each list of answers, got {joined!r}"
    )
