"""Which facts to keep: independent coins, given that at most c of them may show heads."""

from __future__ import annotations

import torch

from mempo_env.errors import ConfigError

_NEVER = -torch.inf


def log_ways(logits_BV: torch.Tensor, capacity: int) -> torch.Tensor:
    """Log-weight of all ways to decide on slots v, v+1, ... with at most m kept: (B, V+1, capacity+1).

    Keeping slot v has the weight exp(logit), dropping it 1, a set of kept slots the product. Computed from
    the last slot on: W(v, m) = W(v+1, m) + exp(logit_v) W(v+1, m-1), W(V, m) = 1.
    """
    ways = torch.zeros(logits_BV.shape[0], capacity + 1, dtype=logits_BV.dtype, device=logits_BV.device)
    table = [ways]
    for v in range(logits_BV.shape[1] - 1, -1, -1):
        kept = logits_BV[:, v, None] + ways[:, :-1]
        ways = torch.cat([ways[:, :1], torch.logaddexp(ways[:, 1:], kept)], 1)
        table.append(ways)
    return torch.stack(table[::-1], 1)


def sample(
    logits_BV: torch.Tensor, mask_BV: torch.Tensor, capacity: int, generator: torch.Generator
) -> torch.Tensor:
    """Draw the kept slots (B, V), 0 or 1, at most `capacity` in a row; masked slots (0) are never kept."""
    logits = torch.where(mask_BV, logits_BV, _NEVER)
    ways = log_ways(logits, capacity)
    coins = torch.rand(logits.shape, generator=generator)
    left = torch.full((len(logits), 1), capacity)
    kept = []
    for v in range(logits.shape[1]):
        keep = coins[:, v, None] < _keep_probability(logits, ways, v, left)
        left = left - keep.long()
        kept.append(keep[:, 0])
    return torch.stack(kept, 1).long() if kept else torch.zeros_like(logits, dtype=torch.long)


def _keep_probability(logits: torch.Tensor, ways: torch.Tensor, v: int, left: torch.Tensor) -> torch.Tensor:
    """P(slot v is kept | those before it), (B, 1), with `left` (B, 1) places free."""
    after = ways[:, v + 1].gather(1, (left - 1).clamp(min=0))
    keep = (logits[:, v, None] + after - ways[:, v].gather(1, left)).exp()
    return torch.where(left > 0, keep, 0.0)


def log_probs(
    logits_BV: torch.Tensor, mask_BV: torch.Tensor, kept_BV: torch.Tensor, capacity: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-prob of each decision given those before it, (B, V), and its entropy; 0 where nothing is to decide.

    They sum to the log-prob of the set, which is that of independent coins given at most `capacity` heads,
    so the order of the slots does not matter.

    Raises:
        ConfigError: if more are kept than the capacity, or one that is masked: that has no probability.
    """
    most, masked = int(kept_BV.sum(1).max()) if len(kept_BV) else 0, kept_BV.bool() & ~mask_BV
    if most > capacity or masked.any():
        raise ConfigError(
            f"kept slots: wanted at most {capacity} in a row, none of them masked, got {most} in a row and "
            f"{int(masked.sum())} masked"
        )
    logits = torch.where(mask_BV, logits_BV, _NEVER)
    ways = log_ways(logits, capacity)
    left = capacity - kept_BV.cumsum(1) + kept_BV  # places free before each decision
    now = ways[:, :-1].gather(2, left[..., None])[..., 0]
    drop = ways[:, 1:].gather(2, left[..., None])[..., 0] - now
    keep = logits + ways[:, 1:].gather(2, (left - 1).clamp(min=0)[..., None])[..., 0] - now
    open_BV = mask_BV & (left > 0)  # elsewhere `keep` is no log-prob, and its exponential may overflow
    keep, drop = torch.where(open_BV, keep, 0.0), torch.where(open_BV, drop, 0.0)
    return torch.where(kept_BV.bool(), keep, drop), -(keep.exp() * keep + drop.exp() * drop)
