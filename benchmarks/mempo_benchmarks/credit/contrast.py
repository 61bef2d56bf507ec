"""The planned contrast: keeping one gold fact against dropping it, all else being the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct

from mempo_benchmarks.credit.batch import States
from mempo_benchmarks.credit.truth import BLOCK, outcomes
from mempo_trainers.credit.data import Flags, Floats, Ints
from mempo_trainers.policies.pointer import ArrayPolicy


class Contrast(Struct, frozen=True, eq=False):
    """C gold facts in view of sampled states, each of which could be kept and could be dropped.

    Attributes:
        place_C: The state, among all sampled ones.
        slot_C: The slot of the fact, which is the memory token that decides about it.
        kept_C: Whether the rollout kept it.
        effect_C: R after keeping it minus R after dropping it, the other facts as the rollout had them.
    """

    place_C: Ints
    slot_C: Ints
    kept_C: Flags
    effect_C: Floats


def contrast(
    policy: ArrayPolicy,
    states: Sequence[States],
    forks: int,
    seed: int,
    advance: Callable[[int], None],
) -> Contrast:
    """Measure the contrast by `forks` pairs of each gold fact that is in view; pairs share random numbers."""
    chance = np.random.default_rng([seed, 6])
    parts = [_of(policy, group, forks, chance, advance) for group in states]
    return Contrast(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def gold_facts(group: States) -> Flags:
    """(S, V): 1 = the slot holds a gold fact of one of the objectives, and memory has room for it."""
    envs = group.envs
    gold_Sg = envs.world.gold_Qh[envs.asked_Nn].reshape(envs.num_envs, -1)
    is_gold_SV = (envs.view_NV[:, :, None] == gold_Sg[:, None]).any(2)
    room_SV = group.kept_SV.sum(1, keepdims=True) + 1 - group.kept_SV <= envs.layout.capacity
    fits_SV: Flags = is_gold_SV & room_SV
    return fits_SV


def _of(
    policy: ArrayPolicy,
    group: States,
    forks: int,
    chance: np.random.Generator,
    advance: Callable[[int], None],
) -> tuple[Ints, Ints, Flags, Floats]:
    row_C, slot_C = np.nonzero(gold_facts(group))
    effect = []
    each = max(1, BLOCK // forks)
    for start in range(0, len(row_C), each):
        rows, slots = (x_C[start : start + each].repeat(forks) for x_C in (row_C, slot_C))
        keep, drop = group.kept_SV[rows].copy(), group.kept_SV[rows].copy()
        keep[np.arange(len(rows)), slots], drop[np.arange(len(rows)), slots] = 1, 0
        with_it, without = outcomes(
            policy, group.envs.fork(rows.tolist()), group.contexts[rows], [keep, drop], chance
        )
        effect.append((with_it - without).reshape(-1, forks).mean(1))
        advance(len(rows))
    kept_C = group.kept_SV[row_C, slot_C] == 1
    return group.place_S[row_C], slot_C, kept_C, np.concatenate([*effect, np.empty(0)])
