"""Readers of rows with paragraphs: HotpotQA, 2WikiMultihopQA, MuSiQue."""

from __future__ import annotations

import html
from collections.abc import Iterator

from msgspec import Struct, field

from mempo_env.questions.formats.common import Item, Source, answers_of, fields
from mempo_env.questions.formats.corpora import passage
from mempo_env.questions.formats.rows import Row
from mempo_env.types import Evidence, Passage, Question


class _Facts(Struct):
    """Hugging Face's layout of supporting facts."""

    title: list[str]
    sent_id: list[int]


class _Contexts(Struct):
    """Hugging Face's layout of paragraphs."""

    title: list[str]
    sentences: list[list[str]]


class _Hotpot(Struct):
    question: str
    answer: str
    id: str = ""
    official_id: str = field(name="_id", default="")
    type: str | None = None
    level: str | None = None
    supporting_facts: list[tuple[str, int]] | _Facts | None = None
    context: list[tuple[str, list[str]]] | _Contexts | None = None


def _hotpot(row: Row, source: Source, joint: str) -> Iterator[Item]:
    """HotpotQA's layout; `joint` stands between the sentences of a paragraph."""
    given = fields(row, _Hotpot, source)
    id = given.official_id or given.id or f"{source.path.stem}-{source.number}"
    facts, context = given.supporting_facts or [], given.context or []
    if isinstance(facts, _Facts):
        facts = [*zip(facts.title, facts.sent_id, strict=False)]
    if isinstance(context, _Contexts):
        context = [*zip(context.title, context.sentences, strict=False)]
    paragraphs = [(html.unescape(title).strip(), sentences) for title, sentences in context]
    shown = [(passage(title, joint.join(sentences)), sentences) for title, sentences in paragraphs]
    shown = [(found, sentences) for found, sentences in shown if found.text]
    evidence, lost = _evidence(shown, [(html.unescape(title).strip(), number) for title, number in facts])
    yield Item(
        question=Question(
            id=id,
            text=given.question.strip(),
            answers=answers_of(given.answer),
            split=source.split_of(id),
            kind=given.type or "",
            level=given.level or "",
            hops=len(evidence),
            evidence=evidence,
            source=source.name,
        ),
        passages=tuple(found for found, _ in shown),
        lost=lost if shown else 0,
    )


def _evidence(
    shown: list[tuple[Passage, list[str]]], facts: list[tuple[str, int]]
) -> tuple[tuple[Evidence, ...], int]:
    """Gold passages with their gold sentences, in the order of the facts, and how many facts are lost."""
    found: dict[str, tuple[str, list[str]]] = {}
    lost = 0
    for title, number in facts:
        titled = [(held, sentences) for held, sentences in shown if held.title == title]
        whole = [pair for pair in titled if 0 <= number < len(pair[1]) and pair[1][number].strip()]
        lost += not whole
        for held, sentences in (whole or titled)[:1]:
            told = found.setdefault(held.id, (title, []))[1]
            if whole and sentences[number].strip() not in told:
                told.append(sentences[number].strip())
    return tuple(Evidence(id, title, tuple(told)) for id, (title, told) in found.items()), lost


def hotpotqa(row: Row, source: Source) -> Iterator[Item]:
    """HotpotQA, official or Hugging Face's layout; its sentences start with a space."""
    return _hotpot(row, source, "")


def wiki2(row: Row, source: Source) -> Iterator[Item]:
    """2WikiMultihopQA: HotpotQA's layout, but its sentences have no space between them."""
    return _hotpot(row, source, " ")


class _Paragraph(Struct):
    title: str
    paragraph_text: str
    is_supporting: bool = False


class _Musique(Struct):
    id: str
    question: str
    answer: str
    paragraphs: list[_Paragraph] = []
    answer_aliases: list[str] = []
    answerable: bool = True


def musique(row: Row, source: Source) -> Iterator[Item]:
    """MuSiQue: whole paragraphs as evidence; a row that says that it can't be answered is left out."""
    given = fields(row, _Musique, source)
    if not given.answerable:
        return
    pairs = [(passage(each.title, each.paragraph_text), each.is_supporting) for each in given.paragraphs]
    gold = [Evidence(found.id, found.title) for found, supporting in pairs if supporting and found.text]
    yield Item(
        question=Question(
            id=given.id,
            text=given.question.strip(),
            answers=answers_of([given.answer, *given.answer_aliases]),
            split=source.split_of(given.id),
            kind=given.id.partition("__")[0],
            hops=len(gold),
            evidence=tuple(dict.fromkeys(gold)),
            source=source.name,
        ),
        passages=tuple(found for found, _ in pairs if found.text),
    )


class _AdvParagraph(Struct):
    title: str
    context: str
    is_supp: bool = False


class _Sentence(Struct):
    title: str
    sentence: str


class _Adversarial(Struct):
    qas_id: str
    question: str
    answer: str
    paragraphs: list[_AdvParagraph] = []
    rationale: list[_Sentence] = []


def hotpotqa_adv(row: Row, source: Source) -> Iterator[Item]:
    """Adversarial HotpotQA: paragraphs titled "added" tell false facts, and are passages like the others."""
    given = fields(row, _Adversarial, source)
    pairs = [(passage(each.title, each.context), each.is_supp) for each in given.paragraphs]
    pairs = [(found, gold) for found, gold in pairs if found.text]
    said = [(html.unescape(each.title).strip(), each.sentence.strip()) for each in given.rationale]
    told = {
        found: tuple(sentence for title, sentence in said if title == found.title and sentence in found.text)
        for found, gold in pairs
        if gold
    }
    yield Item(
        question=Question(
            id=given.qas_id,
            text=given.question.strip(),
            answers=answers_of(given.answer),
            split=source.split_of(given.qas_id),
            kind="adversarial",
            hops=len(told),
            evidence=tuple(Evidence(found.id, found.title, sentences) for found, sentences in told.items()),
            source=source.name,
        ),
        passages=tuple(found for found, _ in pairs),
        lost=len(said) - sum(map(len, told.values())),
    )
