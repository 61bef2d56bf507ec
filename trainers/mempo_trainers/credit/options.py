"""Options of estimators: what each may be, checked in every call, by name or directly."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from inspect import Parameter
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, cast

import numpy as np
from msgspec import Meta

from mempo_env.errors import ConfigError, lookup
from mempo_env.settings import check
from mempo_trainers.credit.data import Trajectories
from mempo_trainers.credit.result import Credit

Weight: TypeAlias = Annotated[float, Meta(ge=-(10**6), le=10**6)]
"""No product of weights leaves float32."""

Least: TypeAlias = Annotated[float, Meta(ge=0, le=10**6)]
"""Added to stds, or the least that they may be."""

Ddof: TypeAlias = Annotated[int, Meta(ge=0, le=1)]
"""1 (unbiased, verl's) or 0."""

Seed: TypeAlias = Annotated[int, Meta(ge=0, le=2**53)]

Objectives: TypeAlias = Literal["arithmetic", "geometric", "log"]
"""P(Z) over several objectives: the mean of their probabilities, exp of the mean of their log-probs (nearly 0
if one answer is missing), or the mean of their log-probs itself."""

Baseline: TypeAlias = Literal["full", "none", "previous"]
"""P(Z | q, s_<t), nothing, or P(Z | q, mem_t-1), which is P(Z | q) for t = 2."""

Pool: TypeAlias = Literal["all", "round"]
"""All rounds of all rollouts of a question, or those with the same number."""

Progress: TypeAlias = Literal["recall", "score"]
"""phi_t: the share of gold facts seen by round t, or P(Z | q, s_<=t)."""

E = TypeVar("E", bound=Callable[..., Credit])


def estimator(options_of: Callable[..., Any] | None = None) -> Callable[[E], E]:
    """Check the options of an estimator in every call.

    Args:
        options_of: What the estimator's `**options` stand for: the keywords of this function.
    """

    def decorate(function: E) -> E:
        signature = inspect.signature(function, eval_str=True)
        named = {n: p for n, p in signature.parameters.items() if p.kind is not Parameter.VAR_KEYWORD}
        if options_of is not None:
            named = {**named, **inspect.signature(options_of, eval_str=True).parameters, **named}
        options = dict(list(named.items())[1:])

        @functools.wraps(function)
        def checked(trajectories: Trajectories, **given: Any) -> Credit:
            _check(function.__name__, options, given)
            return function(trajectories, **given)

        checked.__signature__ = signature.replace(parameters=list(named.values()))  # type: ignore[attr-defined]
        return cast(E, checked)

    return decorate


def check_options(name: str, function: Callable[..., Credit], given: Mapping[str, Any]) -> None:
    """Raise a ConfigError unless an estimator has these options and they may have these values."""
    _check(name, dict(list(inspect.signature(function).parameters.items())[1:]), given)


def _check(name: str, options: Mapping[str, Parameter], given: Mapping[str, Any]) -> None:
    for option, value in given.items():
        if not options:
            raise ConfigError(f"credit {name!r} has no options, got {option!r}")
        kind = lookup(options, option, f"option of credit {name!r}:").annotation
        check(option, value.item() if isinstance(value, np.generic) else value, kind)
