"""Passages by row: what is written comes back, and a file that is not what it was is noticed."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mempo_env.errors import DataError
from mempo_env.files import file_digest
from mempo_env.retrieval.corpus import Corpus
from mempo_env.types import Passage

writable = st.text(st.characters(exclude_categories=["Cs"]))  # no lone surrogates: UTF-8 has none


def write(path: Path, passages: list[Passage]) -> Path:
    path.write_bytes(b"".join(msgspec.json.encode(passage) + b"\n" for passage in passages))
    return path


def some(count: int) -> list[Passage]:
    return [Passage(f"p{i}", f"Title {i}", f"text of {i}, é ł 東京") for i in range(count)]


@settings(max_examples=50)
@given(st.lists(st.builds(Passage, writable, writable, writable), max_size=20))
def test_every_passage_comes_back_from_file_and_memory(passages: list[Passage]) -> None:
    with TemporaryDirectory() as folder:
        path = write(Path(folder) / "corpus.jsonl", passages)
        opened, held = Corpus.open(path), Corpus.of(passages)
        assert list(opened) == list(held) == passages
        assert [opened[row] for row in range(len(opened))] == passages
        assert opened.fingerprint == held.fingerprint == file_digest(path)


def test_row_minus_one_is_no_passage(tmp_path: Path) -> None:
    corpus = Corpus.open(write(tmp_path / "corpus.jsonl", some(3)))
    for row in (-1, 3):
        with pytest.raises(IndexError, match="wanted a row of 0 to 2"):
            corpus[row]


def test_blank_lines_and_a_missing_last_line_break_change_no_row(tmp_path: Path) -> None:
    one, two = (msgspec.json.encode(passage) for passage in some(2))
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(b"\n" + one + b"\n\n  \n" + two)
    assert list(Corpus.open(path)) == some(2)


def test_an_empty_file_is_an_empty_corpus(tmp_path: Path) -> None:
    assert list(Corpus.open(write(tmp_path / "corpus.jsonl", []))) == []


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"id": "7", "title": "T"}', "text"),
        (b'{"id": 7, "title": "T", "text": "x"}', "Expected `str`"),
        (b'{"id": "7", "title": "T", "tex', "truncated"),
        (b'{"id": "7", "title": "T", "text": "\xff"}', "UTF-8"),
    ],
)
def test_a_faulty_line_is_named_and_leaves_nothing_behind(tmp_path: Path, line: bytes, said: str) -> None:
    path = write(tmp_path / "corpus.jsonl", some(2))
    path.write_bytes(path.read_bytes() + line + b"\n")
    with pytest.raises(DataError, match=rf"corpus\.jsonl:3: .*{said}"):
        Corpus.open(path)
    assert os.listdir(tmp_path) == ["corpus.jsonl"]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere\.jsonl.*found no such file"):
        Corpus.open(tmp_path / "nowhere.jsonl")


@pytest.mark.parametrize("change", ["shorter", "longer", "same size"])
def test_a_changed_file_is_read_again(tmp_path: Path, change: str) -> None:
    path = write(tmp_path / "corpus.jsonl", some(5))
    before = Corpus.open(path).fingerprint
    others = {
        "shorter": some(4),
        "longer": some(6),
        "same size": [*some(4), Passage("p4", "Title 4", "TEXT of 4, é ł 東京")],
    }[change]
    write(path, others)
    os.utime(path, ns=(1, 2))  # an edit within the clock's resolution must not matter to this test
    after = Corpus.open(path)
    assert list(after) == others
    assert after.fingerprint != before


@pytest.mark.parametrize("keep", [0, 7, 8, 40, 56, -8, -1])
def test_a_truncated_rows_file_is_made_again(tmp_path: Path, keep: int) -> None:
    path = write(tmp_path / "corpus.jsonl", some(5))
    Corpus.open(path)
    rows = tmp_path / "corpus.rows"
    whole = rows.read_bytes()
    rows.write_bytes(whole[:keep])
    assert list(Corpus.open(path)) == some(5)
    assert rows.read_bytes() == whole


@pytest.mark.parametrize("shift", [1, 40])
def test_rows_that_were_changed_in_the_middle_are_made_again(tmp_path: Path, shift: int) -> None:
    path = write(tmp_path / "corpus.jsonl", some(9))
    Corpus.open(path)
    rows = tmp_path / "corpus.rows"
    whole = rows.read_bytes()
    numbers = np.frombuffer(whole, dtype=np.uint64).copy()
    numbers[8] += np.uint64(shift)
    rows.write_bytes(numbers.tobytes())
    assert list(Corpus.open(path)) == some(9)
    assert rows.read_bytes() == whole


def test_the_second_opening_reads_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "corpus.jsonl", some(5))
    Corpus.open(path)
    monkeypatch.setattr("mempo_env.retrieval.corpus._make_rows", None)
    assert len(Corpus.open(path)) == 5


def test_a_read_only_place_keeps_its_rows_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    path = write(tmp_path / "data" / "corpus.jsonl", some(5))
    monkeypatch.setenv("MEMPO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("os.access", lambda place, mode: "data" not in str(place))
    assert list(Corpus.open(path)) == some(5)
    assert os.listdir(path.parent) == ["corpus.jsonl"]
    assert len(list((tmp_path / "cache" / "rows").iterdir())) == 1


def test_it_copies_to_itself_and_pickles_by_path_and_fingerprint(tmp_path: Path) -> None:
    path = write(tmp_path / "corpus.jsonl", some(1000))
    corpus = Corpus.open(path)
    assert copy.copy(corpus) is corpus and copy.deepcopy(corpus) is corpus
    pickled = pickle.dumps(corpus)
    assert len(pickled) < 500
    assert list(pickle.loads(pickled)) == some(1000)
    held = Corpus.of(some(3))
    again = pickle.loads(pickle.dumps(held))
    assert list(again) == some(3) and again.fingerprint == held.fingerprint
    write(path, some(999))
    with pytest.raises(DataError, match="has been changed"):
        pickle.loads(pickled)


def _texts(corpus: Corpus) -> list[str]:
    return [passage.text for passage in corpus]


def test_threads_and_forked_processes_read_the_same(tmp_path: Path) -> None:
    corpus = Corpus.open(write(tmp_path / "corpus.jsonl", some(500)))
    wanted = _texts(corpus)
    with ThreadPoolExecutor(8) as threads:
        assert all(got == wanted for got in threads.map(_texts, [corpus] * 16))
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(2) as processes:
            assert processes.map(_texts, [corpus] * 4) == [wanted] * 4


def test_memory_does_not_grow_with_the_corpus(tmp_path: Path) -> None:
    """Reading 40 MB of passages for the first time adds less than a quarter of that to the process."""
    path = tmp_path / "corpus.jsonl"
    with path.open("wb") as out:
        for i in range(40_000):
            out.write(msgspec.json.encode(Passage(str(i), "T", f"{i} " + "x" * 1_000)) + b"\n")
    code = (
        "import resource, sys; from pathlib import Path; from mempo_env.retrieval.corpus import Corpus\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "corpus = Corpus.open(Path(sys.argv[1])); assert len(corpus) == 40_000\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 10_000  # KiB
