"""Rows of a file, whatever it is written in: JSON lines, a JSON array, csv (each also as .gz), parquet."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import msgspec

from mempo_env.errors import DataError, MissingExtra
from mempo_env.files import BAD_JSON

Row = dict[str, Any]


def rows(path: Path) -> Iterator[tuple[str, Row]]:
    """Yield (place, row) of a file; the place names file and line, or file and row.

    Only a JSON array is read whole; the others are streamed.

    Raises:
        DataError: if there is no such file, it is empty or not what it seems to be; names file and line.
    """
    if path.is_dir():
        raise DataError(f"{path}: wanted a file, got a folder: name the files in it")
    if not path.is_file():
        raise DataError(f"{path}: wanted a file, found none")
    none = True
    try:
        for item in _read(path):
            none = False
            yield item
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path}: wanted a gzip file: {error}; is it truncated?") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: wanted UTF-8 text: {error}") from None
    if none:
        raise DataError(f"{path}: wanted rows, found an empty file")


def _read(path: Path) -> Iterator[tuple[str, Row]]:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if ".parquet" in suffixes:
        yield from _parquet(path)
        return
    with io.BufferedReader(gzip.open(path) if ".gz" in suffixes else path.open("rb")) as file:
        if ".csv" in suffixes:
            yield from _csv(path, file)
            return
        start = file.peek(64)[:64].lstrip()
        if start[:1] == b"[":
            yield from _array(path, file.read())
        elif start[:1] in (b"{", b""):
            yield from _lines(path, file)
        else:
            raise DataError(
                f"{path}:1: wanted JSON lines, a JSON array, parquet or csv, got a file that starts with "
                f"{bytes(start[:16])!r}"
            )


def _lines(path: Path, file: IO[bytes]) -> Iterator[tuple[str, Row]]:
    for number, line in enumerate(file, 1):
        if line.strip():
            yield f"{path}:{number}", _object(line, f"{path}:{number}")


def _array(path: Path, data: bytes) -> Iterator[tuple[str, Row]]:
    try:
        items = msgspec.json.decode(data, type=list[msgspec.Raw])
    except BAD_JSON as error:
        raise DataError(f"{path}: wanted a JSON array: {error}; is the file truncated?") from None
    for number, item in enumerate(items, 1):
        yield f"{path}, row {number}", _object(item, f"{path}, row {number}")


def _object(data: bytes | msgspec.Raw, place: str) -> Row:
    try:
        return _decoder.decode(data)
    except BAD_JSON as error:
        raise DataError(f"{place}: wanted a JSON object: {error}; is the file truncated?") from None


def _csv(path: Path, file: IO[bytes]) -> Iterator[tuple[str, Row]]:
    """Rows by the names in the header, or, without one, of a question and its answer."""
    lines = csv.reader(io.TextIOWrapper(file, "utf-8-sig", newline=""))
    names = ["question", "answer"]
    try:
        for number, cells in enumerate(lines):
            if number == 0 and "question" in (lower := [cell.strip().lower() for cell in cells]):
                names = lower
            elif any(cell.strip() for cell in cells):
                place = f"{path}:{lines.line_num}"
                if len(cells) != len(names):
                    wanted = f"{len(names)} columns ({', '.join(names)})"
                    raise DataError(f"{place}: wanted {wanted}, got {len(cells)}")
                yield place, dict(zip(names, cells, strict=True))
    except csv.Error as error:
        raise DataError(f"{path}:{lines.line_num}: wanted csv: {error}") from None


def _parquet(path: Path) -> Iterator[tuple[str, Row]]:
    """Rows as plain Python values: lists stay lists, whose truth value can be asked."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingExtra("pyarrow", "data") from None
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches(batch_size=1024):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path}, row {number}", row
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path}: wanted a parquet file: {error}; is it truncated?") from None


_decoder: msgspec.json.Decoder[Row] = msgspec.json.Decoder(Row)
