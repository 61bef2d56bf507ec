"""Questions and corpora of other projects, brought into one checked form."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from mempo_env.errors import ConfigError, DataError, lookup
from mempo_env.progress import progress
from mempo_env.questions.formats import corpora
from mempo_env.questions.formats.common import SPLIT_NAMES, Source
from mempo_env.questions.formats.kinds import KINDS, Kind, split_of_file
from mempo_env.questions.formats.rows import rows
from mempo_env.questions.prepared import Manifest, Writer, prepared, read_manifest
from mempo_env.types import Split

__all__ = ["KINDS", "Summary", "prepare"]


class Summary(Struct, frozen=True, kw_only=True):
    """What came of preparing.

    Attributes:
        manifest: Of the folder.
        repeated: Questions that came more than once, word for word, and were written once.
        unanswerable: Rows that say that they can't be answered; left out.
        lost_facts: Supporting facts that point to a title or sentence that is not there; left out.
        without_evidence: Questions for which the source gives no evidence.
    """

    manifest: Manifest
    repeated: int
    unanswerable: int
    lost_facts: int
    without_evidence: int


def prepare(
    kind: str, files: Sequence[Path], out: Path, corpus: Sequence[Path] = (), split: str | None = None
) -> Summary:
    """Read question files of a kind, and corpora, into a new prepared folder; memory holds ids, no texts.

    Args:
        kind: A name of `KINDS`.
        files: Question files; several are joined.
        out: The folder to make.
        corpus: Files of further passages: wiki-18 (jsonl or .gz), BEIR, or rows of id, title and text.
        split: The split of all questions. Without it as the rows say, else as a word of the file's name says
            (train, dev, validation, test ...), else by a hash of the id: 70 % train, 15 % dev, 15 % test.

    Raises:
        ConfigError: if there is no such kind or split, or no file.
        DataError: if a file does not hold what its kind promises, or `out` holds other data.
    """
    reader = lookup(KINDS, kind, "kind of data")
    given = lookup(SPLIT_NAMES, split, "split") if split else None
    if not files:
        raise ConfigError(f"{kind}: wanted at least one file of questions, got none")
    counts = dict.fromkeys(("unanswerable", "lost_facts", "without_evidence"), 0)
    sources = tuple(path.name for path in (*files, *corpus))
    with prepared(out, out.name, kind, sources) as writer:
        for path in files:
            _read_questions(path, kind, reader, given, writer, counts)
        for path in corpus:
            _read_corpus(path, writer)
    return Summary(manifest=read_manifest(out), repeated=writer.repeated, **counts)


def _read_questions(
    path: Path, kind: str, reader: Kind, split: Split | None, writer: Writer, counts: dict[str, int]
) -> None:
    of_file = split_of_file(path) or reader.split
    with progress(f"reading {path.name}", None, unit="rows") as advance:
        for number, (place, row) in enumerate(rows(path), 1):
            items = [*reader.read(row, Source(path, place, number, split, of_file, kind))]
            counts["unanswerable"] += not items
            for item in items:
                writer.question(item.question, place)
                for passage in item.passages:
                    writer.passage(passage)
                counts["lost_facts"] += item.lost
                counts["without_evidence"] += not item.question.evidence
            advance(1)


def _read_corpus(path: Path, writer: Writer) -> None:
    with progress(f"reading {path.name}", None, unit="passages") as advance:
        number = 0
        for number, passage in enumerate(corpora.passages(path), 1):
            writer.passage(passage)
            if number % 1_000 == 0:
                advance(1_000)
        advance(number % 1_000)
    if not number:
        raise DataError(f"{path}: wanted passages, found none with a text")
