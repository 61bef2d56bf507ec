"""Files and folders that appear whole or not at all: odd places, full disks, killed writers."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from mempo_env.errors import ConfigError, MempoError
from mempo_env.files import atomic_file, atomic_folder, read_jsonl
from mempo_env.types import Passage


def write(path: Path, data: bytes = b"new") -> None:
    with atomic_file(path) as out:
        out.write(data)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
@pytest.mark.parametrize("linked", [False, True])
def test_what_is_no_file_is_not_replaced(tmp_path: Path, make: object, linked: bool) -> None:
    path = tmp_path / "there"
    make(path)  # type: ignore[operator]
    if linked:
        (tmp_path / "link").symlink_to(path)
    before = path.stat()
    with pytest.raises(ConfigError, match="there: wanted a place for a file"):
        write(tmp_path / "link" if linked else path)
    assert path.stat().st_ino == before.st_ino and path.stat().st_mode == before.st_mode


def test_a_device_is_not_replaced() -> None:
    with pytest.raises(ConfigError, match="/dev/null: wanted a place for a file"):
        write(Path("/dev/null"))
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize("exists", [False, True])
def test_a_link_is_written_through(tmp_path: Path, exists: bool) -> None:
    target, link = tmp_path / "a" / "target", tmp_path / "link"
    link.symlink_to(target)
    if exists:
        write(target, b"old")
    write(link)
    assert link.is_symlink() and target.read_bytes() == b"new"


def test_a_folder_may_be_put_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with atomic_folder(tmp_path / "link") as draft:
        (draft / "file").write_text("x")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "target" / "file").read_text() == "x"


KILLED = """
import os, signal, sys
from pathlib import Path
from mempo_env import files
with getattr(files, sys.argv[1])(Path(sys.argv[2])) as out:
    if sys.argv[1] == "atomic_folder":
        (out / "part").write_text("x")
    else:
        out.write(b"x")
    os.kill(os.getpid(), int(sys.argv[3]))
"""


@pytest.mark.parametrize("number", [9, 15])
@pytest.mark.parametrize("kind", ["atomic_file", "atomic_folder"])
def test_what_a_killed_process_left_is_removed_by_the_next_and_nothing_else(
    tmp_path: Path, kind: str, number: int
) -> None:
    path, mine = tmp_path / "[x]", tmp_path / ".[x].mine.tmp"
    mine.write_text("not a draft")
    with atomic_folder(path) as used:
        (used / "part").write_text("in use")
        killed = subprocess.run([sys.executable, "-c", KILLED, kind, str(path), str(number)])
        assert killed.returncode == -number
        (left,) = set(tmp_path.iterdir()) - {used, mine}
        if kind == "atomic_folder":
            with atomic_folder(path):
                assert not left.exists()
        else:
            write(path)
            assert not left.exists()
            path.unlink()
        assert (used / "part").read_text() == "in use"  # by another writer, who lives
    assert set(tmp_path.iterdir()) <= {path, mine}


def test_a_folder_may_hold_files_that_appear_whole(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "out") as draft:
        write(draft / "file")
    assert (tmp_path / "out" / "file").read_bytes() == b"new"


def test_a_full_disk_names_the_file_and_leaves_nothing(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, hard))
    try:
        with pytest.raises(OSError) as caught:
            write(tmp_path / "big", b"x" * 10_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.filename == str(tmp_path / "big")
    assert list(tmp_path.iterdir()) == []


def test_json_that_is_nested_too_deep_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "deep.jsonl"
    path.write_text('{"id": "a", "title": "t", "text": "x"}\n{"z": ' + "[" * 100_000 + "]" * 100_000 + "}\n")
    with pytest.raises(MempoError, match=r"deep\.jsonl:2: maximum recursion depth"):
        list(read_jsonl(path, Passage))
