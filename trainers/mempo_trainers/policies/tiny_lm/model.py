"""A small causal transformer: RMSNorm, rotary positions, tied weights, the last tokens in every embedding.

A position knows its own token and the two before it, so that one layer of attention can already copy: it
looks for where the last tokens stood before, and writes what came next there.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from msgspec import Struct
from torch import Tensor, nn

from mempo_trainers.policies.tiny_lm.tokenizer import PAD

REACH = 3
"""Tokens in the embedding of a position: its own and those before."""


class Shape(Struct, frozen=True):
    """Sizes of the network."""

    vocabulary: int
    width: int = 128
    layers: int = 3
    heads: int = 4


class Cache(Struct):
    """Keys and values (B, H, S, D) of each layer for the S places of B rows; filled place by place."""

    keys: list[Tensor]
    values: list[Tensor]


class Layer(nn.Module):
    """Attention, then a feed-forward network, each on normed input and added to the stream."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_feed = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(
        self, x_BSW: Tensor, turn: tuple[Tensor, Tensor], past: tuple[Tensor, ...] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The stream after the layer, and the keys and values (B, H, S, D) that it made.

        Args:
            x_BSW: The stream before.
            turn: Cosines and sines (B, 1, S, D / 2) of the positions.
            past: None: S positions see each other causally. Else keys and values of the cache (B, H, C, D),
                the place (B,) in it of the one new position, and which places (B, 1, 1, C) it sees.
        """
        batch, length, width = x_BSW.shape
        qkv = self.qkv(self.before_attention(x_BSW)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        q, k = rotate(q, *turn), rotate(k, *turn)
        if past is None:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            keys, values, place, seen = past
            rows = torch.arange(batch)
            keys[rows, :, place], values[rows, :, place] = k[:, :, 0], v[:, :, 0]
            mixed = F.scaled_dot_product_attention(q, keys, values, attn_mask=seen)
        x_BSW = x_BSW + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x_BSW + self.down(F.gelu(self.up(self.before_feed(x_BSW)))), k, v


def rotate(x_BHSD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions (Su et al., 2104.09864): pairs (i, i + D / 2) are turned by their position's angle."""
    a, b = x_BHSD.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


class Transformer(nn.Module):
    """Token ids to hidden states; `log_probs` and `value` read these."""

    frequencies: Tensor
    possible: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.width
        self.embed = nn.Embedding(shape.vocabulary, width)
        self.before = nn.Linear((REACH - 1) * width, width, bias=False)
        self.layers = nn.ModuleList(Layer(width, shape.heads) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(width)
        self.value = nn.Linear(width, 1)
        half = width // shape.heads // 2
        self.register_buffer("possible", torch.zeros(shape.vocabulary), persistent=False)
        self.possible[PAD] = -1e9
        self.register_buffer("frequencies", 10_000 ** -(torch.arange(half) / half), persistent=False)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                nn.init.normal_(weight, std=0.02 if "embed" in name else width**-0.5)
        nn.init.zeros_(self.value.weight)

    def _enter(self, ids_BS: Tensor, positions_BS: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Embeddings of all but the first REACH - 1 ids, and the turns of their positions."""
        tokens = self.embed(ids_BS)
        length = ids_BS.shape[1] - REACH + 1
        before = torch.cat([tokens[:, i : i + length] for i in range(REACH - 1)], -1)
        x_BSW = tokens[:, REACH - 1 :] + self.before(before)
        angles = positions_BS[:, None, :, None] * self.frequencies
        return x_BSW, (angles.cos(), angles.sin())

    def forward(self, ids_BS: Tensor, room: int = 0) -> tuple[Tensor, Cache]:
        """Hidden states (B, S, W) of whole texts, and their cache with room for so many more places.

        Texts are padded on the right: what stands behind a position is never seen by it.
        """
        x, turn = self._enter(F.pad(ids_BS, (REACH - 1, 0)), torch.arange(ids_BS.shape[1])[None])
        cache = Cache([], [])
        for layer in self.layers:
            x, keys, values = layer(x, turn)
            cache.keys.append(F.pad(keys, (0, 0, 0, room)) if room else keys)
            cache.values.append(F.pad(values, (0, 0, 0, room)) if room else values)
        return self.norm(x), cache

    def go_on(self, last_BR: Tensor, place_B: Tensor, cache: Cache) -> Tensor:
        """Hidden states (B, W) of one more token in each row.

        Args:
            last_BR: The last REACH ids of each row, the new one included.
            place_B: The place of the new one; places behind it are not seen.
            cache: Of the places before; the new one is written into it.
        """
        x, turn = self._enter(last_BR, place_B[:, None])
        seen = (torch.arange(cache.keys[0].shape[2]) <= place_B[:, None])[:, None, None]
        for layer, keys, values in zip(self.layers, cache.keys, cache.values, strict=True):
            x, _, _ = layer(x, turn, (keys, values, place_B, seen))
        normed: Tensor = self.norm(x[:, 0])
        return normed

    def log_probs(self, hidden: Tensor) -> Tensor:
        """Log-probs (..., V) of the next id, by the embeddings of the tokens; padding is impossible."""
        return F.log_softmax(F.linear(hidden, self.embed.weight, self.possible), -1)
