"""`make parity` where it cannot run, and what it does with numbers that disagree."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

PARITY = Path(__file__).parent / "parity"


def compare(folder: Path, rows: str) -> subprocess.CompletedProcess[str]:
    """Run the comparison of a single file that yields these rows."""
    for name in ("compare.py", "table.py"):
        shutil.copy(PARITY / name, folder)
    (folder / "typed_parity.py").write_text(f"from table import row\n\ndef rows():\n    return [{rows}]\n")
    code = "import compare, sys; compare.PEERS = ('numpy',); sys.exit(compare.main())"
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)


def test_equal_numbers_agree(tmp_path: Path) -> None:
    done = compare(tmp_path, "row('a loss', [2.0, [1.0, 3.0]], [2.0, [1.0, 3.0000001]])")
    assert done.returncode == 0, done.stderr
    assert "a loss" in done.stdout and "agrees" in done.stdout and "1 comparisons, 0 wrong\n" in done.stdout


def test_a_difference_in_any_of_the_pairs_ends_with_1_and_names_it(tmp_path: Path) -> None:
    for theirs in ("[2.0, [1.0, 3.001]]", "[2.0, [1.0, float('nan')]]"):
        done = compare(tmp_path, f"row('fine', [1], [1]), row('bad', [2.0, [1.0, 3.0]], {theirs})")
        assert done.returncode == 1
        assert "DISAGREES" in done.stdout and "2 comparisons, 1 wrong: bad\n" in done.stdout


def test_a_convention_that_differs_must_still_differ(tmp_path: Path) -> None:
    done = compare(tmp_path, "row('clamp', [1.0], [2.0], 'theirs is clamped')")
    assert (done.returncode, "differs, as meant: theirs is clamped" in done.stdout) == (0, True)
    done = compare(tmp_path, "row('clamp', [1.0], [1.0], 'theirs is clamped')")
    assert (done.returncode, "NO LONGER differs" in done.stdout) == (1, True)


def test_arrays_of_other_shapes_are_never_broadcast(tmp_path: Path) -> None:
    done = compare(tmp_path, "row('shapes', [[1.0, 1.0]], [1.0])")
    assert done.returncode != 0 and "shapes" in done.stderr


def test_an_environment_that_cannot_be_installed_skips_in_one_line(tmp_path: Path) -> None:
    nowhere = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}
    command = [sys.executable, str(PARITY), str(tmp_path / "venv")]
    done = subprocess.run(command, env={**os.environ, **nowhere}, capture_output=True, text=True)
    assert done.returncode == 0
    (line,) = done.stdout.splitlines()
    assert line.startswith("parity: skipped, for ") and "torch==2.13.0" in line
    assert not (tmp_path / "venv" / ".parity").exists()


def test_a_folder_that_cannot_be_made_skips_too(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    command = [sys.executable, str(PARITY), str(tmp_path / "file" / "venv")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("parity: skipped, for ")
