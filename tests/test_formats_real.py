"""Real files of every format, their contents counted another way; skipped where they are not at hand."""

from __future__ import annotations

import html
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from format_rows import passages, run
from mempo_env.questions.formats import prepare
from mempo_env.questions.set import QuestionSet
from mempo_env.types import Question

SHARED = Path(__file__).resolve().parents[1].parent / "shared" / "data"


def real(name: str) -> Path:
    path = SHARED / name
    if not path.is_file():
        pytest.skip(f"{path}: the sample is not at hand")
    return path


def raw(path: Path) -> list[Any]:
    """The rows of a sample, read with the standard library (parquet: pandas' own way, over pyarrow)."""
    if path.suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow.parquet", reason="needs mempo[data]")
        table = pyarrow.read_table(path)
        return [
            dict(zip(table.column_names, row, strict=True))
            for row in zip(*(c.to_pylist() for c in table.columns), strict=True)
        ]
    text = path.read_text(encoding="utf-8")
    return (
        list(json.loads(text)) if text.startswith("[") else [json.loads(line) for line in text.splitlines()]
    )


def check_evidence(questions: Iterable[Question], folder: Path) -> int:
    """Every sentence of the evidence stands in its passage; returns how many there are."""
    by_id = {passage.id: passage for passage in passages(folder)}
    count = 0
    for question in questions:
        for evidence in question.evidence:
            assert by_id[evidence.passage_id].title == evidence.title
            assert all(sentence in by_id[evidence.passage_id].text for sentence in evidence.sentences)
            count += len(evidence.sentences)
    return count


def hotpot_pairs(row: Any) -> tuple[list[tuple[str, list[str]]], list[tuple[str, int]]]:
    context, facts = row.get("context") or [], row["supporting_facts"]
    if isinstance(context, dict):
        context = list(zip(context["title"], context["sentences"], strict=True))
    if isinstance(facts, dict):
        facts = list(zip(facts["title"], facts["sent_id"], strict=True))
    return [(title, sentences) for title, sentences in context], [(title, number) for title, number in facts]


@pytest.mark.parametrize(
    ("kind", "names", "joint"),
    [
        ("hotpotqa", ["hotpotqa/distractor_400.jsonl"], ""),
        ("hotpotqa", ["formats/hotpot_hard100_hfdict_format.json"], ""),
        ("2wiki", ["2wiki/dev_100.jsonl"], " "),
        ("2wiki", ["2wiki/dev_100.jsonl", "2wiki/train_250.jsonl"], " "),
    ],
)
def test_real_hotpotqa_and_2wiki(tmp_path: Path, kind: str, names: list[str], joint: str) -> None:
    files = [real(name) for name in names]
    rows = [row for file in files for row in raw(file)]
    summary, questions = run(tmp_path, kind, *files)
    contexts, told, lost = set(), 0, 0
    for row in rows:
        pairs, facts = hotpot_pairs(row)
        contexts |= {(html.unescape(title), joint.join(sentences).strip()) for title, sentences in pairs}
        here = {
            (title, number) for title, sentences in pairs for number, s in enumerate(sentences) if s.strip()
        }
        told += len(set(facts) & here)
        lost += len([fact for fact in facts if pairs and fact not in here])
    assert {(each.title, each.text) for each in passages(tmp_path / "out")} == contexts
    assert [each.id for each in questions] == [row.get("_id") or row["id"] for row in rows]
    assert [each.answers for each in questions] == [(row["answer"].strip(),) for row in rows]
    assert check_evidence(questions, tmp_path / "out") == told
    assert summary.lost_facts == lost
    assert summary.without_evidence == len([row for row in rows if not row.get("context")])
    assert not any("&amp;" in each.title for each in passages(tmp_path / "out"))


def test_real_hotpotqa_with_distractors_of_2wiki(tmp_path: Path) -> None:
    files, extra = real("hotpotqa/distractor_400.jsonl"), real("2wiki/corpus_6119.jsonl")
    summary, _ = run(tmp_path, "hotpotqa", files, corpus=[extra])
    own = {(html.unescape(t), "".join(s).strip()) for row in raw(files) for t, s in row["context"]}
    added = {(html.unescape(row["title"]).strip(), row["text"].strip()) for row in raw(extra)}
    assert summary.manifest.passages == len(own | added)
    assert summary.manifest.splits.keys() == {"train", "dev", "test"}
    assert sum(summary.manifest.splits.values()) == 400


def test_real_musique(tmp_path: Path) -> None:
    path = real("musique/dev_100.jsonl")
    summary, questions = run(tmp_path, "musique", path)
    rows = raw(path)
    assert summary.manifest.splits == {"dev": len(rows)}
    assert summary.manifest.passages == len(
        {
            (html.unescape(p["title"]).strip(), p["paragraph_text"].strip())
            for row in rows
            for p in row["paragraphs"]
        }
    )
    for row, question in zip(rows, questions, strict=True):
        assert question.hops == sum(p["is_supporting"] for p in row["paragraphs"]) == int(row["id"][0])
        assert set(question.answers) == {row["answer"], *row["answer_aliases"]}
    check_evidence(questions, tmp_path / "out")


def test_real_adversarial_hotpotqa(tmp_path: Path) -> None:
    path = real("formats/hotpot_adv_sim_dev.json")
    summary, questions = run(tmp_path, "hotpotqa-adv", path)
    rows = raw(path)
    assert summary.manifest.splits == {"dev": len(rows)}
    assert summary.lost_facts == 0
    assert check_evidence(questions, tmp_path / "out") == sum(len(row["rationale"]) for row in rows)
    assert all(each.title != "added" for question in questions for each in question.evidence)
    assert sum(each.title == "added" for each in passages(tmp_path / "out")) == len(
        {p["context"].strip() for row in rows for p in row["paragraphs"] if p["title"] == "added"}
    )


def test_real_searchr1_is_the_same_in_both_files(tmp_path: Path) -> None:
    files = [real("formats/searchr1_format_mixed.jsonl"), real("formats/searchr1_format_mixed.parquet")]
    for number, file in enumerate(files):
        prepare("searchr1", [file], tmp_path / str(number))
    one, two = (QuestionSet.load(tmp_path / str(number)) for number in range(2))
    assert one == two
    rows = raw(files[0])
    assert [(each.id, each.text, each.answers) for each in one] == [
        (row["id"], row["question"].strip(), tuple(dict.fromkeys(a.strip() for a in row["golden_answers"])))
        for row in rows
    ]
    assert Counter(each.source for each in one) == Counter(row["data_source"] for row in rows)
    assert {each.split for each in one} == {"dev"}


def test_real_mem1(tmp_path: Path) -> None:
    path = real("formats/mem1_format_multi3_80.jsonl")
    _, questions = run(tmp_path, "mem1", path)
    rows = raw(path)
    assert [each.id for each in questions] == [id for row in rows for id in row["extra_info"]["ids"]]
    joined = ["; ".join(each.text for each in questions[start : start + 3]) for start in range(0, 240, 3)]
    assert [" ".join(text.split()) for text in joined] == [
        " ".join(row["prompt"][0]["content"].split()) for row in rows
    ]


def test_real_deepresearcher(tmp_path: Path) -> None:
    path = real("formats/deepresearcher_dev.parquet")
    _, questions = run(tmp_path, "deepresearcher", path)
    rows = raw(path)
    assert [each.id for each in questions] == [row["extra_info"]["index"] for row in rows]
    for row, question in zip(rows, questions, strict=True):
        parts = row["reward_model"]["ground_truth"].split("<|answer_split|>")
        assert set(question.answers) == {part.strip() for part in parts if part.strip()}
    assert max(len(each.answers) for each in questions) > 50


@pytest.mark.parametrize(
    ("kind", "name", "split"),
    [
        ("bamboogle", "formats/bamboogle_60.jsonl", "test"),
        ("flashrag", "formats/flashrag_nq_test.jsonl", "test"),
    ],
)
def test_real_questions_alone(tmp_path: Path, kind: str, name: str, split: str) -> None:
    summary, questions = run(tmp_path, kind, real(name), corpus=[real("formats/searchr1_corpus.jsonl")])
    rows = raw(real(name))
    assert [(each.id, each.text) for each in questions] == [
        (row["id"], row["question"].strip()) for row in rows
    ]
    assert [each.answers for each in questions] == [tuple(row["golden_answers"]) for row in rows]
    assert summary.manifest.splits == {split: len(rows)}
    corpus = raw(real("formats/searchr1_corpus.jsonl"))
    assert [f'"{each.title}"\n{each.text}' for each in passages(tmp_path / "out")] == [
        row["contents"] for row in corpus
    ]
