"""Attention that skips what a tree hides: FlexAttention on CUDA, blocks of sdpa elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from mempo_trainers.scoring.networks import Network

FLEX, BLOCKS = "flex_attention", "mempo_blocks"

_ROWS = 256
"""Nodes that are looked from at a time: fewer skip more, more keep the processor busy."""


@contextmanager
def skipping(network: Network) -> Iterator[bool]:
    """Let a network skip pairs that a tree hides, and tell whether it does; afterwards it is as before.

    With gradients its attention stays what it is, for activations may be computed again when they are needed.
    """
    before = network.config._attn_implementation
    used = before if torch.is_grad_enabled() else _better(network, before)
    if used == before:
        yield before == FLEX
        return
    _register()
    network.set_attn_implementation(used)
    try:
        yield True
    finally:
        network.set_attn_implementation(before)


def _better(network: Network, used: str) -> str:
    if network.device.type == "cuda":
        return FLEX
    return BLOCKS if used == "sdpa" else used


def _register() -> None:
    from transformers import AttentionInterface

    AttentionInterface.register(BLOCKS, in_blocks)


def in_blocks(
    module: torch.nn.Module,
    query_BHND: Tensor,
    key_BHND: Tensor,
    value_BHND: Tensor,
    attention_mask: Tensor,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The sdpa of transformers, some rows at a time, over the columns that any of them sees.

    Args:
        module: Whose attention it is.
        query_BHND: A vector for each node that looks.
        key_BHND: One for each that is looked at.
        value_BHND: What that says.
        attention_mask: Of a tree, (1, 1, N, N), 0 where something is seen (`masks.dense`).
        kwargs: Scale and dropout.

    Returns:
        What each node is told, (B, N, H, D).
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    parts = []
    for start in range(0, query_BHND.shape[2], _ROWS):
        rows = slice(start, start + _ROWS)
        mask = attention_mask[:, :, rows, : rows.stop]  # nothing is seen that comes later
        seen = (mask[0, 0] == 0).any(0).nonzero()[:, 0]
        keys, values, mask = key_BHND[:, :, seen], value_BHND[:, :, seen], mask[..., seen]
        told, _ = sdpa_attention_forward(module, query_BHND[:, :, rows], keys, values, mask, **kwargs)
        parts.append(told)
    return torch.cat(parts, dim=1), None
