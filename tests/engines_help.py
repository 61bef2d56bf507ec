"""Tiny networks of several kinds in memory, and what one forward pass of their own says of given ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from llm_help import chatting, needs_transformers
from mempo_agents.models.base import Sampling
from mempo_agents.models.huggingface import HuggingFace, around

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
}
GPT2: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 512, "initializer_range": 0.3}
JOIN = {"Llama": SIZES, "Qwen2": SIZES, "GPT2": GPT2}
"""Kinds whose layers keep all keys and values."""

WINDOWS = {
    "Mistral": SIZES | {"sliding_window": 16},
    "Gemma2": SIZES | {"sliding_window": 16, "head_dim": 16},
}
"""Kinds with layers that keep the last of them."""


def network(kind: str, **changed: Any) -> Any:
    """A network of random weights in training mode, without dropout on the attention of its own."""
    transformers = needs_transformers()
    torch.manual_seed(0)
    made = {"vocab_size": len(chatting()), "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 2}
    config = getattr(transformers, f"{kind}Config")(**made, **((JOIN | WINDOWS)[kind] | changed))
    name = "GPT2LMHeadModel" if kind == "GPT2" else f"{kind}ForCausalLM"
    return getattr(transformers, name)(config)


def engine(
    kind: str, batch: int = 8, ends: int = 0, changed: dict[str, Any] | None = None, **sampling: Any
) -> HuggingFace:
    """One of those as an engine; the first `ends` ids end a message, so that texts are of all lengths."""
    made = around(
        network(kind, **(changed or {})), chatting(), name=kind, batch=batch, sampling=Sampling(**sampling)
    )
    made.loaded.ends |= frozenset(range(ends))
    return made


def alone(model: HuggingFace, first: Sequence[int], then: Sequence[int]) -> list[float]:
    """Log-probabilities of the second ids after the first by one forward pass: no cache, padding or batch."""
    training = model.loaded.network.training
    with torch.no_grad():
        logits_TV = model.loaded.network.eval()(input_ids=torch.tensor([[*first, *then]])).logits[0]
    model.loaded.network.train(training)
    logprobs_TV = torch.log_softmax(logits_TV.double(), -1)
    return [float(logprobs_TV[len(first) - 1 + i, token]) for i, token in enumerate(then)]
