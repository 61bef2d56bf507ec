"""What the readers of all formats share: where a row comes from, what it gives, its fields checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from mempo_env.errors import DataError, lookup
from mempo_env.files import digest
from mempo_env.questions.formats.rows import Row
from mempo_env.types import Passage, Question, Split

T = TypeVar("T", bound=Struct)

SPLIT_NAMES: dict[str, Split] = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("dev", "development", "validation", "valid", "val"), "dev"),
    **dict.fromkeys(("test", "testing"), "test"),
}


class Source(Struct, frozen=True):
    """Where a row comes from: file, line or row, and what the whole file has in common.

    Attributes:
        path: The file.
        place: File and line, for messages.
        number: Counts the rows of the file from 1.
        forced: The split of all questions, whatever their rows say.
        split: The split of the file, for rows that say none.
        name: The data set.
    """

    path: Path
    place: str
    number: int
    forced: Split | None
    split: Split | None
    name: str

    def split_of(self, id: str, said: str | None = None) -> Split:
        """The split of a question: as its row says, else its file, else by a hash of its id, 70 : 15 : 15."""
        if self.forced:
            return self.forced
        if said:
            return lookup(SPLIT_NAMES, said.lower(), f"split in {self.place}:")
        share = int(digest(id), 16) / 2**64
        return self.split or ("train" if share < 0.70 else "dev" if share < 0.85 else "test")


class Item(Struct, frozen=True, kw_only=True):
    """What a row gives.

    Attributes:
        question: The question.
        passages: The paragraphs that the row carries.
        lost: Supporting facts that point to a title or sentence that is not there.
    """

    question: Question
    passages: tuple[Passage, ...] = ()
    lost: int = 0


Reader = Callable[[Row, Source], Iterator[Item]]


def fields(row: Row, type: type[T], source: Source) -> T:
    """The row as a struct; DataError with its place and id if it does not fit."""
    try:
        return msgspec.convert(row, type)
    except msgspec.ValidationError as error:
        id = next((row[key] for key in ("id", "_id", "qas_id") if key in row), None)
        raise DataError(f"{source.place}{f', id {id!r}' if id else ''}: {error}") from None


def answers_of(given: str | Sequence[str]) -> tuple[str, ...]:
    """Answers as a tuple without blank or repeated ones; a single one may come bare."""
    listed = [given] if isinstance(given, str) else given
    return tuple(dict.fromkeys(answer.strip() for answer in listed if answer.strip()))
