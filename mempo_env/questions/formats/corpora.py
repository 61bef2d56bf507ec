"""Passages from files of other projects: wiki-18, BEIR, and plain ones."""

from __future__ import annotations

import html
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from mempo_env.errors import DataError
from mempo_env.questions.formats.rows import rows
from mempo_env.types import Passage, passage_id


class _Row(Struct, frozen=True):
    title: str | None = None
    text: str | None = None
    contents: str | None = None


def passages(path: Path) -> Iterator[Passage]:
    """The passages of a file, one at a time; those without text are left out.

    Rows have `title` and `text` (plain, BEIR), or `contents` that start with a line `"Title"` (wiki-18).

    Raises:
        DataError: if a row is none of these; names file and line.
    """
    for place, row in rows(path):
        try:
            fields = msgspec.convert(row, _Row)
        except msgspec.ValidationError as error:
            raise DataError(f"{place}: wanted a passage: {error}") from None
        if fields.text is not None:
            title, text = fields.title or "", fields.text
        elif fields.contents is not None:
            title, _, text = fields.contents.partition("\n")
            title = title[1:-1] if len(title) > 1 and title[0] == title[-1] == '"' else title
        else:
            raise DataError(
                f"{place}: wanted a passage: title and text, or contents; got {', '.join(row) or 'nothing'}"
            )
        if text.strip():
            yield passage(title, text)


def passage(title: str, text: str) -> Passage:
    """A passage named by its content; escaped characters of the title (`&amp;`) become plain."""
    title, text = html.unescape(title).strip(), text.strip()
    return Passage(passage_id(title, text), title, text)
