"""Settings of training runs, side by side: what decides what a run learns, and in what two differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from mempo_env.types import Split

ENDS = ("config.steps", "sft.steps")
"""The setting that says where a run ends."""

PLACES = frozenset({"sampler.url", "sampler.wait"})
"""Settings that say where a server is: a run goes on with another one, but not without."""


def endless(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by their whole names, but for the step at which the run ends, and where its server is."""
    free = {*ENDS, *PLACES}
    return {name: value for name, value in flat(settings).items() if name not in free or value == ""}


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """The settings in which two runs differ, "name: one / other"; empty if there are none.

    Where these say the same, what they name may have changed: "the set of questions has changed".
    """
    there, here = flat(one), flat(other)
    differ = sorted(name for name in there | here if there.get(name) != here.get(name))
    held = {
        "data.examples": here.get("examples") or "what the expert wrote",
        "data.questions": "the set of questions",
        "model": f"model: {here.get('policy.model')}",
        **{f"data.{split}": f"the choice of questions of {split!r}" for split in get_args(Split)},
    }  # as digests
    told = [f"{name}: {there.get(name)!r} / {here.get(name)!r}" for name in differ if name not in held]
    if not set(differ) - {*held, *ENDS, *PLACES}:
        told += [f"{held[name]} has changed" for name in differ if name in held]
    return "; ".join(told)


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings by their whole names, as in "config.credit_options.pool"."""
    named: dict[str, Any] = {}
    for name, value in settings.items():
        named |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return named
