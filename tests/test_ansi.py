"""A round as text for a terminal."""

from __future__ import annotations

import gymnasium as gym
import pytest

import mempo_env

assert mempo_env.ENVIRONMENTS


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("MemPO-SearchQA-Bank-v0", "<memory_write> Aldo was born in Bay. </memory_write>"),
        ("MemPO-SearchQA-v0", "<mem>Aldo was born in Bay.</mem>"),
    ],
)
def test_a_memory_is_rendered_once(name: str, write: str) -> None:
    """A bank showed itself, and the memory was told once more beside it."""
    env = gym.make(name, render_mode="ansi")
    env.reset(seed=0)
    env.step(f"{write}<search> Bay </search>")
    shown = str(env.render())
    assert shown.count("     memory") == 1
    assert "Aldo was born in Bay." in shown[shown.index("     memory") :]
