"""A small causal transformer that can copy: RMSNorm, rotary positions, tied weights, a pointer.

The names in its texts are new ones, so most of what it writes it must copy. Two things make that easy to
learn: each position starts out with its own token and the two before it, so that one layer of attention can
look for where these stood before; and the next token is drawn from a mixture of the vocabulary and the tokens
in view (pointer sentinel mixture models, Merity et al., arXiv 1609.07843).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from msgspec import Struct
from torch import Tensor, nn

from mempo_env.errors import ConfigError
from mempo_trainers.policies.tiny_lm.tokenizer import PAD

REACH = 3
"""Tokens in the embedding of a position: its own and those before."""


class Shape(Struct, frozen=True):
    """Sizes of the network.

    Raises:
        ConfigError: if the width is no multiple of twice the heads: positions turn pairs within a head.
    """

    vocabulary: int
    width: int = 128
    layers: int = 3
    heads: int = 4

    def __post_init__(self) -> None:
        both = 2 * self.heads
        if self.heads < 1 or self.width % both:
            raise ConfigError(f"width: wanted a multiple of {both}, twice the heads, got {self.width}")


class Cache(Struct):
    """What later tokens need of the S places of B rows; filled place by place.

    Attributes:
        ids: The tokens (B, S).
        pointed: Keys (B, S, W) of the pointer.
        keys: Keys (B, H, S, D) of each layer.
        values: Values of each layer.
    """

    ids: Tensor
    pointed: Tensor
    keys: list[Tensor]
    values: list[Tensor]

    def take(self, rows: Tensor) -> Cache:
        """The cache of some rows."""
        keys, values = ([array[rows] for array in arrays] for arrays in (self.keys, self.values))
        return Cache(self.ids[rows], self.pointed[rows], keys, values)


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
        self.look, self.show = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.copies, self.value = nn.Linear(width, 1), nn.Linear(width, 1)
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
        keys, values = [], []
        for layer in self.layers:
            x, k, v = layer(x, turn)
            keys.append(F.pad(k, (0, 0, 0, room)) if room else k)
            values.append(F.pad(v, (0, 0, 0, room)) if room else v)
        hidden = self.norm(x)
        return hidden, Cache(
            F.pad(ids_BS, (0, room)), F.pad(self.show(hidden), (0, 0, 0, room)), keys, values
        )

    def go_on(self, id_B: Tensor, place_B: Tensor, cache: Cache) -> Tensor:
        """Hidden states (B, W) of one more token in each row.

        Args:
            id_B: The token.
            place_B: Its place; places behind it are not seen.
            cache: Of the places before; the token is written into it.
        """
        row = torch.arange(len(id_B))
        cache.ids[row, place_B] = id_B
        last = F.pad(cache.ids, (REACH - 1, 0)).gather(1, place_B[:, None] + torch.arange(REACH))
        x, turn = self._enter(last, place_B[:, None])
        seen = (torch.arange(cache.ids.shape[1]) <= place_B[:, None])[:, None, None]
        for layer, keys, values in zip(self.layers, cache.keys, cache.values, strict=True):
            x, _, _ = layer(x, turn, (keys, values, place_B, seen))
        hidden: Tensor = self.norm(x[:, 0])
        cache.pointed[row, place_B] = self.show(hidden)
        return hidden

    def log_probs(self, hidden_BKW: Tensor, place_BK: Tensor, cache: Cache) -> Tensor:
        """Log-probs (B, K, V) of the token behind each place.

        A share of them is given to the vocabulary, by the embeddings of the tokens, the rest to the tokens up
        to the place, by the pointer; padding is impossible.
        """
        vocabulary = F.softmax(F.linear(hidden_BKW, self.embed.weight, self.possible), -1)
        scores_BKS = self.look(hidden_BKW) @ cache.pointed.transpose(1, 2) / hidden_BKW.shape[-1] ** 0.5
        hidden_from = torch.arange(cache.ids.shape[1]) > place_BK[..., None]
        pointed = F.softmax(scores_BKS.masked_fill(hidden_from, -1e9), -1)
        share = torch.sigmoid(self.copies(hidden_BKW))
        ids_BKS = cache.ids[:, None].expand_as(pointed)
        return ((1 - share) * vocabulary).scatter_add(-1, ids_BKS, share * pointed).clamp_min(1e-12).log()
