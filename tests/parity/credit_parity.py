"""Our advantages and verl's on the same random batch.

verl's row is a whole rollout: its rounds one after the other, with observation tokens between them that its
mask leaves out. Ours is a row a round. All in double precision; our tokens get float32.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import torch
from table import Row, row
from torch import Tensor
from verl.trainer.ppo import core_algos
from verl.utils import torch_functional

from mempo_trainers.credit import make
from mempo_trainers.credit.data import CALL, MEM, NOT_GENERATED, THINK, Trajectories

QUESTIONS, GROUP, ROUNDS, K = 6, 5, 4, 7
N = QUESTIONS * GROUP


class Batch:
    """The same rollouts for both: N of ROUNDS rounds, K tokens a round, of which some are observations."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        lengths = rng.integers(1, K + 1, N * ROUNDS)
        roles_BK = rng.choice([NOT_GENERATED, MEM, THINK, CALL], (N * ROUNDS, K)).astype(np.int8)
        roles_BK[:, 0] = THINK
        roles_BK[np.arange(K) >= lengths[:, None]] = NOT_GENERATED
        outcome_N = rng.choice([0, 0.25, 0.5, 1.0], N)
        outcome_N[:GROUP] = 1.0  # a tie
        reward_R = rng.choice([0, -0.05, 0.1], N * ROUNDS)
        reward_R[ROUNDS - 1 :: ROUNDS] += outcome_N
        self.data = Trajectories(
            question_N=np.repeat(np.arange(QUESTIONS), GROUP),
            outcome_N=outcome_N,
            shaping_N=np.zeros(N),
            masked_N=np.zeros(N, bool),
            rollout_R=np.repeat(np.arange(N), ROUNDS),
            number_R=np.tile(np.arange(1, ROUNDS + 1), N),
            round_B=np.arange(N * ROUNDS),
            roles_BK=roles_BK,
            reward_R=reward_R,
            values_BK=rng.normal(size=(N * ROUNDS, K)),
            logprobs_BK=rng.normal(size=(N * ROUNDS, K)),
            ref_logprobs_BK=rng.normal(size=(N * ROUNDS, K)),
        )

    def flat(self, array_BK: Any) -> Tensor:
        """A row a rollout, as verl has it."""
        return torch.as_tensor(np.asarray(array_BK, float)).reshape(N, ROUNDS * K)

    @property
    def mask(self) -> Tensor:
        """verl's response mask."""
        return self.flat(self.data.roles_BK != NOT_GENERATED)

    def rewards(self, of_R: Any) -> Tensor:
        """A number a round, on the last token that the round generated."""
        where_BK = np.zeros(self.data.roles_BK.shape)
        last = K - 1 - (self.data.roles_BK[:, ::-1] != NOT_GENERATED).argmax(1)
        where_BK[np.arange(len(last)), last] = of_R
        return self.flat(where_BK)

    @property
    def outcomes(self) -> Tensor:
        """The outcome on the last token of the rollout."""
        of_R = np.zeros(N * ROUNDS)
        of_R[ROUNDS - 1 :: ROUNDS] = self.data.outcome_N
        return self.rewards(of_R)

    def ours(self, name: str, **options: Any) -> Tensor:
        """Our advantages in verl's rows."""
        return self.flat(make(name, **options)(self.data).advantages_BK)


def rows() -> list[Row]:
    """All comparisons of advantages."""
    batch = Batch(0)
    return [*outcome_rows(batch), *return_rows(batch), *gae_rows(batch), *alone_rows()]


def outcome_rows(b: Batch) -> list[Row]:
    """GRPO, Dr. GRPO and RLOO; a rollout is a row, so statistics agree."""
    given = (b.mask, b.data.question_N)
    grpo, _ = core_algos.compute_grpo_outcome_advantage(b.outcomes, *given)
    vectorised, _ = core_algos.compute_grpo_vectorized_outcome_advantage(b.outcomes, *given)
    plain, _ = core_algos.compute_grpo_outcome_advantage(b.outcomes, *given, norm_adv_by_std_in_grpo=False)
    rloo, _ = core_algos.compute_rloo_outcome_advantage(b.outcomes, *given)
    return [
        row("verl GRPO: advantages", [b.ours("grpo")], [grpo]),
        row("verl GRPO, vectorised: advantages", [b.ours("grpo")], [vectorised]),
        row("verl GRPO without std is our dr_grpo: advantages", [b.ours("dr_grpo")], [plain]),
        row("verl RLOO: advantages", [b.ours("rloo")], [rloo]),
    ]


def return_rows(b: Batch) -> list[Row]:
    """REINFORCE++ at gamma 1, without and with the penalty k1 in the reward."""
    config = type("Config", (), {"gamma": 1.0})()
    rewards, made = b.rewards(b.data.reward_R), []
    for beta in (0.0, 0.3):
        k1 = core_algos.kl_penalty(b.flat(b.data.logprobs_BK), b.flat(b.data.ref_logprobs_BK), "k1")
        penalised = rewards - beta * k1 * b.mask
        theirs, _ = core_algos.compute_reinforce_plus_plus_outcome_advantage(penalised, b.mask, config)
        made.append(
            row(f"verl REINFORCE++, beta {beta}: advantages", [b.ours("reinforce_pp", beta=beta)], [theirs])
        )
    return made


def unwhitened_gae(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float) -> Tensor:
    """verl's advantages before it whitens them, on generated tokens: its returns less the values."""
    _, returns = core_algos.compute_gae_advantage_return(rewards, values, mask, gamma, lam)
    return (returns - values) * mask


def gae_rows(b: Batch) -> list[Row]:
    """GAE: several tokens a round where no discount lies between them, else a token a round."""
    rewards, values = b.rewards(b.data.reward_R), b.flat(b.data.values_BK)
    theirs = unwhitened_gae(rewards, values, b.mask, 1.0, 1.0)
    ours = b.ours("gae", gamma_round=1.0, lambda_round=1.0)
    white, _ = core_algos.compute_gae_advantage_return(rewards, values, b.mask, 1.0, 1.0)
    whitened = torch_functional.masked_whiten(ours, b.mask)
    made = [
        row("verl GAE, gamma 1, lambda 1: advantages before whitening", [ours], [theirs]),
        row("verl GAE, gamma 1, lambda 1: whitened", [whitened * b.mask], [white * b.mask]),
    ]
    one = Batch(1)
    first_BK = np.where(np.arange(K) == 0, one.data.roles_BK, NOT_GENERATED).astype(np.int8)
    one.data = msgspec.structs.replace(one.data, roles_BK=first_BK)
    rewards, values = one.rewards(one.data.reward_R), one.flat(one.data.values_BK)
    for gamma, lam in ((0.99, 0.95), (0.9, 0.0), (1.0, 0.95)):
        theirs = unwhitened_gae(rewards, values, one.mask, gamma, lam)
        ours = one.ours("gae", gamma_round=gamma, lambda_round=lam)
        made.append(row(f"verl GAE, gamma {gamma}, lambda {lam}, a token a round", [ours], [theirs]))
    theirs = unwhitened_gae(b.rewards(b.data.reward_R), b.flat(b.data.values_BK), b.mask, 0.99, 0.95)
    ours = b.ours("gae", gamma_round=0.99, lambda_round=0.95)
    why = "verl discounts from token to token"
    return [*made, row("verl GAE, gamma 0.99, lambda 0.95, many tokens a round", [ours], [theirs], why)]


def alone_rows() -> list[Row]:
    """Groups of one, which verl hands through."""
    b = Batch(2)
    b.data = msgspec.structs.replace(b.data, question_N=np.arange(N))
    theirs, _ = core_algos.compute_grpo_outcome_advantage(b.outcomes, b.mask, b.data.question_N)
    why = "verl returns the raw reward"
    return [row("verl GRPO, groups of one", [b.ours("grpo")], [theirs], why)]
