"""What an agent sees of a round, as numbers; nothing here looks at an answer but `answers`.

B environments, V slots with facts (-1: empty), n objectives, h hops.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from mempo_env.arrays.facts import Facts, Ints
from mempo_env.arrays.layout import SEARCH, Layout

Flags = NDArray[np.bool_]
Floats32 = NDArray[np.float32]


class View(Struct, frozen=True, eq=False):
    """What is in view of B environments.

    Attributes:
        asked_BN: Rows of the questions.
        facts_BV: The facts in view, those in memory first, -1 in the rest.
        memory_B: How many of them are in memory.
        searched_B: The word searched for in the last round, -1 if it was no search.
        left_B: Rounds left, 0 after the end.
    """

    asked_BN: Ints
    facts_BV: Ints
    memory_B: Ints
    searched_B: Ints
    left_B: Ints


def match(world: Facts, asked_Bn: Ints, facts_BV: Ints) -> Floats32:
    """How facts and questions match, from the facts given and nothing else: the numbers of `matches_BVN5`.

    Returns:
        (B, V, n, 5) of 0 and 1; see `layout.Features`. Empty slots are all 0.
    """
    out = np.zeros((*facts_BV.shape, asked_Bn.shape[1], 5), np.float32)
    _match(world, asked_Bn, facts_BV, out)
    return out


def _match(world: Facts, asked_Bn: Ints, facts_BV: Ints, out_BVn5: Floats32) -> tuple[Flags, Flags]:
    """Write what `match` returns, and return its columns 2 and 4: which facts answer, which are bridges."""
    subject_BV1, relation_BV1 = world.subject_M[facts_BV][:, :, None], world.relation_M[facts_BV][:, :, None]
    relations_hB1n = world.relations_Qh[asked_Bn].transpose(2, 0, 1)[:, :, None]
    reached_BVn = subject_BV1 == world.subject_Q[asked_Bn][:, None]
    ever_BVn = reached_BVn
    earlier_BVn = np.zeros_like(reached_BVn)
    bridges_BVn = np.zeros_like(reached_BVn)
    if len(relations_hB1n) > 1:
        leads_BVV = (subject_BV1 == world.object_M[facts_BV][:, None]).astype(np.float32)
    for relation_B1n in relations_hB1n[:-1]:
        same_BVn = relation_BV1 == relation_B1n
        earlier_BVn |= same_BVn
        bridge_BVn = reached_BVn & same_BVn
        bridges_BVn |= bridge_BVn
        reached_BVn = leads_BVV @ bridge_BVn.astype(np.float32) > 0
        ever_BVn = ever_BVn | reached_BVn
    last_BVn = relation_BV1 == relations_hB1n[-1]
    answers_BVn = reached_BVn & last_BVn
    for column, value_BVn in enumerate((ever_BVn, last_BVn, answers_BVn, earlier_BVn, bridges_BVn)):
        out_BVn5[..., column] = value_BVn
    return answers_BVn, bridges_BVn


def answers(world: Facts, asked_Bn: Ints, facts_BV: Ints) -> Flags:
    """(B, V, n): 1 = the object of the fact is the gold answer of the objective (privileged)."""
    right: Flags = world.object_M[facts_BV][:, :, None] == world.answer_Q[asked_Bn][:, None]
    return right


def observe(world: Facts, layout: Layout, max_rounds: int, view: View) -> tuple[Floats32, Flags]:
    """The flat observations (B, D) and masks (B, A) of what is in view."""
    facts_BV, n = view.facts_BV, layout.objectives
    size, present_BV = len(facts_BV), facts_BV >= 0
    entities_BE = np.concatenate([world.subject_Q[view.asked_BN], world.object_M[facts_BV]], axis=1)
    name_BE = (entities_BE >= 0) & (entities_BE < world.names)
    obs_BD = np.zeros((size, layout.features), np.float32)
    slots_BV2, matches_BVN5, entities_BE6, budget_B4 = layout.split(obs_BD)

    slots_BV2[..., 0] = present_BV
    slots_BV2[..., 1] = np.arange(layout.view) < view.memory_B[:, None]
    answers_BVN, bridges_BVN = _match(world, view.asked_BN, facts_BV, matches_BVN5)
    answered_BN: Flags = np.logical_or.reduce(answers_BVN, axis=1)

    entities_BE6[:, :n, 0] = True
    entities_BE6[:, n:, 1] = name_BE[:, n:]
    entities_BE6[:, :n, 2] = answered_BN
    entities_BE6[:, n:, 2] = (bridges_BVN & answered_BN[:, None]).any(axis=2)
    entities_BE6[:, :n, 3] = bridges_BVN.any(axis=1)
    entities_BE6[:, n:, 3] = bridges_BVN.any(axis=2)
    entities_BE6[..., 4] = name_BE & (entities_BE == view.searched_B[:, None])
    told_BEV = entities_BE[:, :, None] == world.subject_M[facts_BV][:, None]
    entities_BE6[..., 5] = name_BE & told_BEV.any(axis=2)

    budget_B4[:, 0] = view.left_B / max_rounds
    budget_B4[:, 1] = view.left_B == 1
    budget_B4[:, 2] = view.memory_B / layout.capacity
    budget_B4[:, 3] = answered_BN.mean(axis=1)

    mask_BA = np.ones((size, layout.choices), np.bool_)
    keep_BV2, operation_B2, entity_BE, candidates_BNC = layout.split_mask(mask_BA)
    keep_BV2[..., 1] = present_BV
    operation_B2[:, SEARCH] = view.left_B > 1
    entity_BE[:] = name_BE
    candidates_BNC[..., :-1] = present_BV[:, None]
    candidates_BNC[..., -1] = ~present_BV.any(axis=1, keepdims=True)
    return obs_BD, mask_BA
