"""The synthetic world on disk: made once, by any number of processes, and made again when damaged."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mempo_env.errors import ConfigError, DataError
from mempo_env.questions.prepared import CORPUS, MANIFEST, QUESTIONS, read_manifest
from mempo_env.questions.set import QuestionSet
from mempo_env.questions.world import WorldSpec, articles, build, prepare_world, questions, synthetic
from mempo_env.retrieval import INDEX_FOLDER, open_retriever
from mempo_env.retrieval.bm25 import BM25Index
from mempo_env.retrieval.corpus import Corpus

SPEC = WorldSpec(articles=150, questions=200, seed=2)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("MEMPO_CACHE", str(tmp_path / "cache"))
    yield tmp_path / "cache"


def fresh(spec: WorldSpec) -> QuestionSet:
    """As a new process would get it."""
    forget()
    return synthetic(spec)


def forget() -> None:
    from mempo_env.questions.world.build import _embedded

    _embedded.cache_clear()


def test_another_specification_or_other_code_is_another_folder(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = WorldSpec(articles=150, questions=200, seed=3)
    folders = [fresh(SPEC).folder, fresh(other).folder]
    monkeypatch.setattr(build, "_code", lambda: "changed")
    folders.append(fresh(SPEC).folder)
    assert len(set(folders)) == 3


def test_a_world_is_made_once_and_kept_with_its_index(cache: Path) -> None:
    rows = fresh(SPEC)
    (folder,) = cache.iterdir()
    made = folder.stat().st_mtime_ns
    assert rows.folder == folder
    assert folder.name.startswith("synthetic-")
    assert {QUESTIONS, CORPUS, MANIFEST, INDEX_FOLDER} <= {path.name for path in folder.iterdir()}
    assert synthetic(SPEC) is rows
    assert fresh(SPEC) == rows
    assert folder.stat().st_mtime_ns == made
    assert read_manifest(folder).passages == 150
    assert {row.split for row in rows} == {"train", "dev", "test"}


def test_the_folder_holds_what_the_streams_give(cache: Path) -> None:
    rows = fresh(SPEC)
    corpus = Corpus.open(rows.folder / CORPUS)
    assert list(corpus) == list(articles(SPEC))
    retriever = open_retriever("bm25", corpus, rows.folder)
    assert list(questions(SPEC, retriever.search)) == list(rows)
    for row in rows:
        rankings = retriever.search([each.title for each in row.evidence], 3)
        for evidence, hits in zip(row.evidence, rankings, strict=True):
            assert evidence.passage_id in {hit.id for hit in hits}


def test_the_embedded_world_is_the_default() -> None:
    assert WorldSpec() == WorldSpec(articles=2_000, questions=3_000, seed=0)


@pytest.mark.parametrize("name", [QUESTIONS, CORPUS, MANIFEST])
def test_a_damaged_world_is_made_again(cache: Path, name: str) -> None:
    rows = fresh(SPEC)
    path = rows.folder / name
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert fresh(SPEC) == rows
    assert path.read_bytes() == whole


def edit(path: Path, old: bytes, new: bytes) -> None:
    path.write_bytes(path.read_bytes().replace(old, new, 1))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "an edited article": lambda folder: edit(folder / CORPUS, b"born", b"died"),
    "an edited question": lambda folder: edit(folder / QUESTIONS, b"Who", b"How"),
    "a manifest nested too deep": lambda folder: (folder / MANIFEST).write_text("[" * 100_000),
    "no index": lambda folder: shutil.rmtree(folder / INDEX_FOLDER),
    "half an index": lambda folder: next((folder / INDEX_FOLDER).glob("tantivy/*.store")).write_bytes(b""),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_world_that_fails_any_check_is_made_again(cache: Path, damage: str) -> None:
    rows = fresh(SPEC)
    folder = rows.folder
    assert folder is not None
    texts = [(folder / name).read_bytes() for name in (QUESTIONS, CORPUS, MANIFEST)]
    DAMAGES[damage](folder)
    assert fresh(SPEC) == rows
    assert [(folder / name).read_bytes() for name in (QUESTIONS, CORPUS, MANIFEST)] == texts
    BM25Index.open(folder / INDEX_FOLDER, Corpus.open(folder / CORPUS))


def test_two_processes_may_make_the_same_world_at_once(cache: Path) -> None:
    code = (
        "from mempo_env.questions.world import WorldSpec, synthetic\n"
        "rows = synthetic(WorldSpec(articles=150, questions=200, seed=2))\n"
        "print(len(rows), rows.fingerprint)\n"
    )
    command = [sys.executable, "-c", code]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = [process.communicate()[0] for process in running]
    assert [process.returncode for process in running] == [0, 0, 0]
    assert said == [f"200 {fresh(SPEC).fingerprint}\n"] * 3
    assert len(list(cache.iterdir())) == 1  # no drafts are left


def test_a_killed_build_leaves_no_world_and_the_next_one_makes_it(cache: Path) -> None:
    code = (
        "import os, signal\n"
        "from mempo_env.questions.world import WorldSpec, build\n"
        "made = build.questions\n"
        "def killed(*args):\n"
        "    yield next(made(*args))\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "build.questions = killed\n"
        "build.synthetic(WorldSpec(articles=150, questions=200, seed=2))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == -9
    assert not [path for path in cache.iterdir() if not path.name.startswith(".")]
    assert len(fresh(SPEC)) == 200
    assert len(list(cache.iterdir())) == 1  # its draft is gone too


def test_a_cache_folder_that_is_a_file_is_told(cache: Path) -> None:
    cache.write_text("mine")
    with pytest.raises(ConfigError, match="set MEMPO_CACHE to a folder that can be written"):
        fresh(SPEC)
    assert cache.read_text() == "mine"


def test_a_prepared_world_does_not_replace_other_data(tmp_path: Path) -> None:
    prepare_world(SPEC, tmp_path / "out")
    before = (tmp_path / "out" / MANIFEST).read_bytes()
    prepare_world(SPEC, tmp_path / "out")
    with pytest.raises(DataError, match="holds other data"):
        prepare_world(WorldSpec(articles=150, questions=100, seed=2), tmp_path / "out")
    assert (tmp_path / "out" / MANIFEST).read_bytes() == before
