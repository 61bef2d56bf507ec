"""A corpus: passages in a file of JSON lines, memory-mapped, each found by its row."""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from mempo_env.errors import DataError
from mempo_env.files import BAD_JSON, atomic_file, cache_folder, digest
from mempo_env.progress import progress
from mempo_env.types import Passage

CORPUS_FILE = "corpus.jsonl"

_VERSION = 1
_HEADER = 5  # numbers before the offsets: version, size and mtime of the corpus, and its digest (two numbers)
_CHUNK = 65_536  # offsets written at once

_decoder = msgspec.json.Decoder(Passage)
_encoder = msgspec.json.Encoder()


class Corpus:
    """Passages by row, read from a memory-mapped file when they are asked for.

    Rows are 0, 1, ... in the order of the file. A corpus never changes: it copies to itself, pickles by path
    and fingerprint, and may be used from several threads and by forked processes.

    Attributes:
        path: The file; None for a corpus in memory.
        fingerprint: Hex BLAKE2b (128 bits) of the file's bytes.
    """

    path: Path | None
    fingerprint: str

    def __init__(
        self, lines: mmap.mmap | bytes, starts: NDArray[np.uint64], fingerprint: str, path: Path | None
    ) -> None:
        """Take N lines and the N + 1 offsets between which they lie; use `open` or `of`."""
        self._view = memoryview(lines)
        self._starts = starts
        self._length = len(starts) - 1
        self.fingerprint = fingerprint
        self.path = path

    @classmethod
    def open(cls, path: Path) -> Corpus:
        """Open a file of passages, one JSON object a line: `{"id": str, "title": str, "text": str}`.

        The first time, the file is read once: every line is checked, and the rows' offsets are kept beside it
        in a file that ends in `.rows` (in the cache folder if the place is read-only). Later it opens in
        milliseconds, whatever its size. A file whose size or time of change is another is read again, as is
        one whose rows were changed: they carry the time of their corpus, which any change to them ends.

        Raises:
            DataError: if there is no such file or a line is not a passage; names file and line.
        """
        path = Path(path).resolve()
        if not path.is_file():
            raise DataError(f"{path}: wanted a corpus, one passage a line, found no such file")
        stat = path.stat()
        rows = _current_rows(path, stat) or _make_rows(path, stat)
        numbers = np.asarray(np.memmap(rows, dtype=np.uint64, mode="r"))
        with path.open("rb") as file:
            lines = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if stat.st_size else b""
        return cls(lines, numbers[_HEADER:], numbers[3:_HEADER].tobytes().hex(), path)

    @classmethod
    def of(cls, passages: Iterable[Passage]) -> Corpus:
        """Make a corpus in memory; its fingerprint is that of the file it would be written to."""
        lines = [_encoder.encode(passage) + b"\n" for passage in passages]
        starts = np.cumsum([0, *map(len, lines)], dtype=np.uint64)
        return cls(data := b"".join(lines), starts, hashlib.blake2b(data, digest_size=16).hexdigest(), None)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, row: int) -> Passage:
        """The passage in a row, 0 <= row < len; IndexError outside, also for -1, which no index may mean."""
        if not 0 <= row < self._length:
            raise IndexError(f"wanted a row of 0 to {self._length - 1}, got {row}")
        return _decoder.decode(self._view[int(self._starts[row]) : int(self._starts[row + 1])])

    def __iter__(self) -> Iterator[Passage]:
        return map(self.__getitem__, range(self._length))

    def __copy__(self) -> Corpus:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Corpus:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        if self.path is None:
            return Corpus, (bytes(self._view), self._starts, self.fingerprint, None)
        return _reopen, (self.path, self.fingerprint)

    def __repr__(self) -> str:
        return f"Corpus({str(self.path) if self.path else 'in memory'}, {self._length:,} passages)"


def _reopen(path: Path, fingerprint: str) -> Corpus:
    corpus = Corpus.open(path)
    if corpus.fingerprint != fingerprint:
        raise DataError(
            f"{path}: wanted the corpus with fingerprint {fingerprint}, found {corpus.fingerprint}: the file "
            "has been changed; make what refers to it again"
        )
    return corpus


def _places(path: Path) -> tuple[Path, Path]:
    """Where the rows of a corpus may lie: beside it, or in the cache folder."""
    return path.with_suffix(".rows"), cache_folder() / "rows" / f"{digest(str(path))}.rows"


def _current_rows(path: Path, stat: os.stat_result) -> Path | None:
    """The rows file that was made from the corpus as it is now; None if there is none."""
    wanted = [_VERSION, stat.st_size, stat.st_mtime_ns]
    for place in _places(path):
        try:
            size, changed_ns = place.stat().st_size, place.stat().st_mtime_ns
            head = np.fromfile(place, dtype=np.uint64, count=_HEADER)
            last = np.fromfile(place, dtype=np.uint64, offset=size - 8, count=1)
        except (OSError, ValueError):
            continue
        whole = size % 8 == 0 and size >= (_HEADER + 1) * 8 and head[:3].tolist() == wanted
        if whole and changed_ns == stat.st_mtime_ns and last.tolist() == [stat.st_size]:
            return place
    return None


def _make_rows(path: Path, stat: os.stat_result) -> Path:
    """Check every line of a corpus and write its rows file; memory does not grow with the corpus."""
    beside, cached = _places(path)
    place = beside if os.access(path.parent, os.W_OK) else cached
    with atomic_file(place) as out:
        _write_rows(path, stat, out)
        out.flush()
        os.utime(out.fileno(), ns=(stat.st_mtime_ns, stat.st_mtime_ns))
    return place


def _write_rows(path: Path, stat: os.stat_result, out: IO[bytes]) -> None:
    """Write header, the start of every row, and the size of the file as the end of the last."""
    state, position, told = hashlib.blake2b(digest_size=16), 0, 0
    starts: list[int] = []
    out.write(bytes(_HEADER * 8))
    with path.open("rb") as lines, progress(f"reading {path.name}", stat.st_size, unit="bytes") as advance:
        for number, line in enumerate(lines, 1):
            state.update(line)
            if line.strip():
                _check(path, number, line)
                starts.append(position)
            position += len(line)
            if number % _CHUNK == 0:
                out.write(np.array(starts, dtype=np.uint64).tobytes())
                starts.clear()
                advance(position - told)
                told = position
        advance(position - told)
    out.write(np.array([*starts, position], dtype=np.uint64).tobytes())
    out.seek(0)
    out.write(np.array([_VERSION, position, stat.st_mtime_ns], dtype=np.uint64).tobytes() + state.digest())


def _check(path: Path, number: int, line: bytes) -> None:
    try:
        _decoder.decode(line)
    except BAD_JSON as error:
        raise DataError(
            f"{path}:{number}: wanted a passage with id, title and text: {error}; is the file truncated?"
        ) from None
