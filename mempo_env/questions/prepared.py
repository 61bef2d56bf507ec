"""The prepared folder: the one checked form into which every source of questions is brought.

questions.jsonl    one Question a line
corpus.jsonl       one Passage a line; absent where the source has no paragraphs and none were added
manifest.json      what the folder holds, with sizes and digests
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import msgspec
from msgspec import Struct

from mempo_env.errors import DataError
from mempo_env.files import BAD_JSON, atomic_folder, digest, file_digest
from mempo_env.retrieval.corpus import CORPUS_FILE, Corpus
from mempo_env.types import Passage, Question, storable

QUESTIONS, CORPUS, MANIFEST = "questions.jsonl", CORPUS_FILE, "manifest.json"
FORMAT = 1
FEW = 30
"""A split with fewer questions tells little."""

encode = msgspec.json.Encoder().encode


class Manifest(Struct, frozen=True, kw_only=True):
    """What a prepared folder holds.

    Attributes:
        format: Version of the layout.
        name: Of the data set.
        kind: The format it was read from.
        fingerprint: Hex BLAKE2b (128 bits) of questions.jsonl.
        corpus: The same of corpus.jsonl; empty if there is none.
        questions_bytes: Size of questions.jsonl.
        corpus_bytes: Size of corpus.jsonl; 0 if there is none.
        splits: Questions in each split.
        passages: Passages in the corpus.
        sources: Names of the files it was made from.
    """

    format: int
    name: str
    kind: str
    fingerprint: str
    corpus: str
    questions_bytes: int
    corpus_bytes: int
    splits: dict[str, int]
    passages: int
    sources: tuple[str, ...]


def fault(question: Question) -> str:
    """What is wrong with a question, empty if nothing is: every question of a set passes this."""
    if not (isinstance(question.id, str) and question.id.strip()):
        return f"wanted an id, got {question.id!r}"
    if "+" in question.id:
        return "wanted an id without '+', which joins the ids of several objectives"
    if storable(text := f"{question.id}{question.text}{question.answers}") != text:
        return "wanted text that a UTF-8 file can hold, got halves of characters (lone surrogates)"
    if not (isinstance(question.text, str) and question.text.strip()):
        return f"wanted the text of a question, got {question.text!r}"
    answers = question.answers
    if not isinstance(answers, tuple | list) or not all(isinstance(answer, str) for answer in answers):
        return f"wanted a list of strings as answers, got {answers!r}"
    if not answers or not all(answer.strip() for answer in answers):
        return f"wanted at least one answer and none blank, got {list(answers)!r}"
    return ""


class Writer:
    """Writes questions and passages into a folder that is being prepared; the same one twice is written once.

    Attributes:
        folder: The folder; it gets its name when it is complete.
        splits: Questions written, by split.
        repeated: Questions that came again, word for word.
    """

    def __init__(self, folder: Path, questions: IO[bytes], corpus: IO[bytes]) -> None:
        self.folder = folder
        self.splits: Counter[str] = Counter()
        self.repeated = 0
        self._questions, self._corpus = questions, corpus
        self._seen: dict[str, str] = {}
        self._passages: set[int] = (
            set()
        )  # the 8-byte ids: 21 million passages fit into memory, their texts do not

    @property
    def passages(self) -> int:
        """Passages written so far."""
        return len(self._passages)

    def question(self, question: Question, where: str) -> None:
        """Write a question.

        Raises:
            DataError: if it is faulty, or another question has its id; `where` says file and line.
        """
        if wrong := fault(question):
            raise DataError(f"{where}: question {question.id!r}: {wrong}")
        line = encode(question)
        content = digest(line)
        before = self._seen.get(question.id)
        if before == content:
            self.repeated += 1
            return
        if before is not None:
            raise DataError(
                f"{where}: question {question.id!r}: the same id came before with another text, answer, "
                "split or evidence: ids must be unique among all the files that are joined"
            )
        self._seen[question.id] = content
        self.splits[question.split] += 1
        self._questions.write(line + b"\n")

    def passage(self, passage: Passage) -> None:
        """Write a passage whose id is `passage_id` of its content."""
        key = int(passage.id, 16)
        if key not in self._passages:
            self._passages.add(key)
            self._corpus.write(encode(passage) + b"\n")

    def flush(self) -> None:
        """Hand over what was written so far to whoever reads the files before they are complete."""
        self._questions.flush()
        self._corpus.flush()


@contextmanager
def prepared(out: Path, name: str, kind: str, sources: tuple[str, ...] = ()) -> Iterator[Writer]:
    """Fill a prepared folder that appears whole or not at all.

    `writer.folder` may get further files that depend on its content alone (an index).

    Raises:
        DataError: if the folder exists and holds anything else, or no question was written.
    """
    if out.exists() and not (out / MANIFEST).is_file() and (not out.is_dir() or any(out.iterdir())):
        raise DataError(f"{out}: exists and is no prepared folder: choose another place or remove it")
    with atomic_folder(out) as draft:
        with (draft / QUESTIONS).open("wb") as questions, (draft / CORPUS).open("wb") as corpus:
            writer = Writer(draft, questions, corpus)
            yield writer
        manifest = finish(draft, writer, name, kind, sources)
    if read_manifest(out) != manifest:
        raise DataError(f"{out}: exists and holds other data: choose another place or remove it")


def finish(draft: Path, writer: Writer, name: str, kind: str, sources: tuple[str, ...]) -> Manifest:
    """Write the manifest of a folder whose questions and corpus are complete."""
    if not writer.splits:
        raise DataError(f"{', '.join(sources) or name}: wanted questions, found none")
    corpus = draft / CORPUS
    if not writer.passages:
        corpus.unlink()
    manifest = Manifest(
        format=FORMAT,
        name=name,
        kind=kind,
        fingerprint=file_digest(draft / QUESTIONS),
        corpus=file_digest(corpus) if writer.passages else "",
        questions_bytes=(draft / QUESTIONS).stat().st_size,
        corpus_bytes=corpus.stat().st_size if writer.passages else 0,
        splits=dict(sorted(writer.splits.items())),
        passages=writer.passages,
        sources=sources,
    )
    (draft / MANIFEST).write_bytes(msgspec.json.format(encode(manifest), indent=2) + b"\n")
    return manifest


def open_corpus(folder: Path) -> Corpus:
    """Open the corpus of a data folder.

    Raises:
        DataError: if there is none or a line of it is no passage, or if the folder is a prepared one and its
            corpus is not the one that was prepared.
    """
    if (folder / MANIFEST).exists() and not (folder / CORPUS).exists():
        raise DataError(
            f"{folder}: wanted passages to search, the data set has none: prepare it again with --corpus FILE"
        )
    corpus = Corpus.open(folder / CORPUS)
    if (folder / MANIFEST).exists() and corpus.fingerprint != read_manifest(folder).corpus:
        raise DataError(f"{corpus.path}: was changed after it was prepared: {AGAIN}")
    return corpus


def read_manifest(folder: Path) -> Manifest:
    """Read what a prepared folder says that it holds, and check the sizes.

    Raises:
        DataError: if it is no prepared folder, of another version, or a file was truncated or changed.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise DataError(
            f"{folder}: wanted a prepared folder, found no {MANIFEST}: make one with `mempo data prepare`"
        )
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except BAD_JSON as error:
        raise DataError(f"{path}: {error}: {AGAIN}") from None
    if manifest.format != FORMAT:
        raise DataError(f"{path}: wanted layout version {FORMAT}, found {manifest.format}: {AGAIN}")
    for name, size in ((QUESTIONS, manifest.questions_bytes), (CORPUS, manifest.corpus_bytes)):
        file = folder / name
        found = file.stat().st_size if file.is_file() else 0
        if found != size:
            raise DataError(
                f"{file}: wanted {size:,} bytes, found {found:,}; truncated or edited by hand: {AGAIN}"
            )
    return manifest


AGAIN = "make the folder again with `mempo data prepare`"
