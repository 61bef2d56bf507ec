"""What a comparison yields: rows, and a table of them.

A file `*_parity.py` beside this one has a function `rows() -> list[Row]`; `compare.py` runs them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

TOLERANCE = 1e-6
"""Largest difference that agrees, relative to the largest number compared. verl adds 1e-8 to denominators."""


class Row(NamedTuple):
    """One comparison.

    Attributes:
        what: What is compared, and with whom.
        ours: The largest of our numbers in size.
        theirs: The largest of theirs.
        difference: The largest difference, relative to the largest number.
        differs: Why the two are meant to differ; empty where they must agree.
    """

    what: str
    ours: float
    theirs: float
    difference: float
    differs: str

    @property
    def right(self) -> bool:
        """Whether it is as it should be: a difference that is gone is a note that is wrong."""
        return (self.difference > TOLERANCE) == bool(self.differs)


def row(what: str, ours: Sequence[Any], theirs: Sequence[Any], differs: str = "") -> Row:
    """Compare numbers or arrays pairwise: say, a loss and its gradient.

    Args:
        what: For the table.
        ours: Numbers or arrays; the first is shown.
        theirs: As many, of the same shapes.
        differs: Why they are meant to differ.
    """
    pairs = [(np.asarray(a, float), np.asarray(b, float)) for a, b in zip(ours, theirs, strict=True)]
    if any(a.shape != b.shape for a, b in pairs):
        raise ValueError(f"{what}: shapes {[(a.shape, b.shape) for a, b in pairs]}")
    difference = max(float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-12)) for a, b in pairs)
    if not all(np.isfinite(a).all() and np.isfinite(b).all() for a, b in pairs):
        difference = float("inf")
    shown = [x.ravel()[np.abs(x).argmax()] for x in pairs[0]]
    return Row(what, float(shown[0]), float(shown[1]), difference, differs)


def table(rows: Sequence[Row]) -> str:
    """The rows as text, one a line."""
    width = max(len(one.what) for one in rows)
    lines = [f"{'compared':<{width}}  {'ours':>12}  {'theirs':>12}  {'difference':>10}"]
    for one in rows:
        verdict = f"differs, as meant: {one.differs}" if one.differs else "agrees"
        verdict = verdict if one.right else "DISAGREES" if not one.differs else f"NO LONGER {verdict}"
        figures = f"{one.ours:>12.6g}  {one.theirs:>12.6g}  {one.difference:>10.1e}"
        lines.append(f"{one.what:<{width}}  {figures}  {verdict}")
    return "\n".join(lines) + "\n"
