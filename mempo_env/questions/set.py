"""A set of questions: immutable, checked, known by the fingerprint of its content."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, get_args, overload

import msgspec

from mempo_env.errors import ConfigError, DataError, lookup
from mempo_env.files import BAD_JSON, read_jsonl
from mempo_env.questions.prepared import AGAIN, QUESTIONS, encode, fault, read_manifest
from mempo_env.types import Question, Split

SPLITS: tuple[Split, ...] = get_args(Split)


class QuestionSet(Sequence[Question]):
    """Questions in a fixed order.

    A set never changes: it copies to itself, and one that was loaded from a folder pickles as that folder and
    its fingerprint.

    Args:
        questions: The questions; their ids are unique, and each has an answer.
        name: What to call the set.

    Attributes:
        name: What to call the set.
        folder: The prepared folder it was loaded from, else None.

    Raises:
        DataError: if a question is faulty or an id is used twice; names its place and id.
    """

    name: str
    folder: Path | None

    def __init__(self, questions: Iterable[Question], name: str = "questions") -> None:
        self._fill(tuple(questions), name, None, None)
        self._check(f"{name}: question {number}" for number in range(1, len(self) + 1))

    def _fill(self, rows: tuple[Question, ...], name: str, folder: Path | None, split: Split | None) -> None:
        self._rows, self.name, self.folder, self._split = rows, name, folder, split

    def _check(self, places: Iterable[str]) -> None:
        seen = set()
        for question, place in zip(self._rows, places, strict=True):
            if wrong := fault(question):
                raise DataError(f"{place}, id {question.id!r}: {wrong}")
            if question.id in seen:
                raise DataError(f"{place}: the id {question.id!r} is used twice; ids must be unique")
            seen.add(question.id)

    @classmethod
    def load(cls, folder: str | Path) -> QuestionSet:
        """Load the questions of a prepared folder.

        Raises:
            DataError: if it is no prepared folder, or a file of it was truncated or changed by hand.
        """
        folder = Path(folder).resolve()
        manifest = read_manifest(folder)
        path = folder / QUESTIONS
        data = path.read_bytes()
        if _digest(data) != manifest.fingerprint:
            raise DataError(f"{path}: was changed after it was prepared: {AGAIN}")
        try:
            rows = tuple(_decoder.decode_lines(data))
        except BAD_JSON:
            rows = tuple(question for _, question in read_jsonl(path, Question))  # names the line
        self = cls.__new__(cls)
        self._fill(rows, manifest.name, folder, None)
        self._check(f"{path}:{number}" for number in range(1, len(rows) + 1))
        self.__dict__["fingerprint"] = manifest.fingerprint
        return self

    @cached_property
    def fingerprint(self) -> str:
        """Hex BLAKE2b (128 bits) of the questions as JSON lines."""
        return _digest(b"".join(encode(question) + b"\n" for question in self._rows))

    @cached_property
    def _by_id(self) -> dict[str, Question]:
        return {question.id: question for question in self._rows}

    def by_id(self, id: str) -> Question:
        """The question with an id; ConfigError with the nearest id if there is none."""
        return lookup(self._by_id, id, f"question id in {self.name!r}")

    def split(self, split: str) -> QuestionSet:
        """The questions of one split, in order.

        Raises:
            ConfigError: if there is no such split, or the set has no question in it; names those that it has.
        """
        wanted = lookup(dict(zip(SPLITS, SPLITS, strict=True)), split, "split")
        rows = tuple(question for question in self._rows if question.split == wanted)
        if not rows:
            held = Counter(question.split for question in self._rows)
            have = ", ".join(f"{name} ({held[name]:,})" for name in SPLITS if held[name]) or "none"
            raise ConfigError(f"{self.name}: wanted questions of split {split!r}; the splits it has: {have}")
        if len(rows) == len(self):
            return self
        part = QuestionSet.__new__(QuestionSet)
        part._fill(rows, self.name, self.folder, wanted)
        return part

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Question: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Question, ...]: ...
    def __getitem__(self, index: int | slice) -> Question | tuple[Question, ...]:
        return self._rows[index]

    def __iter__(self) -> Iterator[Question]:
        return iter(self._rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, QuestionSet) and self._rows == other._rows

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __copy__(self) -> QuestionSet:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> QuestionSet:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        if self.folder is None:
            return QuestionSet, (self._rows, self.name)
        return _reload, (self.folder, self._split, self.fingerprint)

    def __repr__(self) -> str:
        return f"QuestionSet({self.name!r}, {len(self):,} questions, {self.fingerprint[:8]})"


def refuse_overlap(a: QuestionSet, b: QuestionSet) -> None:
    """Refuse two sets that share a question, by id: one may not be trained on and the other measured."""
    shared = a._by_id.keys() & b._by_id.keys()
    if shared:
        raise ConfigError(
            f"{a.name!r} and {b.name!r} share {len(shared):,} question ids, {min(shared)!r} among them: "
            "wanted sets without a common question; take different splits"
        )


def _reload(folder: Path, split: Split | None, fingerprint: str) -> QuestionSet:
    questions = QuestionSet.load(folder)
    if split is not None:
        questions = questions.split(split)
    if questions.fingerprint != fingerprint:
        raise DataError(
            f"{folder}: wanted the questions with fingerprint {fingerprint}, found {questions.fingerprint}: "
            "the folder was made again since; make what refers to it again"
        )
    return questions


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


_decoder = msgspec.json.Decoder(Question)
