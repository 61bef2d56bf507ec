"""Malformed question files and corpora: each complaint names file and line, and nothing is left behind."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from format_rows import HOTPOT, MUSIQUE, lines, run, verl
from mempo_env.errors import ConfigError, DataError, MempoError
from mempo_env.questions.formats import KINDS, prepare
from mempo_env.questions.formats.common import Source
from mempo_env.questions.prepared import open_corpus


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


GOOD = json.dumps(HOTPOT).encode()


@pytest.mark.parametrize(
    ("name", "data", "told"),
    [
        ("a.jsonl", GOOD + b"\n\n" + GOOD[:50], r"a\.jsonl:3: wanted a JSON object: .*truncated"),
        ("a.jsonl", GOOD + b"\n[1]\n", r"a\.jsonl:2: wanted a JSON object"),
        ("a.jsonl", b"", r"a\.jsonl: wanted rows, found an empty file"),
        ("a.jsonl", b" \n\n", r"a\.jsonl: wanted rows, found an empty file"),
        ("a.json", b"[]", r"a\.json: wanted rows, found an empty file"),
        ("a.json", b"[" + GOOD + b", {", r"a\.json: wanted a JSON array: .*truncated"),
        ("a.json", b"[" + GOOD + b", 5]", r"a\.json, row 2: wanted a JSON object"),
        (
            "a.jsonl",
            b"\x89PNG\r\n\x1a\n\x00\xff",
            r"a\.jsonl:1: wanted JSON lines, a JSON array, parquet or csv",
        ),
        ("a.jsonl", b'{"question": "\xff\xfe"}', r"a\.jsonl:1: "),
        ("a.jsonl.gz", GOOD, r"a\.jsonl\.gz: wanted a gzip file"),
        ("a.jsonl.gz", gzip.compress(GOOD)[:-9], r"a\.jsonl\.gz: wanted a gzip file"),
        ("a.parquet", b"PAR1 and nothing else", r"a\.parquet: wanted a parquet file"),
        ("a.csv", b"question,answer\nonly one\n", r"a\.csv:2: wanted 2 columns \(question, answer\), got 1"),
        ("a.csv", b"who?,\xff\xfe\n", r"a\.csv: wanted UTF-8 text"),
        ("a.jsonl", json.dumps({**HOTPOT, "answer": 5}).encode(), r"a\.jsonl:1, id '5a': .*\$\.answer"),
        (
            "a.jsonl",
            json.dumps({**HOTPOT, "answer": " "}).encode(),
            r"a\.jsonl:1: question '5a': .*one answer",
        ),
        ("a.jsonl", json.dumps({**HOTPOT, "question": ""}).encode(), r"a\.jsonl:1: question '5a': .*text"),
        ("a.jsonl", json.dumps({**HOTPOT, "context": [["T"]]}).encode(), r"a\.jsonl:1, id '5a': .*context"),
        (
            "a.jsonl",
            json.dumps({**HOTPOT, "supporting_facts": "T"}).encode(),
            r"a\.jsonl:1, id '5a': .*supporting",
        ),
    ],
)
def test_a_malformed_file_is_named_with_its_line_and_leaves_nothing(
    tmp_path: Path,
    name: str,
    data: bytes,
    told: str,
) -> None:
    path = write(tmp_path / name, data)
    with pytest.raises(DataError, match=told):
        run(tmp_path, "hotpotqa", path)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("kind", "row", "told"),
    [
        ("musique", {**MUSIQUE, "paragraphs": [{"title": "T"}]}, "id '2hop__1_2': .*paragraph_text"),
        ("flashrag", {"id": "a", "question": "q"}, "'a': .*at least one answer"),
        ("flashrag", {"id": "a", "question": "q", "golden_answers": []}, "'a': .*at least one answer"),
        ("flashrag", {"id": "a", "question": "q", "golden_answers": [1]}, r"id 'a': .*\$\.golden_answers"),
        ("jsonl", {"id": "a", "question": "q", "answers": {"x": 1}}, r"id 'a': .*\$\.answers"),
        ("jsonl", {"id": "a", "question": "q", "answers": "x", "split": "trian"}, "did you mean 'train'"),
        ("jsonl", {"id": "a", "answers": "x"}, "'a': .*text of a question"),
        ("searchr1", verl("q", {"target": [5]}), "list of strings as answers, got \\[5\\]"),
        ("searchr1", {"data_source": "nq", "golden_answers": ["x"]}, "wanted a question or a prompt"),
        ("searchr1", {"data_source": "nq", "question": "q"}, "found no reward_model"),
        ("mem1", verl("a?; b?", {"target": [["x"]]}, ids=["1", "2"]), "wanted 1 ids"),
        ("mem1", verl("a? b?", {"target": [["x"], ["y"]]}), "wanted 2 questions"),
        (
            "mem1",
            verl("a?; b?", {"target": [["x"], ["y"]]}, ids=["1"]),
            "wanted 2 ids, one a question, got 1",
        ),
        ("mem1", verl("a?; b?", {"target": [["x"], [7]]}), "list of strings as answers, got \\[7\\]"),
        ("mem1", verl("a?", {"target": []}), "list of answers for each question"),
        ("deepresearcher", verl("q", {"target": ["x"]}), "joined with <.answer_split.>"),
        (
            "hotpotqa-adv",
            {"qas_id": "q", "question": "w", "answer": "x", "paragraphs": 5},
            "id 'q': .*paragraphs",
        ),
    ],
)
def test_a_row_that_breaks_its_format_is_named(tmp_path: Path, kind: str, row: Any, told: str) -> None:
    with pytest.raises((DataError, ConfigError), match=told) as error:
        run(tmp_path, kind, lines(tmp_path / "f.jsonl", row))
    assert "f.jsonl" in str(error.value)
    assert not (tmp_path / "out").exists()


def test_what_is_no_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="wanted a file, got a folder"):
        run(tmp_path, "hotpotqa", tmp_path)
    with pytest.raises(DataError, match=r"none\.jsonl: wanted a file, found none"):
        run(tmp_path, "hotpotqa", tmp_path / "none.jsonl")
    with pytest.raises(ConfigError, match="did you mean 'hotpotqa'"):
        run(tmp_path, "hotpot", tmp_path / "none.jsonl")
    with pytest.raises(ConfigError, match="at least one file"):
        run(tmp_path, "hotpotqa")
    good = lines(tmp_path / "a.jsonl", HOTPOT)
    with pytest.raises(
        DataError, match=r"c\.jsonl:2: wanted a passage: title and text, or contents; got id, body"
    ):
        run(
            tmp_path,
            "hotpotqa",
            good,
            corpus=[lines(tmp_path / "c.jsonl", {"title": "T", "text": "x"}, {"id": 1, "body": "x"})],
        )
    with pytest.raises(DataError, match=r"d\.jsonl:1: wanted a passage: .*\$\.text"):
        run(tmp_path, "hotpotqa", good, corpus=[lines(tmp_path / "d.jsonl", {"title": "T", "text": 5})])
    with pytest.raises(ConfigError, match="unknown split 'eval'"):
        run(tmp_path, "hotpotqa", good, split="eval")
    assert not (tmp_path / "out").exists()


NAMES = """
_id id qas_id question text answer answers golden_answers answer_aliases answerable supporting_facts context
paragraphs rationale title sentence sentences sent_id paragraph_text is_supporting is_supp type level split
data_source prompt content reward_model ground_truth target extra_info index ids evidence hops
"""
KEYS = st.sampled_from(NAMES.split())
STRINGS = st.sampled_from(["", " ", "a", "b; c?", "train", "é\x00"])
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-1, 3)
    | st.sampled_from(["", " ", "a", "b; c?", "train", "é\x00"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=12,
)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150, deadline=None)
@given(changes=st.dictionaries(KEYS, JSON, max_size=4), whole=st.booleans())
def test_any_row_gives_questions_or_one_of_our_errors(
    kind: str, changes: dict[str, Any], whole: bool
) -> None:
    good = {**HOTPOT, **MUSIQUE, "paragraphs": [], **verl("a?", {"target": [["x"]]}), "qas_id": "q"}
    row = {**good, **changes} if whole else changes
    try:
        items = list(KINDS[kind].read(row, Source(Path("f.jsonl"), "f.jsonl:1", 1, None, None, kind)))
    except MempoError as error:
        assert "f.jsonl:1" in str(error)
    else:
        assert all(isinstance(item.question.text, str) for item in items)


def test_a_misspelt_field_of_ones_own_lines_is_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"question": "Who?", "answers": ["x"], "splt": "dev"}\n')
    with pytest.raises(DataError, match=r"mine.jsonl:1.*'splt'.*did you mean 'split'"):
        prepare("jsonl", [path], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_data_set_without_passages_says_how_to_get_some(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"question": "Who?", "answers": ["x"]}\n')
    prepare("jsonl", [path], tmp_path / "out")
    with pytest.raises(DataError, match="--corpus FILE"):
        open_corpus(tmp_path / "out")
