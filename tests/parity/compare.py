"""Runs every `*_parity.py` of this folder and prints one table; ends with 1 if any comparison is wrong."""

from __future__ import annotations

import importlib
import sys
from importlib.metadata import version
from pathlib import Path

from table import table

PEERS = ("verl", "trl", "torch", "numpy", "mempo")

NOT_COMPARED = """\
Not compared: TRL's advantages, which it computes in the midst of generating: (R - mean) / (std + 1e-4) in a
group, with ddof 1. verl's eps is 1e-6, and so is our default.
"""


def main() -> int:
    """All rows of all files."""
    names = sorted(path.stem for path in Path(__file__).parent.glob("*_parity.py"))
    rows = [row for name in names for row in importlib.import_module(name).rows()]
    sys.stdout.write(", ".join(f"{name} {version(name)}" for name in PEERS) + "\n\n")
    sys.stdout.write(f"{table(rows)}\n{NOT_COMPARED}")
    wrong = [row.what for row in rows if not row.right]
    sys.stdout.write(
        f"{len(rows)} comparisons, {len(wrong)} wrong{': ' if wrong else ''}{'; '.join(wrong)}\n"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
