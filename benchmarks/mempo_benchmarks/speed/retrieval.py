"""What the default index costs: time, disk and memory from size to size, over invented passages.

    python -m mempo_benchmarks.speed.retrieval --sizes 10000 100000 1000000 --out DIR

Passages are made to cost what real ones cost: word frequencies fall like Zipf's law with a long tail of rare
words, four words in ten are English function words, and queries are wh-questions about words of one passage.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from mempo_env.files import atomic_file
from mempo_env.progress import progress
from mempo_env.retrieval.bm25 import BM25Index, build_index
from mempo_env.retrieval.corpus import CORPUS_FILE, Corpus
from mempo_env.types import Passage

FUNCTION_WORDS = """
the of and in to a was is for as on by with he at from his that it an were are which this also has be or had
first their one its new who after not two they her she been have all when other during time into
""".split()  # noqa: SIM905
QUESTIONS = (
    "Who was the {0} of the {1} {2} that {3} in {4}?",
    "In which {0} was the {1} of {2} and {3} {4}?",
    "What is the name of the {0} who {1} the {2} {3} by {4}?",
    "When did the {0} {1} of {2} {3} with {4}?",
    "Which {0} {1} did {2} {3} before the {4}?",
)
CONTENT_WORDS = 400_000
LENGTHS = (60, 100)
FUNCTION_SHARE = 0.42
WIKI_18 = 21_015_324
"""Passages of the Wikipedia dump that open-domain question answering uses."""


# --- Invented passages -------------------------------------------------------------------------------------


def words(count: int) -> list[str]:
    """The first `count` invented words, each of two syllables."""
    onsets = ("b br c ch d dr f g gr h j k l m n p r s st t th v w").split()  # noqa: SIM905
    syllables = [
        a + b + c for a in onsets for b in ("a", "e", "i", "o", "u", "ai", "ea") for c in ("", *"nrlstm")
    ]
    size = len(syllables)
    return [syllables[i * 7919 % size**2 // size] + syllables[i * 7919 % size] for i in range(count)]


def zipf(count: int) -> NDArray[np.float64]:
    """Cumulated probabilities of `count` words whose frequency falls with rank + 2.7 (Mandelbrot)."""
    weights = 1 / (np.arange(count) + 2.7)
    return np.asarray(np.cumsum(weights) / weights.sum())


def passages(count: int, seed: int = 0) -> Iterator[Passage]:
    """Invent passages, block by block."""
    vocabulary = np.array([*FUNCTION_WORDS, *words(CONTENT_WORDS)], dtype=object)
    function, content = zipf(len(FUNCTION_WORDS)), zipf(CONTENT_WORDS)
    shift = len(FUNCTION_WORDS)
    rng = np.random.default_rng(seed)
    for first in range(0, count, 10_000):
        n = min(10_000, count - first)
        shape = (n, LENGTHS[1])
        picks = np.where(
            rng.random(shape) < FUNCTION_SHARE,
            np.searchsorted(function, rng.random(shape)),
            shift + np.searchsorted(content, rng.random(shape)),
        )
        lengths = rng.integers(LENGTHS[0], LENGTHS[1] + 1, n)
        names = shift + np.searchsorted(content, rng.uniform(0.5, 1, (n, 2)))  # names are rarer words
        for i in range(n):
            title = " ".join(vocabulary[names[i]]).title()
            text = " ".join(vocabulary[picks[i, : lengths[i]]])
            yield Passage(str(first + i), title, f"{title} {text}.")


def questions(sample: Sequence[Passage], seed: int = 0) -> list[str]:
    """Ask about words of each passage; every other question, about half, names it."""
    rng = np.random.default_rng(seed)
    function = set(FUNCTION_WORDS)
    asked = []
    for passage in sample:
        content = [word for word in passage.text[:-1].split()[2:] if word not in function]
        chosen = [content[i] for i in rng.permutation(len(content))[:5]]
        if rng.random() < 0.5:
            chosen[int(rng.integers(5))] = passage.title
        asked.append(QUESTIONS[int(rng.integers(len(QUESTIONS)))].format(*chosen))
    return asked


# --- Measuring ---------------------------------------------------------------------------------------------


def write_corpus(folder: Path, size: int) -> Path:
    """Write a corpus of invented passages, unless it is there."""
    path = folder / CORPUS_FILE
    if not path.exists():
        encode = msgspec.json.Encoder().encode
        with atomic_file(path) as out, progress(f"inventing {size:,} passages", size) as advance:
            for number, passage in enumerate(passages(size), 1):
                out.write(encode(passage) + b"\n")
                if number % 10_000 == 0 or number == size:
                    advance((number - 1) % 10_000 + 1)
    return path


def measure(folder: Path, size: int, count: int, k: int) -> dict[str, Any]:
    """Build the index of one size and measure it in a process of its own, while this one has it open."""
    corpus = Corpus.open(write_corpus(folder, size))
    index = folder / "index"
    wall, cpu = time.perf_counter(), time.process_time()
    built = build_index(corpus, index)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    rng = np.random.default_rng(1)
    asked = questions([corpus[int(row)] for row in rng.integers(len(corpus), size=count)])
    first = BM25Index.open(index, corpus)
    first.search(asked[:100], k)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        second = pool.apply(search, (index, Path(str(corpus.path)), asked, k))
    disk = sum(path.stat().st_size for path in index.rglob("*") if path.is_file())
    return {
        "passages": size,
        "build_wall_s": wall if built else None,
        "build_cpu_s": cpu if built else None,
        "corpus_mb": Path(str(corpus.path)).stat().st_size / 1e6,
        "index_mb": disk / 1e6,
        **second,
    }


def search(index: Path, path: Path, asked: Sequence[str], k: int) -> dict[str, float]:
    """Open and search an index in this process; times in ms, memory as added by that and in all."""
    before = private_mb()
    start = time.perf_counter()
    retriever = BM25Index.open(index, Corpus.open(path))
    opened = time.perf_counter() - start
    walls, cpus = [], []
    for query in asked:
        wall, cpu = time.perf_counter_ns(), time.process_time_ns()
        retriever.search([query], k)
        cpus.append((time.process_time_ns() - cpu) / 1e6)
        walls.append((time.perf_counter_ns() - wall) / 1e6)
    return {
        "open_s": opened,
        "private_mb": private_mb() - before,
        "process_mb": private_mb(),
        "cpu_p50_ms": float(np.quantile(cpus, 0.5)),
        "cpu_p99_ms": float(np.quantile(cpus, 0.99)),
        "wall_p50_ms": float(np.quantile(walls, 0.5)),
        "wall_p99_ms": float(np.quantile(walls, 0.99)),
    }


def private_mb() -> float:
    """Memory that belongs to this process alone (Private_Dirty), in MB; Linux."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) / 1e3 for line in lines if line.startswith("Private_Dirty:"))


def growth(small: dict[str, Any], large: dict[str, Any], name: str) -> float | None:
    """The exponent a of cost ~ passages ** a between two sizes; None where a cost was not measured."""
    if not small[name] or not large[name] or small[name] < 0 or large[name] < 0:
        return None
    return float(np.log(large[name] / small[name]) / np.log(large["passages"] / small["passages"]))


def extrapolate(rows: Sequence[dict[str, Any]], name: str, passages: int = WIKI_18) -> float | None:
    """A cost at a larger size, if it goes on growing as between the two largest ones."""
    exponent = growth(rows[-2], rows[-1], name)
    return None if exponent is None else rows[-1][name] * (passages / rows[-1]["passages"]) ** exponent


def report(rows: Sequence[dict[str, Any]]) -> str:
    """A table of costs, a column a size, with the growth between the last two and what wiki-18 would cost."""
    lines = ["cost".ljust(14) + "".join(f"{row['passages']:>14,}" for row in rows)]
    if len(rows) > 1:
        lines[0] += f"{'grows as n^':>14}{f'at {WIKI_18:,}':>16}"
    for name in list(rows[0])[1:]:
        line = name.ljust(14) + "".join(
            "-".rjust(14) if r[name] is None else f"{r[name]:14.3f}" for r in rows
        )
        if len(rows) > 1 and (exponent := growth(rows[-2], rows[-1], name)) is not None:
            line += f"{exponent:14.2f}{extrapolate(rows, name):16,.1f}"
        lines.append(line)
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure every size and print the table; the figures go to DIR/retrieval.json."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000], help="passages")
    parser.add_argument("--queries", type=int, default=1_000, help="queries a size")
    parser.add_argument("--k", type=int, default=3, help="hits a query")
    parser.add_argument("--out", type=Path, required=True, help="folder for corpora, indexes and figures")
    options = parser.parse_args(argv)
    rows = [measure(options.out / str(n), n, options.queries, options.k) for n in sorted(options.sizes)]
    made = {name: version(name) for name in ("mempo", "tantivy", "numpy")} | {
        "python": platform.python_version()
    }
    with atomic_file(options.out / "retrieval.json") as out:
        out.write(json.dumps({"versions": made, "k": options.k, "rows": rows}, indent=1).encode())
    sys.stdout.write(f"k = {options.k}, {options.queries} queries a size; {made}\n{report(rows)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
