"""The rollouts of a step, scored; with dynamic sampling, groups without any advantage are replaced."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import count

from mempo_trainers.batching import join, split_groups
from mempo_trainers.config import Config
from mempo_trainers.credit import Credit, Trajectories, fill, keep_groups
from mempo_trainers.credit.data import Flags
from mempo_trainers.metrics import measured
from mempo_trainers.policies.base import Policy, Rollouts
from mempo_trainers.scores import needed, scored

Draw = Callable[[int, int, int], Rollouts]
"""Plays the rollouts of (step, attempt, number of questions), always the same ones for the same policy."""


def sample(
    policy: Policy, draw: Draw, estimate: Callable[[Trajectories], Credit], config: Config, step: int
) -> tuple[Rollouts, dict[str, float]]:
    """Rollouts with the scores that the estimator needs, what was generated for them, and how long that took.

    With dynamic sampling these are the rollouts of the groups kept. Reward, success and all else that is
    measured of what was played are then of all rollouts generated, those of groups dropped among them.

    If the budget of `config.dynamic_sampling` extra groups does not suffice the batch is smaller; if every
    group is dead the last ones are taken, and teach nothing.
    """
    needs = needed(config.credit, config.credit_options)
    attempts, drawn = count(), list[Rollouts]()
    times = {"rollout_seconds": 0.0, "score_seconds": 0.0}

    def take(number: int) -> Rollouts:
        start = time.perf_counter()
        drawn.append(draw(step, next(attempts), number))
        times["rollout_seconds"] += (middle := time.perf_counter()) - start
        found = scored(policy, drawn[-1], needs)
        times["score_seconds"] += time.perf_counter() - middle
        return found

    if not config.dynamic_sampling:
        return take(config.questions), times
    last: list[Rollouts] = []

    def generate(number: int) -> list[Rollouts]:
        last[:] = split_groups(take(number))
        return last

    def keep(groups: Sequence[Rollouts]) -> Flags:
        joined = join(groups)
        return keep_groups(estimate(joined.data).advantages_BK, joined.data)

    groups, filled = fill(generate, keep, config.questions, config.dynamic_sampling)
    waste = {"groups_generated": filled.generated, "groups_dropped": filled.dropped, "wasted": filled.wasted}
    return join(groups or last), {**measured(drawn), **waste, **times}
