"""The keyword arguments of the environment, checked and frozen."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np

from mempo_env import rewards, tokens
from mempo_env.context import ContextRule, check_rule
from mempo_env.errors import ConfigError, RenderModeError, lookup
from mempo_env.imported import imported
from mempo_env.memory.bank import Bank, BankConfig
from mempo_env.memory.base import MakeStore, Own, check_own
from mempo_env.play import MemoryKind, Rules
from mempo_env.rewards import RewardConfig
from mempo_env.tokens import TokenCounter
from mempo_env.types import Segment, storable

MEMORIES: dict[str, MemoryKind] = {"inline": "inline", "none": "none", "bank": "bank"}


def memory_kind(memory: Any) -> tuple[MemoryKind, Any]:
    """(which kind of memory, what makes it: a BankConfig, a class, or None)."""
    if isinstance(memory, str) and ":" in memory:
        return "own", check_own(imported(memory, "memory"))
    if isinstance(memory, str):
        kind = lookup(MEMORIES, memory, "memory")
        return kind, BankConfig() if kind == "bank" else None
    return ("bank", memory) if isinstance(memory, BankConfig) else ("own", check_own(memory))


def _store(kind: MemoryKind, made_by: Any, count: TokenCounter) -> MakeStore | None:
    """What makes the store of an episode."""
    if kind == "bank":
        return partial(Bank.revived, made_by, count)
    return None if kind in ("inline", "none") else lambda _, state: Own(made_by, count, state)


def check_rules(
    *,
    objectives: int,
    max_rounds: int,
    context: ContextRule,
    memory: Any,
    reward: str | RewardConfig,
    tokenizer: Any,
    max_context_tokens: int | None,
    max_memory_tokens: int | None,
    system_prompt: str,
    hint: bool,
    sources: dict[str, Any],
) -> Rules:
    """Check the keyword arguments and freeze them, with their values as plain data beside them."""
    name, count = tokens.counter(tokenizer)
    config = rewards.preset(reward)
    kind, made_by = memory_kind(memory)
    checked: dict[str, Any] = {
        "objectives": objectives,
        "max_rounds": at_least_one("max_rounds", max_rounds),
        "context": check_rule(context),
        "memory": kind,
        "max_context_tokens": _budget("max_context_tokens", max_context_tokens),
        "max_memory_tokens": _budget("max_memory_tokens", max_memory_tokens),
        "hint": bool(hint),
    }
    if not isinstance(hint, (bool, np.bool_)):
        raise ConfigError(f"hint: wanted True or False, got {hint!r}")
    system_prompt = storable(system_prompt)
    held = (
        {
            "memory_of": msgspec.to_builtins(made_by)
            if kind == "bank"
            else f"{made_by.__module__}:{made_by.__qualname__}"
        }
        if made_by
        else {}
    )
    told = {"reward": msgspec.to_builtins(config), "tokenizer": name, "system_prompt": system_prompt}
    return Rules(
        **checked,
        reward=config,
        count=count,
        system=Segment("system", 0, system_prompt, count(system_prompt)) if system_prompt else None,
        make_store=_store(kind, made_by, count),
        settings={**sources, **checked, **told, **held},
    )


def _budget(name: str, value: Any) -> int | None:
    return None if value is None else at_least_one(name, value)


def probability(name: str, value: Any) -> float:
    """The value as a float in [0, 1], or a ConfigError."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)) or not 0 <= value <= 1:
        raise ConfigError(f"{name}: wanted a probability, got {value!r}")
    return float(value)


def at_least_one(name: str, value: Any) -> int:
    """The value as an int, or a ConfigError if it is no whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise ConfigError(f"{name}: wanted a whole number of at least 1, got {value!r}")
    return int(value)


def one_of_render_modes(mode: str | None, modes: Sequence[str]) -> str | None:
    """The mode, or None; a RenderModeError that names the nearest if there is no such mode."""
    try:
        return mode if mode is None else lookup({name: name for name in modes}, mode, "render_mode")
    except ConfigError as error:
        raise RenderModeError(str(error)) from None
