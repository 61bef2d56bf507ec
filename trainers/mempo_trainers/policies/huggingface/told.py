"""From logits to log-probs and entropies of tokens, without holding a second array of the logits' size."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK = 1 << 24
"""Logits that are looked at in float32 at a time."""


def told(logits_NV: Tensor, ids_N: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probs (N,) of the ids and entropies (N,), nats, of the distributions; float32, with gradients.

    The softmax is computed in float32 (in float64 for logits in float64). Only the logits are kept for the
    backward pass; what nobody takes a gradient of costs nothing there.
    """
    return _Told.apply(logits_NV, ids_N)  # type: ignore[no-any-return, no-untyped-call]


class _Told(torch.autograd.Function):
    """log p_i = x_i - log sum_v exp x_v, and H = - sum_v p_v log p_v.

    d log p_i / dx_v = [v = i] - p_v, and dH / dx_v = - p_v (log p_v + H).
    """

    @staticmethod
    def forward(ctx: Any, logits_NV: Tensor, ids_N: Tensor) -> tuple[Tensor, Tensor]:
        logprobs, entropies = [], []
        for part_NV, ids in zip(_split(logits_NV), _split(ids_N, like=logits_NV), strict=True):
            logp_NV = part_NV.to(_wide(part_NV)).log_softmax(-1)
            logprobs.append(logp_NV.gather(-1, ids[:, None])[:, 0])
            p_NV, least = logp_NV.exp(), torch.finfo(logp_NV.dtype).min  # 0 log 0 is 0
            entropies.append(-p_NV.mul_(logp_NV.clamp_(min=least)).sum(-1))
        entropies_N = torch.cat(entropies)
        ctx.save_for_backward(logits_NV, ids_N, entropies_N)
        ctx.set_materialize_grads(False)
        return torch.cat(logprobs), entropies_N

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, of_logprobs_N: Tensor | None, of_entropies_N: Tensor | None
    ) -> tuple[Tensor | None, None]:
        logits_NV, ids_N, entropies_N = ctx.saved_tensors
        if of_logprobs_N is None and of_entropies_N is None:
            return None, None
        gradient_NV, n = torch.empty_like(logits_NV), 0
        for part_NV in _split(logits_NV):
            here, n = slice(n, n + len(part_NV)), n + len(part_NV)
            p_NV = part_NV.to(_wide(part_NV)).softmax(-1)
            g_N1 = (torch.zeros_like(entropies_N) if of_logprobs_N is None else of_logprobs_N)[here, None]
            out_NV = (-g_N1 * p_NV).scatter_add_(-1, ids_N[here, None], g_N1)
            if of_entropies_N is not None:
                inner_NV = torch.xlogy(p_NV, p_NV).addcmul_(p_NV, entropies_N[here, None])
                out_NV -= inner_NV.mul_(of_entropies_N[here, None])
            gradient_NV[here] = out_NV
        return gradient_NV, None


def _wide(logits_NV: Tensor) -> torch.dtype:
    return torch.promote_types(logits_NV.dtype, torch.float32)


def _split(array_N: Tensor, like: Tensor | None = None) -> tuple[Tensor, ...]:
    """Parts of so many rows as hold `CHUNK` logits."""
    vocabulary = (array_N if like is None else like).shape[-1]
    return torch.split(array_N, max(1, CHUNK // vocabulary))
