"""What an index folder promises: the corpus it is of, what made it, and the files that belong to it."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct

from mempo_env.errors import IndexFault
from mempo_env.files import BAD_JSON, atomic_file, digest, file_digest

MANIFEST_FILE = "manifest.json"


class Recipe(Struct, frozen=True):
    """What decides the content of an index: two indexes of one recipe rank alike.

    Attributes:
        kind: The kind of index and the version of its layout.
        engine: The library that writes and reads it, with its version.
        analysis: Version of the analysis of text.
        corpus: Fingerprint of the corpus.
        passages: Number of passages.
    """

    kind: str
    engine: str
    analysis: int
    corpus: str
    passages: int


class _File(Struct, frozen=True):
    """A file as it was when it was finished: bytes, time of change (ns) and digest."""

    size: int
    mtime_ns: int
    digest: str


class _Manifest(Struct, frozen=True):
    recipe: Recipe
    files: dict[str, _File]
    check: str


def _check(recipe: Recipe, files: dict[str, _File]) -> str:
    return digest(msgspec.json.encode((recipe, files)))


def write_manifest(folder: Path, recipe: Recipe, names: list[str]) -> None:
    """Write the manifest, last of all files: without it a folder is no index."""
    files = {name: _describe(folder / name) for name in sorted(names)}
    with atomic_file(folder / MANIFEST_FILE) as out:
        out.write(msgspec.json.format(msgspec.json.encode(_Manifest(recipe, files, _check(recipe, files)))))


def _describe(path: Path) -> _File:
    stat = path.stat()
    return _File(stat.st_size, stat.st_mtime_ns, file_digest(path))


def check_manifest(folder: Path, recipe: Recipe, remedy: str, verify: bool = False) -> None:
    """Check that a folder holds a whole index of this recipe.

    A file whose size and time of change are those of the manifest is trusted; where only the time differs (a
    copied folder) its digest is compared, once, as the manifest then takes the new time.

    Args:
        folder: The index.
        recipe: What it must have been made of.
        remedy: What to do if it is not, for the message.
        verify: Compare every digest, also of files that look untouched.

    Raises:
        IndexFault: if the index is missing, unfinished, truncated, edited, or of another recipe.
    """
    manifest = _read(folder, remedy)
    if manifest.recipe != recipe:
        raise IndexFault(f"{folder}: {_difference(manifest.recipe, recipe)}; {remedy}")
    touched = False
    for name, promised in manifest.files.items():
        path = folder / name
        if not path.is_file():
            raise IndexFault(f"{path}: wanted this file of the index, found none; {remedy}")
        stat = path.stat()
        if stat.st_size != promised.size:
            raise IndexFault(
                f"{path}: wanted {promised.size:,} bytes, found {stat.st_size:,}: the index is truncated or "
                f"edited; {remedy}"
            )
        moved = stat.st_mtime_ns != promised.mtime_ns
        if (moved or verify) and file_digest(path) != promised.digest:
            raise IndexFault(f"{path}: its content is not what was written: the index was edited; {remedy}")
        touched = touched or moved
    if touched:
        try:
            write_manifest(folder, recipe, list(manifest.files))
        except OSError:  # a read-only place: the digests are compared again next time
            return


def _read(folder: Path, remedy: str) -> _Manifest:
    path = folder / MANIFEST_FILE
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=_Manifest)
    except FileNotFoundError:
        raise IndexFault(f"{folder}: wanted a finished index, found no {MANIFEST_FILE}; {remedy}") from None
    except BAD_JSON as error:
        raise IndexFault(f"{path}: wanted the manifest of an index: {error}; {remedy}") from None
    if manifest.check != _check(manifest.recipe, manifest.files):
        raise IndexFault(f"{path}: its check sum is wrong: the manifest was edited; {remedy}")
    return manifest


def _difference(found: Recipe, wanted: Recipe) -> str:
    name = next(
        field for field in Recipe.__struct_fields__ if getattr(found, field) != getattr(wanted, field)
    )
    what = {"corpus": "the fingerprint of the corpus", "passages": "the number of passages"}.get(name, name)
    return f"wanted an index with {what} {getattr(wanted, name)!r}, found {getattr(found, name)!r}"
