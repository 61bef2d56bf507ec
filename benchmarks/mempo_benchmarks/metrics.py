"""The figures of an episode that a report averages."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import Struct

from mempo_benchmarks.results import FAILED, Row

_FOUND = "Evidence recall: the share of the gold passages that searches brought up."
_KEPT = "The share of the gold facts that the prompt of the last call, or the memory bank, still held."
KEPT_NOTE = "evidence kept: in the last prompt; what is no longer needed may be dropped rightly"
_DEPENDENCY = "Pairs of tokens that generation attended to (MEM1): the sum of (2 prompt + output) output / 2."
_INVALID = "Rounds of an episode whose action could not be read."
_FAILED = (
    "Episodes ended by an error of agent, model, memory or retriever, or a timeout; they count as wrong."
)


class Metric(Struct, frozen=True):
    """A figure of an episode, averaged over all of them.

    Attributes:
        key: Its name in data.
        label: Its name in tables.
        about: What it is, in a sentence.
        of: From a row to its value; None where it is undefined.
        share: Whether it lies in [0, 1].
        tokens: Whether it counts tokens, which not all agents count in the same unit.
    """

    key: str
    label: str
    about: str
    of: Callable[[Row], float | None]
    share: bool = False
    tokens: bool = False


METRICS = (
    Metric("em", "EM", "Exact match, the mean over an episode's questions.", lambda r: r.em, True),
    Metric("f1", "F1", "Overlap of words, the mean over an episode's questions.", lambda r: r.f1, True),
    Metric("em_relaxed", "EM relaxed", "EM with dashes and accents folded.", lambda r: r.em_relaxed, True),
    Metric("evidence_recall", "evidence found", _FOUND, lambda r: r.evidence_recall, True),
    Metric("evidence_kept", "evidence kept", _KEPT, lambda r: r.evidence_kept, True),
    Metric("rounds", "rounds", "Rounds of an episode.", lambda r: r.rounds),
    Metric(
        "peak", "peak tokens", "The longest single call, prompt and output.", lambda r: r.peak, tokens=True
    ),
    Metric("total", "total tokens", "Prompts and outputs of all calls.", lambda r: r.total, tokens=True),
    Metric("dependency", "dependency", _DEPENDENCY, lambda r: r.dependency, tokens=True),
    Metric("invalid_rounds", "invalid rounds", _INVALID, lambda r: r.invalid_rounds),
    Metric("failed", "failed", _FAILED, lambda r: float(r.stop_reason in FAILED), True),
)


def units(rows: Iterable[Row]) -> list[str]:
    """What the tokens of some rows are, each unit once; rows without a call have none."""
    return list(dict.fromkeys(row.unit for row in rows if row.total))
