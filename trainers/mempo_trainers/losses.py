"""Losses as pure functions of tensors: nothing here knows a policy, a tokenizer or an optimiser.

B segments (calls of the policy) of at most K tokens; a rollout is one sequence, however many segments it has.
Every loss is a weighted sum over tokens. `token_weights` makes the weights once for the whole batch of an
optimiser step; a micro-batch takes its rows of them, so the gradients of any split of the batch add up to
those of the whole. A token of weight 0 is not read: whatever stands there, nan or infinity, reaches neither
the loss nor a gradient.

    weights_BK = token_weights(mask_BK, rollout_B, "seq-mean-token-mean")
    for rows in micro_batches:
        loss, stats = policy_loss(logprobs_BK[rows], old_BK[rows], advantages_BK[rows], weights_BK[rows])
        loss += beta * kl_loss(logprobs_BK[rows], ref_BK[rows], weights_BK[rows], "low_var_kl")
        loss.backward()
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from msgspec import Struct
from torch import Tensor

from mempo_env.errors import ConfigError, lookup

LOG_RATIO = 20.0
"""Log ratios are clamped to [-20, 20] before the exponential, as in verl: no ratio overflows."""

KL_MOST = 10.0
"""What `low_var_kl` is clamped to, as in verl."""

SAMPLER_MOST = 2.0
"""The most that a token sampled by another engine may weigh."""

SAME = 1e-4
"""Nats on one token between equal policies that are measured in the same way: noise of float32."""

SAMPLER_GAP = 0.05
"""Nats on one token between sampler and trainer: padding alone moves log-probs of bfloat16 by 0.03."""

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


class PolicyStats(Struct, frozen=True):
    """How far a policy has moved from the one that sampled, over the tokens that have a loss.

    Attributes:
        tokens: How many there are.
        clip_share: Share, in [0, 1], of tokens whose ratio was clipped: they have no gradient.
        dual_clip_share: Share of tokens whose surrogate was held by the dual clip.
        approx_kl: Mean of r - 1 - log r with r = pi / pi_old, at least 0: estimates KL(pi_old || pi) in nats.
        ratio_min: The smallest ratio.
        ratio_max: The largest ratio.
    """

    tokens: int
    clip_share: float
    dual_clip_share: float
    approx_kl: float
    ratio_min: float
    ratio_max: float


def token_weights(mask_BK: Tensor, rollout_B: Tensor, mode: str, max_tokens: int | None = None) -> Tensor:
    """The weight of every token in the loss, for all the batch of one optimiser step.

    Over the tokens k of the rollouts i that have any, with n_i tokens in rollout i (all its segments), n of
    them in all and N such rollouts, a token weighs

        token-mean               1 / n
        token-sum                1
        seq-mean-token-mean      1 / (N n_i)     MemPO, eq. 10 (arXiv 2603.00680); GRPO (arXiv 2402.03300)
        seq-mean-token-sum       1 / N
        seq-mean-token-sum-norm  1 / (N max_tokens)    Dr. GRPO (arXiv 2503.20783)

    The names are verl's. There a sequence is a row; here it is a rollout. A rollout that is masked entirely
    is in no denominator.

    Args:
        mask_BK: 1 = the token has a loss.
        rollout_B: Which rollout each segment belongs to, from 0.
        mode: One of `AGGREGATIONS`.
        max_tokens: Tokens that a rollout may have at most; `seq-mean-token-sum-norm` needs it, no other
            mode takes it.

    Returns:
        Weights (B, K), 0 where the mask is.

    Raises:
        ConfigError: if the mode is unknown, `max_tokens` is missing or of no use, or what came is no mask or
            no numbers of rollouts.
    """
    weigh = lookup(AGGREGATIONS, mode, "aggregation")
    most = 1 if max_tokens is None else max_tokens
    whole = isinstance(most, int) and not isinstance(most, bool) and most >= 1
    if (max_tokens is not None) != (mode == "seq-mean-token-sum-norm") or not whole:
        raise ConfigError(
            "wanted max_tokens, how many a rollout may have, with aggregation 'seq-mean-token-sum-norm' and "
            f"None with the others, got {max_tokens} with {mode!r}"
        )
    _tensors("token weights", mask_BK, rollout_B)
    if mask_BK.ndim != 2 or rollout_B.shape != mask_BK.shape[:1]:
        raise ConfigError(
            f"token weights: wanted a mask (B, K) and a rollout for each of its B segments, got shapes "
            f"{tuple(mask_BK.shape)} and {tuple(rollout_B.shape)}"
        )
    if rollout_B.dtype not in _INTEGERS or (len(rollout_B) and rollout_B.min() < 0):
        least = f" from {rollout_B.min().item()}" if len(rollout_B) else ""
        raise ConfigError(
            f"token weights: wanted rollouts as integers from 0, got {rollout_B.dtype}{least}: number them so"
        )
    mask_BK = mask_BK.bool()
    tokens_B = mask_BK.sum(1)
    rollouts = int(rollout_B.max()) + 1 if len(rollout_B) else 0
    tokens_N = tokens_B.new_zeros(rollouts).index_add(0, rollout_B.long(), tokens_B)
    alive = (tokens_N > 0).sum().clamp(min=1)
    denominator_B = weigh(tokens_N[rollout_B.long()], tokens_B.sum(), alive) * most
    return mask_BK / denominator_B.clamp(min=1)[:, None]


AGGREGATIONS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "token-mean": lambda own_B, all_tokens, rollouts: all_tokens.expand_as(own_B),
    "token-sum": lambda own_B, all_tokens, rollouts: torch.ones_like(own_B),
    "seq-mean-token-mean": lambda own_B, all_tokens, rollouts: own_B * rollouts,
    "seq-mean-token-sum": lambda own_B, all_tokens, rollouts: rollouts.expand_as(own_B),
    "seq-mean-token-sum-norm": lambda own_B, all_tokens, rollouts: rollouts.expand_as(own_B),
}
"""A segment's denominator from: tokens of its rollout, tokens in all, rollouts that have any."""


def aggregate(values_BK: Tensor, weights_BK: Tensor) -> Tensor:
    """The weighted sum of the values of all tokens, a scalar; see `token_weights`.

    Values of weight 0 are not read. If they were computed from nan or infinity, their own backward pass still
    multiplies that by the 0 from here, so whoever computes values masks what goes in, as the losses below do.
    """
    (values_BK,) = _live(weights_BK, values_BK)
    return (values_BK * weights_BK).sum()


def policy_loss(
    logprobs_BK: Tensor,
    old_logprobs_BK: Tensor,
    advantages_BK: Tensor,
    weights_BK: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
    sampler_logprobs_BK: Tensor | None = None,
) -> tuple[Tensor, PolicyStats]:
    """The clipped surrogate of PPO (arXiv 1707.06347), with bounds of their own below and above.

        ratio = exp(logp - logp_old)
        S     = min(ratio A, clip(ratio, 1 - clip_low, 1 + clip_high) A)
        S     = max(S, dual_clip A) where A < 0      the dual clip of arXiv 1912.09729
        L     = - sum over tokens of weight * S * min(exp(logp_old - logp_sampler), 2)

    `clip_high` above `clip_low` is DAPO's clip-higher (arXiv 2503.14476). Without the dual clip, a token of
    negative advantage that the new policy makes far likelier has a loss without bound.

    Args:
        logprobs_BK: Log-probs under the policy that learns, with gradients.
        old_logprobs_BK: Under the policy before the update, by the same code at the same temperature. With
            one step a batch these are `logprobs_BK.detach()`.
        advantages_BK: One a token, without gradients.
        weights_BK: From `token_weights`, or its rows for a micro-batch.
        clip_low: In [0, 1].
        clip_high: At least 0.
        dual_clip: Above 1; verl has 3. None: no dual clip.
        sampler_logprobs_BK: Under the engine that sampled the tokens, if it is not the trainer; the weight
            that corrects for it has no gradient.

    Returns:
        The loss, and how far the policy has moved.
    """
    if not (0 <= clip_low <= 1 and clip_high >= 0 and (dual_clip is None or dual_clip > 1)):
        raise ConfigError(
            "policy loss: wanted clip_low in [0, 1], clip_high from 0 and dual_clip above 1 or None, "
            f"got {clip_low}, {clip_high} and {dual_clip}"
        )
    new_BK, old_BK, adv_BK = _live(weights_BK, logprobs_BK, old_logprobs_BK, advantages_BK)
    ratio_BK = (new_BK - old_BK.detach()).clamp(-LOG_RATIO, LOG_RATIO).exp()
    adv_BK = adv_BK.detach()
    free_BK = ratio_BK * adv_BK
    clipped_BK = ratio_BK.clamp(1 - clip_low, 1 + clip_high) * adv_BK
    surrogate_BK = held_BK = torch.minimum(free_BK, clipped_BK)
    if dual_clip is not None:
        held_BK = torch.where(adv_BK < 0, torch.maximum(surrogate_BK, dual_clip * adv_BK), surrogate_BK)
    stats = _stats(weights_BK > 0, ratio_BK, clipped_BK < free_BK, held_BK > surrogate_BK)
    if sampler_logprobs_BK is not None:
        held_BK = held_BK * sampler_weight(old_logprobs_BK, sampler_logprobs_BK, weights_BK)
    return -aggregate(held_BK, weights_BK), stats


def sampler_weight(old_logprobs_BK: Tensor, sampler_logprobs_BK: Tensor, weights_BK: Tensor) -> Tensor:
    """min(exp(logp_old - logp_sampler), 2), detached: truncated importance sampling of each token."""
    old_BK, sampler_BK = _live(weights_BK, old_logprobs_BK, sampler_logprobs_BK)
    return (old_BK - sampler_BK).detach().clamp(max=LOG_RATIO).exp().clamp(max=SAMPLER_MOST)


def value_loss(
    values_BK: Tensor,
    old_values_BK: Tensor,
    returns_BK: Tensor,
    weights_BK: Tensor,
    *,
    clip: float | None = None,
) -> Tensor:
    """Half the squared error of the critic; with `clip`, PPO's pessimistic form (as in verl).

        L = 1/2 sum of weight * max((V - G)^2, (clip(V, V_old - clip, V_old + clip) - G)^2)

    Args:
        values_BK: The critic's values, with gradients.
        old_values_BK: Its values when the advantages were computed.
        returns_BK: G, advantage plus old value.
        weights_BK: From `token_weights`.
        clip: How far a value may move in one update, in units of the return; None for no bound.
    """
    if clip is not None and not clip > 0:
        raise ConfigError(f"value loss: wanted a clip above 0 (or None), got {clip}")
    v_BK, old_BK, g_BK = _live(weights_BK, values_BK, old_values_BK, returns_BK)
    old_BK, g_BK = old_BK.detach(), g_BK.detach()
    error_BK = (v_BK - g_BK).square()
    if clip is not None:
        near_BK = torch.minimum(torch.maximum(v_BK, old_BK - clip), old_BK + clip)
        error_BK = torch.maximum(error_BK, (near_BK - g_BK).square())
    return 0.5 * aggregate(error_BK, weights_BK)


def entropy_bonus(entropies_BK: Tensor, weights_BK: Tensor) -> Tensor:
    """The aggregated entropy in nats, a scalar: subtract it from the loss times its coefficient."""
    return aggregate(entropies_BK, weights_BK)


def kl(logprobs: Tensor, ref_logprobs: Tensor, kind: str) -> Tensor:
    """Estimate KL(pi || pi_ref) from tokens sampled by pi, a value a token, in nats.

    With r = pi_ref / pi, and not its inverse, which some notes print (Schulman, "Approximating KL
    divergence", 2020, joschu.net/blog/kl-approx.html):

        k1          -log r                      unbiased; single values may be negative
        k2          (log r)^2 / 2               biased, low variance
        k3          r - 1 - log r               unbiased, never negative
        low_var_kl  k3, with log r clamped to [-20, 20] before and the result to [-10, 10] after (verl's k3)

    What is easily got wrong when an estimate serves as a loss, that is, when its gradient is taken:

    - k1 has zero expected gradient: E[grad log pi] = 0. It pulls nowhere and adds noise.
    - On-policy, the expected gradient of k2 is that of KL(pi || ref), and that of k3 is that of
      KL(ref || pi), the other direction. Off-policy (a second epoch, a stale sampler) neither holds.
    - low_var_kl has zero gradient where its clamp holds, r above about 13.6: tokens that have drifted the
      furthest below the reference are not pulled back. k3 pulls them, and overflows where r passes e^88.

    Args:
        logprobs: Under pi, any shape.
        ref_logprobs: Under the reference, the same shape; never a gradient.
        kind: One of `KLS`.
    """
    estimate = lookup(KLS, kind, "KL estimator")
    _tensors("a KL estimate", logprobs, ref_logprobs)
    if logprobs.shape != ref_logprobs.shape:
        shapes = f"{tuple(logprobs.shape)} and {tuple(ref_logprobs.shape)}"
        raise ConfigError(f"a KL estimate wanted log-probs of one shape, got {shapes}")
    return estimate(ref_logprobs.detach() - logprobs)


def _low_var_kl(log_r: Tensor) -> Tensor:
    log_r = log_r.clamp(-LOG_RATIO, LOG_RATIO)
    return (log_r.exp() - 1 - log_r).clamp(-KL_MOST, KL_MOST)


KLS: dict[str, Callable[[Tensor], Tensor]] = {
    "k1": lambda log_r: -log_r,
    "k2": lambda log_r: log_r.square() / 2,
    "k3": lambda log_r: log_r.exp() - 1 - log_r,
    "low_var_kl": _low_var_kl,
}
"""The estimators as functions of log r = log pi_ref - log pi."""


def kl_loss(logprobs_BK: Tensor, ref_logprobs_BK: Tensor, weights_BK: Tensor, kind: str) -> Tensor:
    """The aggregated `kl`, a scalar, to be added to the loss times `kl_coefficient`.

    On memory tokens only, it is the same with weights of theirs: `token_weights(mask_BK & memory_BK, ...)`
    averages over them; `weights_BK * memory_BK` leaves the denominators of the whole.
    """
    new_BK, ref_BK = _live(weights_BK, logprobs_BK, ref_logprobs_BK)
    return aggregate(kl(new_BK, ref_BK, kind), weights_BK)


def kl_coefficient(step: int, beta: float, warmup: int = 10) -> float:
    """Beta * min(step / warmup, 1), in steps 1, 2, ...: the whole of it from step `warmup` on."""
    return beta * min(step / warmup, 1.0) if warmup > 0 else beta


def check_same(logprobs_BK: Tensor, others_BK: Tensor, weights_BK: Tensor, *, atol: float, what: str) -> None:
    """Refuse log-probs that should be of one policy and are not.

    A reference loaded from another checkpoint, or a sampler that saw other text than the trainer, shows in
    the first step and nowhere else: no loss raises, it merely trains on a wrong ratio.

    Args:
        logprobs_BK: The trainer's own.
        others_BK: Those of the reference in the first step, or of the sampler.
        weights_BK: Above 0 where tokens count.
        atol: Largest difference in nats that is float noise.
        what: Whose log-probs the others are, for the message.

    Raises:
        ConfigError: with the largest difference and where it is.
    """
    ours_BK, others_BK = _live(weights_BK, logprobs_BK, others_BK)
    far_BK = (ours_BK - others_BK).detach().abs().nan_to_num(nan=torch.inf, posinf=torch.inf)
    if far_BK.numel() and not far_BK.max() <= atol:
        segment, token = divmod(int(far_BK.argmax()), far_BK.shape[1])
        raise ConfigError(
            f"log-probs of {what}: wanted the trainer's own within {atol:g} nats, got one {far_BK.max():g} "
            f"nats away at segment {segment}, token {token}: load the same weights, show both the same text "
            "at the same temperature, without top-p and top-k"
        )


def pooled(stats: Sequence[PolicyStats]) -> PolicyStats:
    """The stats of a batch from those of its micro-batches."""
    live = [part for part in stats if part.tokens]
    tokens = sum(part.tokens for part in live)
    if not tokens:
        return PolicyStats(0, 0.0, 0.0, 0.0, 1.0, 1.0)

    def mean(name: str) -> float:
        return float(sum(getattr(part, name) * part.tokens for part in live)) / tokens

    low, high = min(part.ratio_min for part in live), max(part.ratio_max for part in live)
    return PolicyStats(tokens, mean("clip_share"), mean("dual_clip_share"), mean("approx_kl"), low, high)


def _stats(live_BK: Tensor, ratio_BK: Tensor, clipped_BK: Tensor, dual_BK: Tensor) -> PolicyStats:
    ratio = ratio_BK.detach()[live_BK]
    if not len(ratio):
        return pooled([])
    clipped, dual = (flags_BK[live_BK].double().mean().item() for flags_BK in (clipped_BK, dual_BK))
    approx_kl = (ratio - 1 - ratio.log()).mean().item()
    return PolicyStats(len(ratio), clipped, dual, approx_kl, ratio.min().item(), ratio.max().item())


def _live(weights_BK: Tensor, *tensors_BK: Tensor) -> tuple[Tensor, ...]:
    """The tensors with 0 where the weight is 0: no gradient comes back from there, not even nan times 0."""
    _tensors("a loss", weights_BK, *tensors_BK)
    shapes = [tuple(tensor.shape) for tensor in (weights_BK, *tensors_BK)]
    if len(set(shapes)) > 1:
        raise ConfigError(f"a loss wanted tensors of one shape (B, K), got {', '.join(map(str, shapes))}")
    live_BK = weights_BK > 0
    return tuple(torch.where(live_BK, tensor, torch.zeros_like(tensor)) for tensor in tensors_BK)


def _tensors(what: str, *given: object) -> None:
    wrong = [type(value).__name__ for value in given if not isinstance(value, Tensor)]
    if wrong:
        raise ConfigError(f"{what} wanted tensors, got {', '.join(wrong)}")
