"""Who sees whom in a tree: the masks that a network's layers take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from mempo_env.errors import ConfigError

Sees: TypeAlias = Callable[[Any, Any, Tensor, Tensor], Tensor]
"""From batch, head and the numbers of a node that looks and of one that is looked at, to yes or no."""

_FULL, _SLIDING = "full_attention", "sliding_attention"


def windows(config: Any) -> dict[str, int | None]:
    """The kinds of layers of a network, each with the tokens that it sees, its own among them; None: all.

    Raises:
        ConfigError: for layers that are neither of full nor of sliding attention.
    """
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if not kinds:  # the same for all layers
        return {_SLIDING: window} if window else {_FULL: None}
    if strange := set(kinds) - {_FULL, _SLIDING}:
        raise ConfigError(f"wanted layers of full or sliding attention, got {', '.join(sorted(strange))}")
    return {kind: window if kind == _SLIDING else None for kind in dict.fromkeys(kinds)}


def sees(depth_N: Tensor, end_N: Tensor, window: int | None) -> Sees:
    """Whether node q sees node k: k is above q, or is q, and within the window by depth.

    Args:
        depth_N: As of `Tree`.
        end_N: As of `Tree`.
        window: Tokens that a token sees, itself among them; None: all.
    """

    def mask(batch: Any, head: Any, q: Tensor, k: Tensor) -> Tensor:
        above = (k <= q) & (q < end_N[k])
        return above if window is None else above & (depth_N[q] - depth_N[k] < window)

    return mask


def dense(mask: Sees, nodes: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """What is added to scores (1, 1, N, N): 0, or the lowest value of the dtype where nothing is seen."""
    node_N = torch.arange(nodes, device=device)
    seen_NN = mask(None, None, node_N[:, None], node_N[None])
    hidden = torch.full((), torch.finfo(dtype).min, dtype=dtype, device=device)
    return torch.where(seen_NN, hidden.new_zeros(()), hidden)[None, None]


def blocks(mask: Sees, nodes: int, device: torch.device) -> Any:
    """The same for FlexAttention, which skips blocks of 128 x 128 in which nothing is seen."""
    from torch.nn.attention.flex_attention import create_block_mask

    return create_block_mask(mask, None, None, nodes, nodes, device=str(device))
