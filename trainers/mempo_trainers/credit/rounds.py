"""Numbers of rounds as a table of rollouts by rounds: sums and differences along an episode."""

from __future__ import annotations

import numpy as np

from mempo_trainers.credit.data import Flags, Floats, Trajectories


def table(trajectories: Trajectories, values_R: Floats, fill: float = 0.0) -> Floats:
    """Numbers of rounds as (N, T): column t - 1 holds round t, `fill` stands after a rollout's last round."""
    longest = int(trajectories.number_R.max(initial=0))
    out_NT = np.full((len(trajectories.question_N), longest), fill)
    out_NT[trajectories.rollout_R, trajectories.number_R - 1] = values_R
    return out_NT


def pick(trajectories: Trajectories, values_NT: Floats) -> Floats:
    """The way back from a table: (R,)."""
    out_R: Floats = values_NT[trajectories.rollout_R, trajectories.number_R - 1]
    return out_R


def to_go(trajectories: Trajectories, values_R: Floats, gamma: float = 1.0) -> Floats:
    """sum_{s >= t} gamma^(s - t) x_s, (R,); equal remainders of episodes give exactly equal sums."""
    sums_NT = table(trajectories, values_R)
    for t in range(sums_NT.shape[1] - 2, -1, -1):
        sums_NT[:, t] += gamma * sums_NT[:, t + 1]
    return pick(trajectories, sums_NT)


def previous(trajectories: Trajectories, values_R: Floats, first_N: Floats) -> Floats:
    """x_{t-1} for each round t, (R,), and `first_N` of the rollout in round 1."""
    values_NT = table(trajectories, values_R)
    return pick(trajectories, np.concatenate([first_N[:, None], values_NT[:, :-1]], axis=1))


def last(trajectories: Trajectories) -> Flags:
    """1 = the round is the last of its rollout, (R,)."""
    out_R: Flags = trajectories.number_R == trajectories.rounds_N[trajectories.rollout_R]
    return out_R
