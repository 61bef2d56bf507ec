"""The value of a state by enumeration of everything that a policy may do: the reference of the credit lab."""

from __future__ import annotations

import itertools

import numpy as np

from mempo_env.arrays.layout import ANSWER, SEARCH
from mempo_env.arrays.vector import SearchQAArrayVectorEnv
from mempo_trainers.policies.base import Responses
from mempo_trainers.policies.pointer import ArrayContexts, ArrayPolicy


def choices(envs: SearchQAArrayVectorEnv, keeps: list[tuple[int, ...]]) -> np.ndarray:
    """Every action (X, K) with one of some sets of kept facts; what has no effect is 0."""
    layout, found = envs.layout, []
    for keep in keeps:
        found += [(*keep, SEARCH, entity, *[0] * layout.objectives) for entity in range(layout.entities)]
        for given in itertools.product(range(layout.view + 1), repeat=layout.objectives):
            found.append((*keep, ANSWER, 0, *given))
    return np.array(found, np.int64)


def keeps(envs: SearchQAArrayVectorEnv) -> list[tuple[int, ...]]:
    """Every set of facts that can be kept in the one state of an environment."""
    view = envs.view_NV[0] >= 0
    sets = itertools.product(*[(0, 1) if there else (0,) for there in view])
    return [keep for keep in sets if sum(keep) <= envs.layout.capacity]


def value(
    policy: ArrayPolicy,
    envs: SearchQAArrayVectorEnv,
    contexts: ArrayContexts,
    kept: list[tuple[int, ...]] | None = None,
) -> float:
    """E[em] from the one state of an environment on; given some sets of kept facts, only among those.

    The probability of an action is that by which the policy is trained, `logprobs`, not that by which it was
    sampled.
    """
    actions = choices(envs, kept or keeps(envs))
    seen = contexts[np.zeros(len(actions), np.int64)]
    blank = Responses(actions, np.zeros(actions.shape, np.int8), np.zeros(actions.shape, np.float32))
    logp, _ = policy.logprobs(seen, blank)
    share = np.exp(logp.detach().double().numpy().sum(1))
    possible = np.flatnonzero(share > 1e-9)
    twins = envs.fork([0] * len(possible))
    observation, _, terminated, truncated, infos = twins.step(actions[possible])
    total = 0.0
    for i, part in enumerate(share[possible]):
        if (terminated | truncated)[i]:
            total += part * infos["em"][i]
        else:
            after = ArrayContexts(observation[[i]], infos["action_mask"][[i]])
            total += part * value(policy, twins.fork([i]), after)
    return total / float(share.sum())
