"""What every estimator of credit is computed from: rollouts, rounds, segments and tokens as arrays."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from mempo_env.errors import ConfigError

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]

NOT_GENERATED, MEM, THINK, CALL, ANSWER = range(5)
"""Roles of tokens. 0 is all that the policy did not write: observations, padding."""

ROLES = {"mem": MEM, "think": THINK, "call": CALL, "answer": ANSWER}


class Trajectories(Struct, frozen=True, kw_only=True, eq=False):
    """N rollouts of some questions, R rounds, B segments (calls of the policy) of at most K tokens.

    Suffixes name the axes: N rollouts, R rounds of all rollouts, B segments, K tokens of a segment's
    response, J objectives. Rounds are ordered by rollout, then number; segments by round. "Tokens" are
    whatever the policy decides one after another: ids of a language model, or choices of an array policy.
    Optional fields are None where nobody measured them; an estimator that needs one says so.

    Attributes:
        question_N: Which question (group) each rollout answers.
        outcome_N: The outcome term R_i of the reward.
        shaping_N: The sum of all other weighted terms of the reward.
        masked_N: 1 = the rollout failed for no fault of the policy: no statistic and no loss sees it.
        rollout_R: Which rollout each round belongs to.
        number_R: Its number in the rollout, from 1.
        round_B: Which round each segment belongs to, an index into the R axis.
        roles_BK: `MEM`, `THINK`, `CALL`, `ANSWER`, or 0 for what the policy did not write.
        reward_R: The whole weighted reward paid in each round.
        memory_logp_RJ: Mean log-prob of the tokens of each objective's answer, given question and the memory
            in force after the round; NaN where not scored (first rounds).
        history_logp_RJ: The same given all that came before the round, untruncated.
        seen_logp_RJ: The same given all up to and including the round's observation.
        prior_logp_NJ: The same given the question alone.
        found_R: New gold facts (or passages) that the round retrieved.
        recall_R: Fraction of the gold facts seen so far, in [0, 1].
        state_R: A number that is equal for equal observations of one question (the hint on rounds left out).
        logprobs_BK: Log-probs of the tokens under the policy that sampled them.
        ref_logprobs_BK: Under the reference policy.
        values_BK: The critic's value before each token, in the token's own segment.
        entry_BK: The memory entry that a token newly writes, a number unique in the batch; -1 for none.
        used_UC: One row (round, entry) for each use of an entry in a round.
        merged_MC: One row (entry, source) for each entry that went into a merged one.
    """

    question_N: Ints
    outcome_N: Floats
    shaping_N: Floats
    masked_N: Flags
    rollout_R: Ints
    number_R: Ints
    round_B: Ints
    roles_BK: NDArray[np.int8]
    reward_R: Floats | None = None
    memory_logp_RJ: Floats | None = None
    history_logp_RJ: Floats | None = None
    seen_logp_RJ: Floats | None = None
    prior_logp_NJ: Floats | None = None
    found_R: Floats | None = None
    recall_R: Floats | None = None
    state_R: Ints | None = None
    logprobs_BK: Floats | None = None
    ref_logprobs_BK: Floats | None = None
    values_BK: Floats | None = None
    entry_BK: Ints | None = None
    used_UC: Ints | None = None
    merged_MC: Ints | None = None

    @property
    def rollout_B(self) -> Ints:
        """Which rollout each segment belongs to."""
        return self.rollout_R[self.round_B]

    @property
    def rounds_N(self) -> Ints:
        """Number of rounds of each rollout, T_i."""
        return np.bincount(self.rollout_R, minlength=len(self.question_N)).astype(np.int64)

    @property
    def mask_BK(self) -> Flags:
        """1 = written by the policy in a rollout that is not masked: such a token has an advantage."""
        mask: Flags = (self.roles_BK != NOT_GENERATED) & ~self.masked_N[self.rollout_B][:, None]
        return mask

    def need(self, *names: str) -> tuple[Any, ...]:
        """The optional fields of these names; ConfigError that names those nobody measured."""
        missing = [name for name in names if getattr(self, name) is None]
        if missing:
            raise ConfigError(
                f"this estimator wanted {', '.join(missing)}, which were not measured for these rollouts"
            )
        return tuple(getattr(self, name) for name in names)
