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

MOST = 1e30
"""The largest reward: its square fits into a float64, and it itself into the float32 of an advantage."""

_NOISE = 1e-6  # by how much a log-prob or a share may miss its range: float32 arithmetic
_KINDS = {
    "Flags": ("b", "bool"),
    "Ints": ("iu", "integers"),
    "NDArray[np.int8]": ("iu", "integers"),
    "Floats": ("fiu", "floats"),
}
_REWARDS = ("outcome_N", "shaping_N", "reward_R", "found_R")
_TOKENS = {"logprobs_BK", "ref_logprobs_BK", "values_BK"}
_SCORES = ("memory_logp_RJ", "history_logp_RJ", "seen_logp_RJ", "prior_logp_NJ")


class Trajectories(Struct, frozen=True, kw_only=True, eq=False):
    """N rollouts of some questions, R rounds, B segments (calls of the policy) of at most K tokens.

    Suffixes name the axes: N rollouts, R rounds of all rollouts, B segments, K tokens of a segment's
    response, J objectives. Rounds are ordered by rollout, then number; segments by round. "Tokens" are
    whatever the policy decides one after another: ids of a language model, or choices of an array policy.
    Optional fields are None where nobody measured them; an estimator that needs one says so. What masked
    rollouts hold may be anything, NaN too: nothing of it reaches the others.

    Raises:
        ConfigError: if a field is no array of its type and of the shape that its suffix names, or holds a
            number out of its range; with the field, what was wanted, what came and where.

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

    def __post_init__(self) -> None:
        _check_shapes(self)
        _check_links(self)
        _check_numbers(self)

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
        """The optional fields of these names; ConfigError that names those nobody measured.

        Numbers of tokens must be finite for what the policy wrote; ConfigError that says where they are not.
        """
        missing = [name for name in names if getattr(self, name) is None]
        if missing:
            raise ConfigError(
                f"this estimator wanted {', '.join(missing)}, which were not measured for these rollouts"
            )
        for name in _TOKENS.intersection(names):
            values = getattr(self, name)
            if not _all_finite(values):
                wrong = self.mask_BK & ~np.isfinite(values)
                _refuse(name, values, wrong, "finite numbers for what the policy wrote")
        return tuple(getattr(self, name) for name in names)


def _check_shapes(held: Trajectories) -> None:
    """Every field is an array of its type; equal letters of suffixes stand for equal lengths."""
    sizes: dict[str, tuple[int, str]] = {"C": (2, "a pair")}
    for name, annotation in Trajectories.__annotations__.items():
        array, optional = getattr(held, name), annotation.endswith(" | None")
        if optional and array is None:
            continue
        kinds, wanted = _KINDS[annotation.removesuffix(" | None")]
        if not isinstance(array, np.ndarray):
            raise ConfigError(f"{name}: wanted an array of {wanted}, got {type(array).__name__}")
        if array.dtype.kind not in kinds:
            raise ConfigError(f"{name}: wanted an array of {wanted}, got one of {array.dtype}")
        axes = name.rsplit("_", 1)[1]
        shape = f"shape ({', '.join(axes)})"
        if array.ndim != len(axes):
            raise ConfigError(f"{name}: wanted {shape}, got {array.shape}")
        for axis, size in zip(axes, array.shape, strict=True):
            known, source = sizes.setdefault(axis, (size, name))
            if size != known:
                raise ConfigError(
                    f"{name}: wanted {shape} with {axis} = {known} ({source}), got {array.shape}"
                )


def _check_links(held: Trajectories) -> None:
    """Rollouts, rounds and roles that are pointed to are there; a rollout's rounds are 1, 2, ..., T."""
    rollouts, rounds = len(held.question_N), len(held.rollout_R)
    _range("rollout_R", held.rollout_R, rollouts, "a rollout")
    _range("round_B", held.round_B, rounds, "a round")
    if held.used_UC is not None:
        _range("used_UC", held.used_UC[:, 0], rounds, "a round")
    bits_BK = held.roles_BK.view(f"u{held.roles_BK.itemsize}")  # negative roles are large ones: a single pass
    if bits_BK.max(initial=0) > ANSWER:
        _refuse("roles_BK", held.roles_BK, bits_BK > ANSWER, f"a role, 0 to {ANSWER}")
    number_R, longest_R = held.number_R, held.rounds_N[held.rollout_R]
    wanted = "each rollout's rounds numbered 1, 2, ..., each once"
    _refuse("number_R", number_R, (number_R < 1) | (number_R > longest_R), wanted)
    place_R = held.rollout_R * longest_R.max(initial=1) + number_R
    _, first, count = np.unique(place_R, return_index=True, return_counts=True)
    again_R = np.zeros(rounds, bool)
    again_R[first] = count > 1
    _refuse("number_R", number_R, again_R, wanted)


def _check_numbers(held: Trajectories) -> None:
    """Rewards, scores and shares of rollouts that are not masked are in their ranges."""
    alive_N = ~held.masked_N
    alive_R = alive_N[held.rollout_R]
    numbers = {name: getattr(held, name) for name in (*_REWARDS, *_SCORES, "recall_R")}
    for name, values in numbers.items():
        if values is None:
            continue
        alive = alive_N if name.endswith(("_N", "_NJ")) else alive_R
        if name in _REWARDS:
            wrong = alive & ~(np.abs(values) <= np.float64(MOST))
            _refuse(name, values, wrong, f"finite numbers, at most {MOST:g} (mask the rollout: masked_N)")
        elif name in _SCORES:
            wanted = "log-probs, at most 0 (NaN: not scored)"
            _refuse(name, values, alive[:, None] & (values > _NOISE), wanted)
        else:
            wrong = alive & ((values < -_NOISE) | (values > 1 + _NOISE))
            _refuse(name, values, wrong, "shares in [0, 1]")


def _all_finite(values: Floats) -> bool:
    """False where one is not, and where squares overflow; a product is the cheapest pass over an array."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(values.ravel() @ values.ravel()))


def _range(name: str, index_X: Ints, size: int, what: str) -> None:
    _refuse(name, index_X, (index_X < 0) | (index_X >= size), f"{what}, 0 to {size - 1}")


def _refuse(name: str, values: NDArray[Any], wrong: Flags, wanted: str) -> None:
    """ConfigError with the first value that is wrong, and where it is."""
    if wrong.any():
        place = np.argwhere(wrong)[0].tolist()
        raise ConfigError(f"{name}: wanted {wanted}, got {values[tuple(place)]} at {place}")
