"""Helpers for tests of the array face: a reading of its texts that knows no integers, and policies."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from mempo_env.arrays.env import SearchQAArrayEnv
from mempo_env.arrays.layout import Layout
from mempo_env.arrays.vector import SearchQAArrayVectorEnv
from mempo_env.types import Segment

ID = "MemPO-SearchQA-Toy-v0"


def make(**kwargs: Any) -> SearchQAArrayEnv:
    env = gym.make(ID, **{"questions": 60, **kwargs}).unwrapped
    assert isinstance(env, SearchQAArrayEnv)
    return env


def make_vec(num_envs: int, **kwargs: Any) -> SearchQAArrayVectorEnv:
    envs = gym.make_vec(ID, num_envs=num_envs, **{"questions": 60, **kwargs})
    assert isinstance(envs, SearchQAArrayVectorEnv)
    return envs


def random_action(
    rng: np.random.Generator, layout: Layout, keep: float = 0.4, answer: float = 0.2
) -> NDArray[np.int64]:
    """Any action whatever, but so that episodes are not over at once."""
    action = rng.integers(0, np.array(layout.nvec))
    action[layout.keep] = rng.random(layout.view) < keep
    action[layout.operation] = rng.random() < answer
    if rng.random() < 0.5:
        action[layout.entity] = rng.integers(layout.objectives)
    return action


def masked_action(
    rng: np.random.Generator, layout: Layout, mask: Sequence[bool], answer: float = 0.2
) -> NDArray[np.int64]:
    """An action that a mask allows, with no more facts than the memory holds; searches are preferred."""
    action, start = [], 0
    for decision, n in enumerate(layout.nvec):
        allowed = np.flatnonzero(mask[start : start + n])
        assert len(allowed), f"decision {decision} has no choice"
        start += n
        action.append(int(rng.choice(allowed)))
        if decision == layout.operation and 0 in allowed and rng.random() > answer:
            action[-1] = 0
    kept = [slot for slot in range(layout.view) if action[slot]]
    for slot in rng.permutation(kept)[layout.capacity :]:
        action[int(slot)] = 0
    return np.array(action)


def expert(envs: SearchQAArrayVectorEnv) -> NDArray[np.int64]:
    """Keep every gold fact, search for the first name that is missing, answer when nothing is."""
    world, layout = envs.world, envs.layout
    actions = np.zeros((envs.num_envs, layout.decisions), np.int64)
    for i, (asked, view) in enumerate(zip(envs.asked_Nn.tolist(), envs.view_NV.tolist(), strict=True)):
        gold = [world.gold_Qh[row].tolist() for row in asked]
        actions[i, layout.keep] = [fact >= 0 and any(fact in path for path in gold) for fact in view]
        actions[i, layout.operation] = 1
        for j, path in enumerate(gold):
            depth = next((d for d, fact in enumerate(path) if fact not in view), None)
            if depth is not None:
                entity = j if depth == 0 else layout.objectives + view.index(path[depth - 1])
                actions[i, layout.operation], actions[i, layout.entity] = 0, entity
                break
            actions[i, layout.candidates.start + j] = view.index(path[-1])
    return actions


# --- An independent reading: from the words of a prompt to what an observation must hold --------------------

Triple = tuple[str, str, str]


def facts_in(text: str) -> list[Triple]:
    return re.findall(r"([A-Z][a-z]+)'s ([a-z]+) is ([A-Z][a-z]+|[0-9]{5})\.", text)


def expected(layout: Layout, max_rounds: int, segments: Sequence[Segment]) -> tuple[list[float], list[bool]]:
    """Observation and mask as the docs describe them, computed word by word from the segments in view."""
    shown = {segment.kind: segment.text for segment in segments}
    questions = []
    for path, subject in re.findall(r"What is the (.+?) of ([A-Z][a-z]+)\?", shown["question"]):
        questions.append((subject, list(reversed(path.split(" of the ")))))
    memory = facts_in(shown.get("mem", ""))
    view: list[Triple | None] = [
        *memory,
        *(f for f in facts_in(shown.get("information", "")) if f not in memory),
    ]
    view += [None] * (layout.capacity + layout.facts - len(view))
    call = re.fullmatch(r"<search>(.*)</search>", shown.get("call", ""))
    hint = re.fullmatch(r"\(([0-9]+) rounds? left\)", shown.get("hint", ""))
    left = int(hint[1]) if hint else 0

    reached: list[list[set[str]]] = []  # for each objective and depth, names
    for subject, relations in questions:
        levels = [{subject}]
        for relation in relations[:-1]:
            levels.append({f[2] for f in view if f and f[0] in levels[-1] and f[1] == relation})
        reached.append(levels)

    def marks(fact: Triple | None, j: int) -> list[bool]:
        if fact is None:
            return [False] * 5
        relations, levels = questions[j][1], reached[j]
        return [
            any(fact[0] in level for level in levels),
            fact[1] == relations[-1],
            fact[0] in levels[-1] and fact[1] == relations[-1],
            fact[1] in relations[:-1],
            any(fact[0] in levels[d] and fact[1] == r for d, r in enumerate(relations[:-1])),
        ]

    table = [[marks(fact, j) for j in range(len(questions))] for fact in view]
    answered = [any(row[j][2] for row in table) for j in range(len(questions))]
    searched, subjects = call[1] if call else None, {f[0] for f in view if f}
    entities = []
    for j, (subject, _) in enumerate(questions):
        bridged = any(row[j][4] for row in table)
        entities.append([True, False, answered[j], bridged, searched == subject, subject in subjects])
    names = [fact[2] if fact and fact[2][0].isalpha() else None for fact in view]
    for row, name in zip(table, names, strict=True):
        bridged = [j for j in range(len(questions)) if row[j][4]]
        done = any(answered[j] for j in bridged)
        entities.append([name is not None, done, bool(bridged), searched == name, name in subjects])
        entities[-1].insert(0, False)
        if name is None:
            entities[-1] = [False] * 6
    budget = [
        left / max_rounds,
        left == 1,
        len(memory) / layout.capacity,
        sum(answered) / len(answered),
    ]
    slots = [[fact is not None, i < len(memory)] for i, fact in enumerate(view)]
    flat = [*chain(*slots), *chain(*chain(*table)), *chain(*entities), *budget]

    present = [fact is not None for fact in view]
    mask = [*chain(*([True, there] for there in present))]
    mask += [left > 1, True, *[True] * len(questions), *(name is not None for name in names)]
    mask += [*present, not any(present)] * len(questions)
    return [float(x) for x in flat], mask
