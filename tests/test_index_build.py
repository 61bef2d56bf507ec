"""Building an index: killed, raced, truncated, edited; it ranks the same or says what to do."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from mempo_env.cli import main
from mempo_env.errors import ConfigError, IndexFault, RetrieverError
from mempo_env.retrieval import bm25, manifest, open_retriever
from mempo_env.retrieval.bm25 import BM25Index, build_index
from mempo_env.retrieval.corpus import Corpus
from mempo_env.types import Hit, Passage

REMEDY = "mempo index build"

CHILD = """
import os, signal, sys
from pathlib import Path
from mempo_env.retrieval import analysis, bm25
from mempo_env.retrieval.corpus import Corpus

folder, part, die_at = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
bm25._MIN_PART = part
added, body = 0, analysis.body

def counted(passage):
    global added
    if int(passage.id) == die_at:
        os.kill(os.getpid(), signal.SIGKILL)
    added += 1
    return body(passage)

analysis.body = counted
bm25.build_index(Corpus.open(folder / "corpus.jsonl"), folder / "index")
print(added)
"""


def write_corpus(folder: Path, count: int, seed: int = 0) -> Corpus:
    rng = random.Random(seed)
    words = [f"word{i}" for i in range(300)]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "corpus.jsonl").open("wb") as out:
        for i in range(count):
            text = " ".join(rng.choices(words, [1 / (j + 1) for j in range(300)], k=rng.randint(3, 40)))
            out.write(msgspec.json.encode(Passage(str(i), "", text)) + b"\n")
    return Corpus.open(folder / "corpus.jsonl")


def asked(count: int = 200, seed: int = 1) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(f"word{rng.randrange(300)}" for _ in range(rng.randint(1, 8))) for _ in range(count)]


def child(folder: Path, part: int, die_at: int = -1) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CHILD, str(folder), str(part), str(die_at)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def ranking(folder: Path) -> list[tuple[Hit, ...]]:
    return BM25Index.open(folder / "index", Corpus.open(folder / "corpus.jsonl")).search(asked(), 10)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder of 3,000 passages whose index of six parts was built in one go."""
    folder = tmp_path_factory.mktemp("whole")
    write_corpus(folder, 3_000)
    process = child(folder, 500)
    assert process.communicate()[0] == "3000\n"
    return folder


@pytest.fixture
def data(whole: Path, tmp_path: Path) -> Path:
    """A copy of that folder to do things to."""
    return Path(shutil.copytree(whole, tmp_path / "data"))


# --- Killed ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("die_at", [0, 499, 500, 1_733, 2_999])
def test_a_build_killed_at_a_row_goes_on_after_its_last_part(
    whole: Path, tmp_path: Path, die_at: int
) -> None:
    corpus = write_corpus(tmp_path, 3_000)
    killed = child(tmp_path, 500, die_at)
    assert killed.wait() == -signal.SIGKILL
    with pytest.raises(IndexFault, match=f"finished index.*{REMEDY}"):
        BM25Index.open(tmp_path / "index", corpus)
    resumed = child(tmp_path, 500)
    kept = die_at // 500 * 500
    assert resumed.communicate()[0] == f"{3_000 - kept}\n"
    assert ranking(tmp_path) == ranking(whole)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_build_killed_at_random_moments_ranks_like_one_that_was_not(tmp_path: Path, seed: int) -> None:
    """Ten kills at any moment, also within a commit; then it is finished."""
    rng = random.Random(seed)
    write_corpus(tmp_path / "whole", 20_000)
    shutil.copytree(tmp_path / "whole", tmp_path / "killed")
    start = time.monotonic()
    assert child(tmp_path / "whole", 3_000).wait() == 0
    took, kills = time.monotonic() - start, 0  # a fast machine must be killed sooner
    for _ in range(10):
        process = child(tmp_path / "killed", 3_000)
        while not (tmp_path / "killed" / "index").exists() and process.poll() is None:
            time.sleep(0.01)
        time.sleep(rng.uniform(0, took / 4))
        process.kill()
        kills += process.wait() == -signal.SIGKILL
    assert kills, "it was always faster than the kill: nothing was tested"
    assert child(tmp_path / "killed", 3_000).wait() == 0
    assert ranking(tmp_path / "killed") == ranking(tmp_path / "whole")


def test_a_killed_build_of_another_corpus_is_not_continued(tmp_path: Path) -> None:
    write_corpus(tmp_path, 3_000, seed=5)
    assert child(tmp_path, 500, 1_733).wait() == -signal.SIGKILL
    write_corpus(tmp_path, 3_000, seed=6)
    assert child(tmp_path, 500).communicate()[0] == "3000\n"
    fresh = tmp_path / "fresh"
    write_corpus(fresh, 3_000, seed=6)
    assert child(fresh, 500).wait() == 0
    assert ranking(tmp_path) == ranking(fresh)


# --- Raced -------------------------------------------------------------------------------------------------


def test_two_processes_building_the_same_index_build_it_once(whole: Path, tmp_path: Path) -> None:
    write_corpus(tmp_path, 3_000)
    both = [child(tmp_path, 500) for _ in range(2)]
    assert sorted(process.communicate()[0] for process in both) == ["0\n", "3000\n"]
    assert ranking(tmp_path) == ranking(whole)


# --- Truncated, edited, of another corpus ------------------------------------------------------------------


def largest(folder: Path) -> Path:
    return max((folder / "index" / "tantivy").iterdir(), key=lambda path: path.stat().st_size)


def flip(path: Path, position: int = -100) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0xFF
    path.write_bytes(content)


def edit_manifest(folder: Path) -> None:
    path = folder / "index" / "manifest.json"
    held = json.loads(path.read_text())
    next(iter(held["files"].values()))["size"] += 1
    path.write_text(json.dumps(held))


FAULTS = {
    "no manifest": (lambda d: (d / "index" / "manifest.json").unlink(), "found no manifest.json"),
    "half a manifest": (lambda d: os.truncate(d / "index" / "manifest.json", 100), "manifest of an index"),
    "an edited manifest": (edit_manifest, "its check sum is wrong"),
    "a truncated file": (lambda d: os.truncate(largest(d), 1_000), "truncated or edited"),
    "an edited file": (lambda d: flip(largest(d)), "was edited"),
    "a missing file": (lambda d: largest(d).unlink(), "found none"),
    "no index": (lambda d: shutil.rmtree(d / "index"), "found no manifest.json"),
    "another corpus": (lambda d: write_corpus(d, 3_000, seed=9), "fingerprint of the corpus"),
    "a shorter corpus": (lambda d: write_corpus(d, 2_999), "fingerprint of the corpus"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_index_is_refused_and_built_again(data: Path, fault: str) -> None:
    harm, said = FAULTS[fault]
    harm(data)
    corpus = Corpus.open(data / "corpus.jsonl")
    with pytest.raises(IndexFault, match=f"{said}.*{REMEDY} {data}"):
        BM25Index.open(data / "index", corpus)
    assert build_index(corpus, data / "index")
    assert ranking(data) == BM25Index.of(corpus).search(asked(), 10)
    assert not build_index(corpus, data / "index")


def test_an_edit_that_hides_its_time_is_found_by_verifying(data: Path) -> None:
    path = largest(data)
    time_before = path.stat().st_mtime_ns
    flip(path)
    os.utime(path, ns=(time_before, time_before))
    with pytest.raises(IndexFault, match="was edited"):
        BM25Index.open(data / "index", Corpus.open(data / "corpus.jsonl"), verify=True)
    assert build_index(Corpus.open(data / "corpus.jsonl"), data / "index")


@pytest.mark.parametrize("name", ["meta.json", "*.fast", "*.term"])
@pytest.mark.parametrize("part", [slice(0, None), slice(0, 50), slice(-60, -20)])
def test_a_store_that_looks_untouched_and_is_not_gives_an_error_of_ours(
    data: Path, name: str, part: slice
) -> None:
    """Some of these make tantivy panic, which is no `Exception`."""
    path = max((data / "index" / "tantivy").glob(name), key=lambda path: path.stat().st_size)
    before = path.stat()
    content = bytearray(path.read_bytes())
    content[part] = bytes(byte ^ 0xFF for byte in content[part])
    path.write_bytes(content)
    os.utime(path, ns=(before.st_mtime_ns, before.st_mtime_ns))
    with pytest.raises((IndexFault, RetrieverError), match=r"cannot open it|cannot be searched"):
        BM25Index.open(data / "index", Corpus.open(data / "corpus.jsonl")).search(asked(), 3_000)


def test_a_copied_index_is_compared_once(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = Path(shutil.copytree(whole, tmp_path / "copied", copy_function=shutil.copy))  # with new times
    assert ranking(copied) == ranking(whole)
    monkeypatch.setattr(manifest, "file_digest", None)
    assert ranking(copied) == ranking(whole)


def test_an_index_of_another_version_is_refused(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = Corpus.open(data / "corpus.jsonl")
    monkeypatch.setattr(bm25, "version", lambda name: "0.1")
    with pytest.raises(IndexFault, match=r"wanted an index with engine 'tantivy 0\.1'"):
        BM25Index.open(data / "index", corpus)


def test_opening_reads_no_content(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its size, an untouched index is checked by sizes and times."""
    monkeypatch.setattr(manifest, "file_digest", None)
    assert len(ranking(data)) == 200


# --- By name -----------------------------------------------------------------------------------------------


def test_a_small_corpus_is_indexed_on_the_spot(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path, 100)
    opened = open_retriever("bm25", corpus)
    assert (tmp_path / "index" / "manifest.json").is_file()
    assert opened.search(asked(), 5) == open_retriever("bm25", Corpus.of(corpus)).search(asked(), 5)


def test_a_large_corpus_without_an_index_names_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = write_corpus(tmp_path, 100)
    monkeypatch.setattr("mempo_env.retrieval.SMALL", 100)
    with pytest.raises(IndexFault, match=f"build it with `{REMEDY} {tmp_path}`"):
        open_retriever("bm25", corpus)


def test_a_read_only_place_gets_an_index_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = write_corpus(tmp_path, 100)
    monkeypatch.setattr("os.access", lambda place, mode: False)
    assert open_retriever("bm25", corpus).search(asked(), 5)
    assert not (tmp_path / "index").exists()


def test_a_misspelt_retriever_gets_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown retriever 'bm52': did you mean 'bm25'"):
        open_retriever("bm52", Corpus.of([]))
    with pytest.raises(ConfigError, match="give corpus="):
        open_retriever("bm25")


# --- Command line ------------------------------------------------------------------------------------------


def test_the_command_builds_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_corpus(tmp_path, 100)
    assert main(["index", "build", str(tmp_path)]) == 0
    assert re.match(rf"indexed 100 passages in \d+\.\d s: {tmp_path}/index\n", capsys.readouterr().out)
    assert main(["index", "build", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"already up to date: {tmp_path}/index, 100 passages\n"


@pytest.mark.parametrize("content", [None, b'{"id": "1"\n'])
def test_bad_input_gets_one_line_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / "corpus.jsonl").write_bytes(content)
    before = os.listdir(tmp_path)
    assert main(["index", "build", str(tmp_path)]) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("mempo:")]
    assert len(said) == 1 and "corpus.jsonl" in said[0]
    assert os.listdir(tmp_path) == before
