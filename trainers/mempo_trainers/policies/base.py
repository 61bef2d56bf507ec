"""The one protocol of policies: the loops know nothing else of a pointer network or a language model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch
from msgspec import Struct
from numpy.typing import NDArray

from mempo_trainers.credit.data import Trajectories


class Responses(Struct, frozen=True, eq=False):
    """What a policy wrote in B contexts.

    Attributes:
        tokens_BK: The choices or token ids, padded with 0 on the right.
        roles_BK: The role of each (see `credit.data`), 0 where nothing was written.
        logprobs_BK: Log-probs at sampling temperature, 0 where nothing was written.
    """

    tokens_BK: NDArray[np.int64]
    roles_BK: NDArray[np.int8]
    logprobs_BK: NDArray[np.float32]

    def take(self, segments_b: NDArray[np.int64]) -> Responses:
        """Those of some segments."""
        return Responses(self.tokens_BK[segments_b], self.roles_BK[segments_b], self.logprobs_BK[segments_b])


class Rollouts(Struct, frozen=True, eq=False):
    """A batch of finished rollouts: the numbers that credit is computed from, and what the loss needs.

    Attributes:
        data: The arrays, without the scores that a policy gives (`with_scores` adds them).
        contexts: What the policy saw before each of the B segments, in the policy's own form; it can be
            indexed by an array of segments, and two can be added. So can views.
        responses: What it wrote.
        memory_views: For each of the R rounds the question and the memory in force, in the policy's own form,
            to be scored; None where a policy cannot be asked.
        history_views: The question and all that came before the round.
        seen_views: The question and all up to the round's observation.
        prior_views: For each of the N rollouts the question alone.
        success_N: Whether all objectives were answered exactly right.
        extra: Further measures for the metrics, each a mean over the rollouts that are not masked.
    """

    data: Trajectories
    contexts: Any
    responses: Responses
    memory_views: Any
    history_views: Any
    seen_views: Any
    prior_views: Any
    success_N: NDArray[np.bool_]
    extra: Mapping[str, float] = {}


class Reference(Protocol):
    """A policy that stays as it is, from which the one that learns must not stray."""

    def logprobs(self, contexts: Any, responses: Responses) -> tuple[torch.Tensor, torch.Tensor]:
        """As a policy's; nobody takes gradients of it."""
        ...


class Policy(Protocol):
    """Writes, scores and learns; contexts and views are of whatever form its collector makes them.

    All randomness comes from the generator that is passed in.
    """

    @property
    def updates(self) -> int:
        """Optimiser steps taken by `update` so far."""
        ...

    def act(self, contexts: Any, generator: torch.Generator) -> Responses:
        """Write in each of B contexts."""
        ...

    def logprobs(self, contexts: Any, responses: Responses) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probs (B, K) of the responses' tokens, with gradients, and entropies (B, K); 0 where none."""
        ...

    def values(self, contexts: Any, responses: Responses) -> torch.Tensor:
        """The critic's values (B, K) before each token, with gradients."""
        ...

    def logprobs_and_values(
        self, contexts: Any, responses: Responses
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Log-probs, entropies and values as above, read once."""
        ...

    def score(self, views: Any) -> NDArray[np.float64]:
        """Mean log-prob of each objective's answer, (R, J), without gradients; NaN where there is no view."""
        ...

    def batches(self, contexts: Any, responses: Responses) -> list[NDArray[np.int64]]:
        """Split the B segments into batches that one forward and backward pass can hold."""
        ...

    def reference(self) -> Reference:
        """The policy as it is now, frozen."""
        ...

    def update(self) -> float:
        """Take one optimiser step down the gradients that the loop's `backward` calls have summed.

        Returns the norm of the gradient before it is clipped. Where it is not finite no step is taken.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """Weights and optimiser: all that a checkpoint needs."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        ...
