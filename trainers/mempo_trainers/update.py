"""One step of learning from a batch of rollouts, the same for every loop and every policy."""

from __future__ import annotations

import math

import numpy as np
import torch
from msgspec import Struct
from numpy.typing import NDArray
from torch import Tensor

from mempo_trainers import losses
from mempo_trainers.config import Config
from mempo_trainers.credit.data import MEM, Flags, Ints
from mempo_trainers.credit.result import of_tokens
from mempo_trainers.policies.base import Policy, Reference, Rollouts


class Critic(Struct, frozen=True, eq=False):
    """What a critic learns from: its values when the advantages were computed, and the returns."""

    old_values_BK: Tensor
    returns_BK: Tensor


class _Batch(Struct, frozen=True, eq=False):
    """All that the loss of a step needs, for the whole batch."""

    advantages_BK: Tensor
    weights_BK: Tensor
    kl_weights_BK: Tensor
    old_BK: Tensor | None
    reference_BK: Tensor | None
    critic: Critic | None


def update(
    policy: Policy,
    rollouts: Rollouts,
    advantages_BK: NDArray[np.float32],
    config: Config,
    step: int,
    reference: Reference | None = None,
    critic: Critic | None = None,
) -> dict[str, float]:
    """Take `config.epochs` optimiser steps down the loss; returns what the metrics tell about it.

        L = policy loss + kl * KL(pi || reference) - entropy * H + value_weight * value loss

    With one epoch the old log-probs are the new ones, detached. Micro-batches share the denominators of the
    whole, so how many there are changes nothing. Where the loss is not finite no step is taken, though its
    gradient may be: it is as little of the loss as the loss is a number.

    A sampler whose log-probs are the trainer's own at first may be stale later on: from `losses.SAME` nats
    on its tokens are weighed, see `losses.policy_loss`.

    Raises:
        ConfigError: if advantages or responses are not one number a token of the rollouts; in step 1, if the
            reference is not the policy, or the sampler told other log-probs; in any step, if these differ by
            more than `config.sampler_gap`.
    """
    advantages_BK = of_tokens("advantages", advantages_BK, rollouts.data)
    of_tokens("responses", rollouts.responses.logprobs_BK, rollouts.data)
    parts = policy.batches(rollouts.contexts, rollouts.responses)
    weights_BK, kl_weights_BK = _weights(rollouts, config)
    batch = _Batch(
        advantages_BK=torch.from_numpy(advantages_BK),
        weights_BK=weights_BK,
        kl_weights_BK=kl_weights_BK,
        old_BK=None if config.epochs == 1 else measure(policy, rollouts, parts),
        reference_BK=None if reference is None else measure(reference, rollouts, parts),
        critic=critic,
    )
    told = {"loss": 0.0, "entropy": 0.0, "kl": 0.0, "value_loss": 0.0}
    stats, norms = [], []
    sampled_BK, gap = torch.from_numpy(rollouts.responses.logprobs_BK), 0.0
    for epoch in range(config.epochs):
        now_BK = torch.zeros_like(sampled_BK)
        for rows in parts:
            loss, moved, now_BK[rows] = _loss(
                policy, rollouts, batch, rows, config, step, told if epoch == 0 else {}
            )
            one = loss.detach() * 0 + 1  # nan where the loss is not finite: so are then the gradients
            loss.backward(one)  # type: ignore[no-untyped-call]
            stats.append(moved)
        if epoch == 0:
            gap = _gap(now_BK, sampled_BK, weights_BK)
            _check_same(now_BK, sampled_BK, batch, config, step)
        norms.append(policy.update())
    moved = losses.pooled(stats)
    return {
        **told,
        "sampler_gap": gap,
        "clip_share": moved.clip_share,
        "policy_kl": moved.approx_kl,
        "grad_norm": norms[-1],
        "skipped_updates": float(sum(not math.isfinite(norm) for norm in norms)),
    }


def _gap(now_BK: Tensor, sampled_BK: Tensor, weights_BK: Tensor) -> float:
    """The largest difference (nats) of log-probs between trainer and sampler on one token; nan stays."""
    far_BK = torch.where(weights_BK > 0, (now_BK - sampled_BK).abs(), 0.0)
    return float(np.max(far_BK.numpy(), initial=0.0))


def _check_same(now_BK: Tensor, sampled_BK: Tensor, batch: _Batch, config: Config, step: int) -> None:
    """Refuse a sampler that is not the policy that learns; in the first step a reference that is not, too."""
    if step == 1 or config.sampler_gap is not None:
        most = losses.SAMPLER_GAP if config.sampler_gap is None else config.sampler_gap
        what = f"the sampler in step {step}"
        losses.check_same(now_BK, sampled_BK, batch.weights_BK, atol=most, what=what)
    if step == 1 and batch.reference_BK is not None:
        what = "the reference in the first step"
        losses.check_same(now_BK, batch.reference_BK, batch.weights_BK, atol=losses.SAME, what=what)


@torch.no_grad()
def measure(policy: Reference, rollouts: Rollouts, parts: list[NDArray[np.int64]]) -> Tensor:
    """Log-probs (B, K) of what was written, under a policy."""
    out = torch.zeros(rollouts.responses.tokens_BK.shape)
    for rows in parts:
        out[rows] = policy.logprobs(rollouts.contexts[rows], rollouts.responses.take(rows))[0]
    return out


def _weights(rollouts: Rollouts, config: Config) -> tuple[Tensor, Tensor]:
    """Weights (B, K) of tokens in the policy's loss and in the divergence."""
    data = rollouts.data
    mask_BK, rollout_B = torch.from_numpy(data.mask_BK), torch.from_numpy(data.rollout_B)
    most = None
    if config.aggregation == "seq-mean-token-sum-norm":
        most = _most_tokens(data.mask_BK, data.rollout_B)
    weights_BK = losses.token_weights(mask_BK, rollout_B, config.aggregation, most)
    if config.kl_tokens == "all":
        return weights_BK, weights_BK
    memory_BK = mask_BK & torch.from_numpy(data.roles_BK == MEM)
    return weights_BK, losses.token_weights(memory_BK, rollout_B, config.aggregation, most)


def _most_tokens(mask_BK: Flags, rollout_B: Ints) -> int:
    """Tokens that the longest text times the largest number of texts of a rollout make, at least 1.

    What has no loss, as a masked rollout, counts for nothing.
    """
    row_N, column_N = np.nonzero(mask_BK)
    texts = np.bincount(rollout_B[np.unique(row_N)], minlength=1).max()
    return max(1, int((column_N.max(initial=0) + 1) * texts))


def _loss(
    policy: Policy,
    rollouts: Rollouts,
    batch: _Batch,
    rows: NDArray[np.int64],
    config: Config,
    step: int,
    told: dict[str, float],
) -> tuple[Tensor, losses.PolicyStats, Tensor]:
    """The loss of a micro-batch, how far the policy moved, its log-probs; adds the loss's parts to `told`."""
    contexts, responses = rollouts.contexts[rows], rollouts.responses.take(rows)
    weights = batch.weights_BK[rows]
    read = policy.logprobs if batch.critic is None else policy.logprobs_and_values
    logp, entropies, *values = read(contexts, responses)
    old = logp.detach() if batch.old_BK is None else batch.old_BK[rows]
    sampled = torch.from_numpy(responses.logprobs_BK)
    loss, moved = losses.policy_loss(
        logp,
        old,
        batch.advantages_BK[rows],
        weights,
        clip_low=config.clip_low,
        clip_high=config.clip_high,
        dual_clip=config.dual_clip,
        sampler_logprobs_BK=torch.where((old - sampled).abs() <= losses.SAME, old, sampled),
    )
    parts = {"loss": loss, "entropy": losses.entropy_bonus(entropies, weights)}
    bonus = parts["entropy"] if config.entropy else parts["entropy"].detach()  # no gradient that nobody wants
    total = loss - config.entropy * bonus
    if batch.reference_BK is not None:
        parts["kl"] = losses.kl_loss(
            logp, batch.reference_BK[rows], batch.kl_weights_BK[rows], config.kl_kind
        )
        total = total + losses.kl_coefficient(step, config.kl) * parts["kl"]
    if batch.critic is not None:
        parts["value_loss"] = losses.value_loss(
            values[0],
            batch.critic.old_values_BK[rows],
            batch.critic.returns_BK[rows],
            weights,
        )
        total = total + config.value_weight * parts["value_loss"]
    for name in told.keys() & parts.keys():
        told[name] += float(parts[name].detach())
    return total, moved, logp.detach()
