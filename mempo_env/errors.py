"""The errors of the project: each says what was wanted, what came and what to do.

The command line turns every `MempoError` into one line and exit code 2; anything else is a defect of ours.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")

_LISTED = 24  # names that a message lists at most; a question set has thousands

_BRIEF = 60  # characters of a value in a message


class MempoError(Exception):
    """Any error that a user can mend."""


class ConfigError(MempoError):
    """A keyword, a name or a combination of them that cannot work."""


class KeywordError(ConfigError, TypeError):
    """A keyword that does not exist; a TypeError too, as for every other function."""


class MemoryFault(ConfigError):
    """A memory of a user's own, or a function that a bank calls, that raised or returned what it must not.

    In a round it ends its episode, with the stop reason "memory_error"; before the first round it is raised.
    """


class RenderModeError(ConfigError, TypeError):
    """A render mode that an environment lacks.

    A TypeError too: Stable-Baselines3's `make_vec_env` tries "rgb_array" first and goes on without after one.
    """


class DataError(MempoError):
    """A question or corpus file that does not hold what its format promises."""


class IndexFault(MempoError):
    """A search index that is missing, truncated, of another corpus or changed by hand."""


class RetrieverError(MempoError):
    """A retriever that still failed after its bounded retries."""


class RolloutError(MempoError):
    """All rollouts of a step, or many in a row, failed by no fault of the policy: a server must be down."""


class TrainingError(MempoError):
    """A training whose losses or gradients are not finite any more."""


class ResultsError(MempoError):
    """A results file that is truncated, edited or of another run."""


class StateError(MempoError):
    """A snapshot that does not belong to this environment."""


class MissingExtra(MempoError):
    """An optional dependency that is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"this needs {package}, which is not installed: pip install 'mempo[{extra}]'")


def brief(value: object) -> str:
    """A value on one line, cut if it is a long one, as a whole prompt is."""
    told = repr(value)
    return told if len(told) <= _BRIEF else f"{told[:_BRIEF]}..."


def lookup(table: Mapping[str, T], name: str, what: str) -> T:
    """Return `table[name]`, or raise a ConfigError that names the nearest entry."""
    if not isinstance(name, str):
        raise ConfigError(f"{what}: wanted a name, got {name!r}")
    if name in table:
        return table[name]
    near = difflib.get_close_matches(name, table, n=1, cutoff=0.6)
    guess = f"did you mean {near[0]!r}? " if near else ""
    many = len(table) > _LISTED
    choice = f"there are {len(table):,}" if many else f"choose from {', '.join(sorted(table))}"
    raise ConfigError(f"unknown {what} {name!r}: {guess}{choice}")
