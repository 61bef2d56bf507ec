"""Tiny random networks of several architectures, and texts that begin alike."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from numpy.typing import NDArray

from mempo_trainers.scoring.base import Asked

VOCABULARY, POSITIONS, WINDOW = 61, 128, 5

LIKE_LLAMA = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": POSITIONS,
    "initializer_range": 0.3,
}
"""Weights large enough that every token that is seen matters."""

LIKE_GPT2 = {"vocab_size": VOCABULARY, "n_layer": 2, "n_head": 4, "initializer_range": 0.3}
MIXED = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}

SERVED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", LIKE_LLAMA),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", LIKE_LLAMA),
    "qwen2, windows": (
        "Qwen2ForCausalLM",
        "Qwen2Config",
        {**LIKE_LLAMA, **MIXED, "use_sliding_window": True},
    ),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {**LIKE_LLAMA, "head_dim": 8}),
    "mistral": ("MistralForCausalLM", "MistralConfig", {**LIKE_LLAMA, "sliding_window": WINDOW}),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", {**LIKE_LLAMA, **MIXED, "head_dim": 8}),
    "gemma3": ("Gemma3ForCausalLM", "Gemma3TextConfig", {**LIKE_LLAMA, **MIXED, "head_dim": 8}),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", {**LIKE_GPT2, "n_embd": 32, "n_positions": POSITIONS}),
}
"""Class, configuration and its settings of networks that trees serve."""

REFUSED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "dynamic RoPE": (
        "LlamaForCausalLM",
        "LlamaConfig",
        {**LIKE_LLAMA, "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
    ),
    "longrope RoPE": (
        "LlamaForCausalLM",
        "LlamaConfig",
        {
            **LIKE_LLAMA,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 1e4,
                "factor": 2.0,
                "short_factor": [1.0] * 4,
                "long_factor": [2.0] * 4,
                "original_max_position_embeddings": 64,
            },
        },
    ),
    "bloom": ("BloomForCausalLM", "BloomConfig", {**LIKE_GPT2, "hidden_size": 32}),
    "mpt": (
        "MptForCausalLM",
        "MptConfig",
        {"vocab_size": VOCABULARY, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 4 * POSITIONS},
    ),
    "mamba": (
        "MambaForCausalLM",
        "MambaConfig",
        {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "initializer_range": 0.3},
    ),
}
"""The same of networks that trees do not serve."""


def make(name: str, **settings: Any) -> Any:
    """A new network of that kind, with random weights, always the same ones."""
    transformers = pytest.importorskip("transformers", reason="needs mempo[llm]")
    network, config, held = {**SERVED, **REFUSED}[name]
    torch.manual_seed(0)
    made = getattr(transformers, network)(getattr(transformers, config)(**{**SPECIAL, **held, **settings}))
    if name == "mpt":  # it has no setting for this
        for parameter in made.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
    return made.eval()


@cache
def network(name: str) -> Any:
    """One that several tests look at and none changes."""
    return make(name)


def ids(*numbers: int) -> NDArray[np.int64]:
    return np.array(numbers, np.int64)


def alone(network: Any, asked: Asked) -> NDArray[np.float64]:
    """The definition: one text, no padding, no mask, all logits."""
    text = torch.from_numpy(np.concatenate([asked.context, asked.answer]))[None]
    with torch.no_grad():
        logprobs_TV = network(input_ids=text).logits[0].float().log_softmax(-1)
    start = len(asked.context)
    chosen = [logprobs_TV[start + i - 1, token] for i, token in enumerate(asked.answer.tolist())]
    return np.array([float(each) for each in chosen])


def far(one: list[NDArray[np.float64]], two: list[NDArray[np.float64]]) -> float:
    """The largest difference of log-probs; shapes must be equal."""
    assert [each.shape for each in one] == [each.shape for each in two]
    return max((float(np.abs(a - b).max()) for a, b in zip(one, two, strict=True)), default=0.0)


def related(chance: np.random.Generator, count: int = 12) -> list[Asked]:
    """Histories that grow, memories beside them, the same twice, one that is the beginning of another."""
    question = chance.integers(VOCABULARY, size=7)
    answer = chance.integers(VOCABULARY, size=3)
    asked, history = [], question
    while len(asked) < count:
        asked.append(Asked(np.concatenate([question, chance.integers(VOCABULARY, size=6)]), answer))
        history = np.concatenate([history, chance.integers(VOCABULARY, size=5)])
        asked.append(Asked(history, answer))
    return [*asked, asked[0], Asked(history[:4], history[4:6]), Asked(history[:1], answer[:1])]


@st.composite
def texts(draw: st.DrawFn, most: int = 40) -> list[NDArray[np.int64]]:
    """Texts of two tokens each kind, so that many begin alike, are equal, or begin others."""
    text = st.lists(st.integers(0, 2), min_size=1, max_size=9)
    made = [ids(*draw(text)) for _ in range(draw(st.integers(1, 4)))]
    for _ in range(draw(st.integers(0, 5))):
        start = made[draw(st.integers(0, len(made) - 1))]
        kept = draw(st.integers(0, len(start)))
        made.append(np.concatenate([start[:kept], ids(*draw(text))])[:most])
    return made


@st.composite
def trees(draw: st.DrawFn) -> list[Asked]:
    """The same, each cut into a context and an answer somewhere."""
    made = []
    for text in draw(texts()):
        whole = text if len(text) > 1 else np.concatenate([text, text])
        at = draw(st.integers(1, len(whole) - 1))
        made.append(Asked(whole[:at], whole[at:]))
    return made
