"""MemPO: search question answering in which an agent keeps only what it writes into memory.

Importing this package registers the environments with Gymnasium:

    >>> import gymnasium as gym, mempo_env
    >>> env = gym.make("MemPO-SearchQA-v0")
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym

__version__ = "0.1.0"

ENVIRONMENTS: dict[str, dict[str, Any]] = {
    "MemPO-SearchQA-v0": {},
    "MemPO-SearchQA-MultiObj2-v0": {"objectives": 2},
    "MemPO-SearchQA-MultiObj4-v0": {"objectives": 4},
    "MemPO-SearchQA-MultiObj8-v0": {"objectives": 8},
    "MemPO-SearchQA-MultiObj16-v0": {"objectives": 16},
    "MemPO-SearchQA-Bank-v0": {"memory": "bank", "reward": "bank"},
    "MemPO-SearchQA-Toy-v0": {},
}
"""Ids, and the keyword arguments that make each of them."""

_TEXT = ("mempo_env.env:SearchQAEnv", "mempo_env.vector:SearchQAVectorEnv")
_ARRAYS = ("mempo_env.arrays.env:SearchQAArrayEnv", "mempo_env.arrays.vector:SearchQAArrayVectorEnv")


def register() -> None:
    """Register every environment that is not registered yet.

    The environments check their own use (a step before a reset, an action that is none), so Gymnasium's
    wrappers for that are left out.
    """
    for id, kwargs in ENVIRONMENTS.items():
        if id not in gym.registry:
            one, many = _ARRAYS if id == "MemPO-SearchQA-Toy-v0" else _TEXT
            gym.register(
                id=id,
                entry_point=one,
                vector_entry_point=many,
                kwargs=kwargs,
                order_enforce=False,
                disable_env_checker=True,
            )


register()
