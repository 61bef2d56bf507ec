"""What the estimators say of a batch: advantages of all tokens, and of whole memory operations."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, TypeAlias, cast

import msgspec
import numpy as np
import torch
from msgspec import Struct
from numpy.typing import NDArray

from mempo_benchmarks.credit.batch import Batch
from mempo_trainers.credit import CREDITS, make
from mempo_trainers.credit.data import MEM, Floats, Ints
from mempo_trainers.play import rollouts
from mempo_trainers.policies.base import Responses, Rollouts
from mempo_trainers.policies.pointer import ArrayContexts, ArrayPolicy
from mempo_trainers.scores import scored

Advantages: TypeAlias = Mapping[str, NDArray[np.float32]]
"""By row: advantages of all tokens, (B, K)."""

SHUFFLES = 20
"""How often the numbers of the placebo are shuffled: what one shuffle says is mostly chance."""

SCORES = frozenset({"memory_logp_RJ", "history_logp_RJ", "seen_logp_RJ", "prior_logp_NJ"})


class Row(Struct, frozen=True):
    """An estimator with its options, as a row of a table."""

    credit: str
    options: Mapping[str, Any]
    about: str


_ABOUT = {
    "grpo": "the outcome, normalised in the group",
    "mempo": "outcome; on memory: P(answer | memory) against P(answer | history)",
    "dr_grpo": "the outcome without the std",
    "rloo": "the outcome against the mean of the others",
    "reinforce_pp": "return to go, normalised over the batch",
    "discounted": "the outcome, less for early memory",
    "memory_only": "the outcome, a tenth of it elsewhere",
    "attribution": "outcome; entries by the progress of the rounds that used them",
    "turn_level": "outcome; rounds by the gold facts they found",
    "gigpo": "outcome; returns against those from equal observations",
    "igpo": "information gain of the history, summed over what follows",
    "gae": "critic, lambda 0.95 a round",
    "mempo_gain": "mempo; on calls: what the search adds to P(answer | history)",
    "placebo": "control: mempo's memory term, shuffled over rounds; here the mean of 20 shuffles",
    "spread": "control: mempo's memory rewards, paid to the whole rollout",
}


def rows() -> dict[str, Row]:
    """Every estimator with its defaults, and two variants of `mempo`."""
    table = {name: Row(name, {}, _ABOUT.get(name, "")) for name in CREDITS}
    variants = {
        "mempo previous": Row("mempo", {"baseline": "previous"}, "against P(answer | memory before)"),
        "mempo geometric": Row("mempo", {"objectives": "geometric"}, "geometric mean over objectives"),
    }
    place = list(table).index("mempo") + 1
    return dict([*list(table.items())[:place], *variants.items(), *list(table.items())[place:]])


def advantages(policy: ArrayPolicy, batch: Rollouts) -> Advantages:
    """What every row says of a batch. The policy gives the scores, and its critic the values."""
    data = scored(policy, batch, SCORES).data
    with torch.no_grad():
        values_BK = policy.values(batch.contexts, batch.responses).double().numpy()
    data = msgspec.structs.replace(data, values_BK=values_BK)
    return {name: make(row.credit, **row.options)(data).advantages_BK for name, row in rows().items()}


def shuffles(policy: ArrayPolicy, batch: Rollouts) -> Advantages:
    """What `placebo` says of a batch in `SHUFFLES` shuffles, by seed; that of seed 0 is in `advantages`."""
    data = scored(policy, batch, SCORES).data
    return {str(seed): make("placebo", seed=seed)(data).advantages_BK for seed in range(SHUFFLES)}


def operations(batch: Rollouts, found: Advantages, segments_S: Ints) -> dict[str, Floats]:
    """The advantage of the memory operation of some segments: the mean over the segment's memory tokens.

    All estimators but `attribution` give all memory tokens of a segment the same, and the mean of equal
    numbers is taken so that it is exactly that number: ties stay ties.
    """
    memory_SK = batch.data.roles_BK[segments_S] == MEM
    count_S = memory_SK.sum(1)
    return {
        name: np.where(memory_SK, advantages_BK[segments_S].astype(np.float64), 0.0).sum(1) / count_S
        for name, advantages_BK in found.items()
    }


FIT_STEPS, FIT_RATE = 300, 0.03


def with_critic(policy: ArrayPolicy, batch: Batch, seed: int) -> ArrayPolicy:
    """A copy of a policy whose critic was fitted to the returns of a batch, by least squares.

    A run without a critic gets one, and one with a critic gets one for `em_mean`: all runs are alike.
    """
    twin, data = copy.deepcopy(policy), batch.rollouts.data
    contexts, responses = batch.rollouts.contexts, batch.rollouts.responses
    returns_B = torch.from_numpy(data.outcome_N[data.rollout_B].astype(np.float32))
    optimizer = torch.optim.Adam(twin.heads.value.parameters(), lr=FIT_RATE)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for _ in range(FIT_STEPS):
            loss = ((twin.values(contexts, responses)[:, 0] - returns_B) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return twin


# --- The same operation in other groups ---------------------------------------------------------------------


def replicas(
    policy: ArrayPolicy, critic: ArrayPolicy, batch: Batch, segments_F: Ints, copies: int, seed: int
) -> dict[str, Floats]:
    """What the estimators say of an operation when all else in its group is drawn anew, (F, copies).

    In each copy one rollout goes the way of the batch up to the operation, which it repeats; what it does
    then, and the other rollouts of the group, are fresh. A noisy retriever cannot be made to go that way.

    Args:
        policy: Who plays.
        critic: The same with a fitted critic.
        batch: Where the operations are from.
        segments_F: The segments of the operations.
        copies: Groups for each operation.
        seed: Of all random numbers.
    """
    data = batch.rollouts.data
    group = int(np.bincount(data.question_N)[0])
    order = np.argsort(-data.number_R[data.round_B[segments_F]], kind="stable").repeat(copies)
    segments = segments_F[order]  # later operations first, see `_Retold`
    ids = [batch.ids[i] for i in data.rollout_B[segments].tolist()]
    ids += np.repeat(ids, group - 1).tolist()
    chance = np.random.default_rng([seed, 5])
    generator = torch.Generator().manual_seed(int(chance.integers(1 << 62)))
    retold = cast(ArrayPolicy, _Retold(policy, batch, segments))
    played = rollouts(retold, batch.task.envs(len(ids)), ids, generator, int(chance.integers(1 << 31)))
    alone = np.arange(len(segments))
    question_N = np.concatenate([alone, alone.repeat(group - 1)])
    played = msgspec.structs.replace(played, data=msgspec.structs.replace(played.data, question_N=question_N))
    number = data.number_R[data.round_B[segments]]
    first = np.searchsorted(played.data.rollout_B, alone)
    values = operations(played, advantages(critic, played), first + number - 1)
    back = np.argsort(order, kind="stable")
    return {name: value[back].reshape(len(segments_F), copies) for name, value in values.items()}


class _Retold:
    """A policy whose first rollouts go the way of those of a batch up to a memory operation each.

    Their operations come in order of falling rounds, so those that still go that way are the first rows of
    every round.
    """

    def __init__(self, policy: ArrayPolicy, batch: Batch, segments_F: Ints) -> None:
        data = batch.rollouts.data
        self.policy, self.round = policy, 0
        self.tokens_BK = batch.rollouts.responses.tokens_BK
        self.number_F = data.number_R[data.round_B[segments_F]]
        self.first_F = np.searchsorted(data.rollout_B, data.rollout_B[segments_F])

    def act(self, contexts: ArrayContexts, generator: torch.Generator) -> Responses:
        """The next round: as it was, with the memory as it was, or as the policy likes."""
        before, upto = int((self.number_F > self.round + 1).sum()), int((self.number_F > self.round).sum())
        was_FK, keep = self.tokens_BK[self.first_F[:upto] + self.round], self.policy.layout.keep
        kept_BV = np.full((len(contexts.observation_BD), self.policy.layout.view), -1)
        kept_BV[:upto] = was_FK[:, keep]
        tokens_BK = self.policy.choose(contexts, generator, kept_BV)
        tokens_BK[:before] = was_FK[:before]
        self.round += 1
        return self.policy.written(contexts, tokens_BK)
