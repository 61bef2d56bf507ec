"""The keyword arguments of the array face, checked and frozen, the same for one environment and for many."""

from __future__ import annotations

from msgspec import Struct

from mempo_env import rewards
from mempo_env.arguments import at_least_one, probability
from mempo_env.arrays.facts import ToySpec
from mempo_env.arrays.layout import Layout, sized
from mempo_env.arrays.world import World, make_world
from mempo_env.errors import ConfigError
from mempo_env.rewards import RewardConfig
from mempo_env.settings import by_keyword
from mempo_env.types import Split


class Task(Struct, frozen=True, eq=False):
    """What is played: see `SearchQAArrayEnv` for the meaning of each."""

    world: World
    layout: Layout
    split: Split
    max_rounds: int
    reward: RewardConfig
    retriever_noise: float


@by_keyword
def make_task(
    *,
    objectives: int = 1,
    hops: int = 1,
    capacity: int | None = None,
    facts: int = 5,
    questions: int = 1000,
    world_seed: int = 0,
    split: Split = "train",
    max_rounds: int | None = None,
    reward: str | RewardConfig = "mempo",
    retriever_noise: float = 0.0,
) -> Task:
    """Check the arguments and make the world; `SearchQAArrayEnv` says what each is."""
    world = make_world(ToySpec(questions, facts, hops, world_seed))
    needed = at_least_one("objectives", objectives) * hops
    available = len(world.questions.split(split))
    if objectives > available:
        raise ConfigError(
            f"objectives: wanted at most the {available} questions of {split!r}, got {objectives}"
        )
    layout = Layout(objectives, needed + 2 if capacity is None else capacity, facts, hops)
    return Task(
        world=world,
        layout=layout,
        split=split,
        max_rounds=max(4, 2 * needed) if max_rounds is None else sized("max_rounds", max_rounds),
        reward=rewards.preset(reward),
        retriever_noise=probability("retriever_noise", retriever_noise),
    )
