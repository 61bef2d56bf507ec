"""Files that are never half-written, read with the file and line in every complaint."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TypeVar

import msgspec

from mempo_env.errors import DataError

T = TypeVar("T")


def digest(*parts: str | bytes, size: int = 8) -> str:
    """Hex BLAKE2b of the parts, each framed by its length, so that joining makes no two lists equal."""
    state = hashlib.blake2b(digest_size=size)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        state.update(len(data).to_bytes(8, "little"))
        state.update(data)
    return state.hexdigest()


def file_digest(path: Path) -> str:
    """Hex BLAKE2b (128 bits) of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """Write a file that appears under its name whole and on disk, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Fill a new folder that appears under its name whole, or not at all.

    If another process puts a folder there first, that one stays and ours is dropped: use it for content that
    depends on its inputs alone.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent))
    try:
        yield draft
        draft.chmod(0o777 & ~_umask())
        try:
            draft.rename(path)
        except OSError:
            if not path.is_dir():
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def read_jsonl(path: Path, type: type[T]) -> Iterator[tuple[int, T]]:
    """Yield (line number, row) of a JSON-lines file, each row checked against a type.

    Raises:
        DataError: if the file is missing, or a line is not JSON of that type; names file and line.
    """
    if not path.is_file():
        raise DataError(f"{path}: wanted a file of JSON lines, found none")
    decoder = msgspec.json.Decoder(type)
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                yield number, decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise DataError(
                    f"{path}:{number}: {error}; is the file truncated or edited by hand?"
                ) from None


def cache_folder() -> Path:
    """Where what can be made again is kept: $MEMPO_CACHE, else $XDG_CACHE_HOME/mempo, else ~/.cache/mempo."""
    named = os.environ.get("MEMPO_CACHE")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "mempo"
