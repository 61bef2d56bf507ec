"""Files that are never half-written, read with the file and line in every complaint."""

from __future__ import annotations

import fcntl
import glob
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, TypeVar

import msgspec

from mempo_env.errors import ConfigError, DataError

T = TypeVar("T")

BAD_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that are not the JSON it wanted; the last one if they are nested too deep."""


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
    """Write a file that appears under its name whole and on disk, or not at all; a link leads to its target.

    Raises:
        ConfigError: if there is something that is no file: a folder, a device, a pipe.
    """
    path = _place(path)
    with _draft(path, folder=False) as draft:
        with draft.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.chmod(0o666 & ~_umask())
        draft.replace(path)


@contextmanager
def atomic_named(path: Path) -> Iterator[Path]:
    """As `atomic_file`, for a library that writes by name: yields one in a hidden folder.

    Whatever else it leaves beside it, by a process that was killed, too, goes away with that folder.
    """
    path = _place(path)
    with _draft(path, folder=True) as folder:
        draft = folder / path.name
        yield draft
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        draft.chmod(0o666 & ~_umask())
        draft.replace(path)


def check_place(path: Path) -> None:
    """Raise what `atomic_file` would, before the work whose result is to lie there; makes its folder."""
    with _draft(_place(path), folder=False):
        pass


def _place(path: Path) -> Path:
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path}: wanted a place for a file, found something else there: choose another")
    return path


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Fill a new folder that appears under its name whole, or not at all; a link leads to its target.

    Its files can be read by whom the umask lets, whatever wrote them thought of that. If another process puts
    a folder there first, that one stays and ours is dropped: use it for content that depends on its inputs
    alone.
    """
    path = Path(os.path.realpath(path))
    with _draft(path, folder=True) as draft:
        yield draft
        mask = _umask()
        for file in draft.rglob("*"):
            if file.is_file() and not file.is_symlink():
                file.chmod(0o666 & ~mask)
        draft.chmod(0o777 & ~mask)
        try:
            draft.rename(path)
        except OSError:
            if not path.is_dir():
                raise


@contextmanager
def _draft(path: Path, folder: bool) -> Iterator[Path]:
    """A hidden file or folder beside a path; gone at the end unless it was moved to the path.

    It is locked while it is in use, so drafts without a lock are those of killed processes: they go away too.
    """
    named = (".tmp", f".{path.name}.", path.parent)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for left in path.parent.glob(f".{glob.escape(path.name)}.????????.tmp"):
            with suppress(OSError), _lock(left, fcntl.LOCK_NB) as free:
                if free:
                    _remove(left)
        with ExitStack() as use:
            while True:
                draft = Path(tempfile.mkdtemp(*named) if folder else _new_file(*named))
                with suppress(FileNotFoundError):
                    use.enter_context(_lock(draft))
                if draft.exists():  # else another process took it for one of those, before it was locked
                    break
            use.callback(_remove, draft)
            yield draft
    except OSError as error:
        error.filename = error.filename or str(path)  # a full disk names no file
        raise


@contextmanager
def _lock(path: Path, how: int = 0) -> Iterator[bool]:
    """Hold the only lock on a file or folder, until a process dies; yields False where there are no locks."""
    handle = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | how)
        except OSError:  # another holds it, or the file system has none
            yield False
        else:
            yield True
    finally:
        os.close(handle)


def _new_file(suffix: str, prefix: str, parent: Path) -> str:
    handle, name = tempfile.mkstemp(suffix, prefix, parent)
    os.close(handle)
    return name


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def read_jsonl(
    path: Path, type: type[T], hint: str = "; is the file truncated or edited by hand?"
) -> Iterator[tuple[int, T]]:
    """Yield (line number, row) of a JSON-lines file, each row checked against a type.

    The hint ends the message for a line that is not of it.

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
            except BAD_JSON as error:
                raise DataError(f"{path}:{number}: {error}{hint}") from None


def cache_folder() -> Path:
    """Where what can be made again is kept: $MEMPO_CACHE, else $XDG_CACHE_HOME/mempo, else ~/.cache/mempo."""
    named = os.environ.get("MEMPO_CACHE")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "mempo"
