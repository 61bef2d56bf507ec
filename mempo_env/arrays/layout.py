"""Where everything lies in the flat observation, the flat mask and the action."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from gymnasium.spaces import Box, MultiDiscrete, Space
from msgspec import Struct

from mempo_env.arguments import at_least_one
from mempo_env.errors import ConfigError

MOST = 10_000
"""Of each size, and of the rounds of an episode: beyond, nothing fits into memory or ends."""

SEARCH, ANSWER = 0, 1
"""The two operations."""


def sized(name: str, value: Any) -> int:
    """The value as an int, or a ConfigError if it is no whole number from 1 to `MOST`."""
    size = at_least_one(name, value)
    if size > MOST:
        raise ConfigError(f"{name}: wanted at most {MOST:,}, got {size:,}")
    return size


class Features(NamedTuple):
    """An observation cut into its parts; all are in [0, 1].

    A fact is *reached* at depth 1 if its subject is the question's; at depth d + 1 if its subject is the
    object of a fact in view that is reached at depth d and has the question's d-th relation.

    Attributes:
        slots_BV2: For each view slot: it holds a fact, which is in the memory.
        matches_BVN5: For each slot and objective: reached at any depth; the relation is the question's last;
            reached at the last depth with the last relation (its object answers); the relation is one of the
            earlier ones; reached at the depth of that relation (it is a bridge).
        entities_BE6: For each entity, all 0 where there is no name: it is a question's subject; it is the
            object of a slot; its objective, or one that this object bridges to, is answered by a fact in
            view; a bridge of its objective is in view, or it is the object of a bridge; it was searched for
            in the last round; it is the subject of a fact in view.
        budget_B4: Rounds left / rounds allowed; this is the last round; facts in memory / capacity; share of
            the objectives that facts in view answer.
    """

    slots_BV2: Any
    matches_BVN5: Any
    entities_BE6: Any
    budget_B4: Any


class Masks(NamedTuple):
    """A mask cut into its parts; 1 = a valid choice that can be of use.

    Attributes:
        keep_BV2: For each slot: drop, keep.
        operation_B2: Search, answer.
        entity_BE: What to search for.
        candidates_BNC: For each objective: the V slots, and "unknown".
    """

    keep_BV2: Any
    operation_B2: Any
    entity_BE: Any
    candidates_BNC: Any


class Layout(Struct, frozen=True):
    """Sizes and places; suffixes are B environments, V view slots, N objectives, E entities, K decisions.

    The V = capacity + facts slots hold the facts in memory, in the order in which they were kept, then those
    of the last article that are not in memory; the rest is empty. The E = N + V entities that can be searched
    for are the subjects of the questions, then the object of each slot.

    Attributes:
        objectives: Questions in an episode, N.
        capacity: Facts that fit into the memory.
        facts: Facts in an article.
        hops: Facts that a question must combine.
    """

    objectives: int = 1
    capacity: int = 3
    facts: int = 5
    hops: int = 1

    def __post_init__(self) -> None:
        """Refuse a size below 1 or above `MOST` with a ConfigError."""
        for name in self.__struct_fields__:
            sized(name, getattr(self, name))

    @property
    def view(self) -> int:
        """V: slots of facts in view."""
        return self.capacity + self.facts

    @property
    def entities(self) -> int:
        """E."""
        return self.objectives + self.view

    @property
    def nvec(self) -> tuple[int, ...]:
        """Choices of each of the K decisions."""
        return (*[2] * self.view, 2, self.entities, *[self.view + 1] * self.objectives)

    @property
    def decisions(self) -> int:
        """K = V + 2 + N: the width of an action."""
        return self.view + 2 + self.objectives

    @property
    def keep(self) -> slice:
        """Columns of an action: 1 = keep the fact of this slot in memory."""
        return slice(0, self.view)

    @property
    def operation(self) -> int:
        """Column of an action: `SEARCH` or `ANSWER`."""
        return self.view

    @property
    def entity(self) -> int:
        """Column of an action: what to search for."""
        return self.view + 1

    @property
    def candidates(self) -> slice:
        """Columns of an action: for each objective the slot whose object is the answer; V = "unknown"."""
        return slice(self.view + 2, self.decisions)

    @property
    def features(self) -> int:
        """Width of an observation."""
        return self.view * (2 + 5 * self.objectives) + 6 * self.entities + 4

    @property
    def choices(self) -> int:
        """Width of a mask: the sum of `nvec`."""
        return sum(self.nvec)

    @property
    def observation_space(self) -> Space[Any]:
        """Of one environment."""
        return Box(0.0, 1.0, (self.features,), np.float32)

    @property
    def action_space(self) -> Space[Any]:
        """Of one environment."""
        return MultiDiscrete(np.array(self.nvec))

    def split(self, obs_BD: Any) -> Features:
        """Cut flat observations into their parts: views of numpy arrays or torch tensors.

        A single observation (D,) gives parts without the axis B.
        """
        n, v, e, many = self.objectives, self.view, self.entities, obs_BD.shape[:-1]
        slots, matches, entities = 2 * v, 2 * v + 5 * v * n, 2 * v + 5 * v * n + 6 * e
        return Features(
            obs_BD[..., :slots].reshape(*many, v, 2),
            obs_BD[..., slots:matches].reshape(*many, v, n, 5),
            obs_BD[..., matches:entities].reshape(*many, e, 6),
            obs_BD[..., entities:],
        )

    def split_mask(self, mask_BA: Any) -> Masks:
        """Cut flat masks into their parts: views of numpy arrays or torch tensors.

        A single mask (A,) gives parts without the axis B; that of `info`, a tuple, must be an array first.
        """
        n, v, e, many = self.objectives, self.view, self.entities, mask_BA.shape[:-1]
        return Masks(
            mask_BA[..., : 2 * v].reshape(*many, v, 2),
            mask_BA[..., 2 * v : 2 * v + 2],
            mask_BA[..., 2 * v + 2 : 2 * v + 2 + e],
            mask_BA[..., 2 * v + 2 + e :].reshape(*many, n, v + 1),
        )

    def sample_mask(self, mask_A: Any) -> tuple[Any, ...]:
        """The mask of one environment as `action_space.sample` wants it: an array (int8) for each decision.

        Raises:
            ConfigError: if it is no mask of this layout, or those of several environments.
        """
        mask_A = np.asarray(mask_A, np.int8)
        if mask_A.shape != (self.choices,):
            raise ConfigError(
                f"sample_mask: wanted one mask, of shape ({self.choices},), got shape {mask_A.shape}"
            )
        return tuple(np.split(mask_A, np.cumsum(self.nvec)[:-1]))
