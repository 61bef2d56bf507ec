"""The figures of a run, and what a finding says."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct

from mempo_trainers.credit.data import Floats

Rows: TypeAlias = Sequence[Mapping[str, Any]]
Settings: TypeAlias = Mapping[str, Any]

SOLVED = 0.9
"""Success from which on nothing is left to learn: dead groups and a flat reward are as they should be."""

UNREAD = 0.5
"""Share of invalid rounds from which on a run mostly learns that nothing is worth anything."""

NOISE = 3.0
"""Standard errors that a change between two parts of a run must pass: by chance one run in 700 does."""

FLAT = 0.02
"""Gain in reward that is worth nothing, in units of a full reward."""

SUMS = frozenset({"token-sum", "seq-mean-token-sum", "seq-mean-token-sum-norm"})
"""Aggregations under which the metrics `entropy` and `kl` are no means over tokens."""


class Finding(Struct, frozen=True, kw_only=True):
    """Something that is wrong.

    Attributes:
        symptom: Its name, a key of `SYMPTOMS`.
        severity: "error": this run can teach nothing more or its figures are wrong; "warning": look at it.
        evidence: The figures, and of which steps.
        threshold: What they passed.
        action: What to do next.
    """

    symptom: str
    severity: str
    evidence: str
    threshold: str
    action: str


def column(rows: Rows, name: str) -> Floats:
    """A field of all rows."""
    return np.array([row[name] for row in rows], np.float64)


def numbers(rows: Rows) -> Rows:
    """The rows whose advantages are numbers."""
    names = [f"advantage_{part}" for part in ("first", "later", "memory", "other")]
    return [row for row in rows if all(math.isfinite(row.get(name, 0.0)) for name in names)]


def quarters(values: Floats) -> tuple[Floats, Floats]:
    """The first and the last quarter."""
    size = max(len(values) // 4, 1)
    return values[:size], values[-size:]


def noise(first: Floats, last: Floats) -> float:
    """The standard error of the difference of two means; steps count as independent."""
    return math.sqrt(sum(float(part.var(ddof=1)) / len(part) for part in (first, last) if len(part) > 1))


def steps_of(rows: Rows) -> str:
    """The steps of some rows, in words."""
    first, last = rows[0]["step"], rows[-1]["step"]
    return f"step {first}" if first == last else f"steps {first}-{last}"


def configured(settings: Settings, name: str, default: Any) -> Any:
    """A setting of the loop, also of one that imitates."""
    config = settings.get("config", settings.get("sft"))
    return config.get(name, default) if isinstance(config, dict) else default


def option(settings: Settings, name: str, value: str = "") -> str:
    """A setting of the loop or the task as the run's own command takes it: of its own, or by --set."""
    if not by_set(settings):
        return f"--{name.replace('_', '-')} {value}".rstrip()
    whole = _TASK.get(name, f"{'sft' if 'sft' in settings else 'config'}.{name}")
    return f"--set {whole}={value}" if value else whole


_TASK = {"objectives": "task.objectives", "reward": "task.environment.reward", "max_new": "policy.max_new"}


def by_set(settings: Settings) -> bool:
    """Whether it is a run of a language model, whose settings stand in tables."""
    return isinstance(settings.get("policy"), Mapping)


def invalid_share(rows: Rows) -> float:
    """Of the rounds in the last quarter, how many could not be read; 0 where nobody counted them."""
    shares = [row["invalid"] for row in rows if "invalid" in row]
    return float(quarters(np.array(shares, np.float64))[1].mean()) if shares else 0.0


def aggregation(settings: Settings) -> str:
    """How token losses became one number."""
    return str(configured(settings, "aggregation", "token-mean"))
