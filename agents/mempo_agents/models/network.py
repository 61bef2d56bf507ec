"""A causal language model of transformers in memory: reading ids with it, and changing its weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from inspect import signature
from pathlib import Path
from typing import Any, TypeAlias

import torch
from msgspec import Struct

from mempo_agents.models.chat import Tokenizer
from mempo_agents.models.weights import check_same, shapes, weight_files
from mempo_env.files import digest

Network: TypeAlias = Any
"""A causal language model of transformers, or of peft around one."""

Cache: TypeAlias = Any
"""Keys and values of what was read, of transformers."""


class Loaded(Struct, kw_only=True, eq=False):
    """A model in memory.

    Attributes:
        name: What to call it in tables: its name at the hub, or the last part of its folder's.
        network: The network.
        tokenizer: Its tokenizer.
        window: Tokens of prompt and output together at most; None: no limit is known.
        ends: Ids that end a message.
        silent: Ids of special tokens, which are no text.
        contents: A digest of weights, tokenizer, chat template and dtype; None: the weights may change, and
            are looked at whenever it is asked for.
        joins: Whether a prompt can join others that are being continued: where every layer keeps all keys and
            values. Layers with a sliding window or a recurrent state do not.
    """

    name: str
    network: Network
    tokenizer: Tokenizer
    window: int | None
    ends: frozenset[int]
    silent: frozenset[int]
    contents: str | None
    joins: bool


def window_of(network: Network) -> int | None:
    """Positions that a network knows; None: no limit is known."""
    known: int | None = getattr(network.config.get_text_config(), "max_position_embeddings", None)
    return known


def joins(network: Network) -> bool:
    """Whether every layer keeps keys and values of all that was read."""
    from transformers.cache_utils import DynamicCache, DynamicLayer

    return all(type(layer) is DynamicLayer for layer in DynamicCache(config=network.config).layers)


def ends_of(network: Network, tokenizer: Tokenizer) -> frozenset[int]:
    """Ids that end a message, as network and tokenizer tell."""
    return _ids(network.generation_config.eos_token_id) | _ids(tokenizer.eos_token_id)


def silent_ids(tokenizer: Tokenizer) -> frozenset[int]:
    """Ids of special tokens."""
    return frozenset(i for i, token in tokenizer.added_tokens_decoder.items() if token.special)


def _ids(told: int | list[int] | None) -> frozenset[int]:
    return frozenset(() if told is None else [told] if isinstance(told, int) else told)


# --- Reading -----------------------------------------------------------------------------------------------


@contextmanager
def evaluating(network: Network) -> Iterator[None]:
    """Without dropout and gradients; afterwards each module is in the mode that it was in."""
    training = [module for module in network.modules() if module.training]
    for module in training:
        module.training = False
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


def padded(texts: Sequence[Sequence[int]], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids (B, T) with zeros on the left, and the mask that is 1 where a text is, by their lengths alone."""
    longest = max(map(len, texts))
    ids_BT = torch.tensor([[0] * (longest - len(text)) + list(text) for text in texts])
    lengths_B = torch.tensor([len(text) for text in texts])
    mask_BT = (torch.arange(longest) >= longest - lengths_B[:, None]).long()
    return ids_BT.to(device), mask_BT.to(device)


def read(
    network: Network, ids_BT: torch.Tensor, mask_BC: torch.Tensor, keep: int = 1, cache: Cache = None
) -> torch.Tensor:
    """Log-probabilities (B, keep, V) in float32 of the token after each of the last `keep` ids.

    Args:
        network: Who reads.
        ids_BT: What is read.
        mask_BC: 1 where the cache, or ids_BT at its end, holds a token of the row; ones stand on the right.
        keep: How many places.
        cache: What was read before, to which this is added; None: nothing was.
    """
    places_BT = (mask_BC.cumsum(-1) - 1).clamp(min=0)[:, -ids_BT.shape[1] :]
    said = network(
        input_ids=ids_BT,
        attention_mask=mask_BC,
        position_ids=places_BT,
        use_cache=cache is not None,
        logits_to_keep=keep,
        **({} if cache is None else {_keyword(_class(network)): cache}),
    )
    logits_BKV: torch.Tensor = said.logits[:, -keep:]
    return logits_BKV.float().log_softmax(-1)


def _class(network: Network) -> Any:
    return type(network.get_base_model() if hasattr(network, "get_base_model") else network)


@lru_cache
def _keyword(kind: Any) -> str:
    """What a class of networks calls the cache: "cache" in transformers of late, "past_key_values" before."""
    return "cache" if "cache" in signature(kind.forward).parameters else "past_key_values"


# --- Weights -----------------------------------------------------------------------------------------------


def load_weights(network: Network, folder: Path) -> None:
    """Copy the weights in a folder into a network, in place; all or, if any does not fit, none.

    Args:
        network: Whose weights are changed.
        folder: Of a Hugging Face model, with its safetensors. A tensor that the network shares between two
            names may be there under one of them.

    Raises:
        ConfigError: if the folder has no weights, or others than the network's by name or shape.
    """
    from safetensors import safe_open

    own, given = network.state_dict(), shapes(folder)
    there = {own[name].data_ptr() for name in given if name in own}
    spared = [name for name, tensor in own.items() if tensor.data_ptr() in there]
    check_same(folder, given, {name: tuple(tensor.shape) for name, tensor in own.items()}, spared)
    with torch.no_grad():
        for file in weight_files(folder):
            with safe_open(file, framework="pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118
                    own[name].copy_(tensors.get_tensor(name))


def weights_digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """Of tensors, by name and content."""
    parts = (
        part
        for name, tensor in tensors.items()
        for part in (name, tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    )
    return digest(*parts)
