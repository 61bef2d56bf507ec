"""A language model of 50,000 parameters with a tokenizer of its own, made here: nothing is downloaded."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from mempo_agents.models.base import Message, Prompt

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

STOP = ("</search>", "</answer>")
SYSTEM = "Search, then answer."

TEMPLATE = (
    "{% for message in messages %}"
    "{% if loop.first and message['role'] != 'system' %}<|start|>system\nYou are Tiny.<|end|>\n{% endif %}"
    "<|start|>{{ message['role'] }}\n{{ message['content'] }}<|end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
"""Inserts a system message where there is none, as SmolLM2's and Qwen2.5's do."""

TAUGHT = {
    "one": "<think> so </think>\n<search> Ines Calder </search>",
    "two": "<mem> a <search> b </search></mem> more",  # one token is "></", and reaches beyond the stop text
    "three": "It is \u00e9t\u00e9.<|end|>",
    "four": "<answer> yes </answer>\n<search> never </search>",
}
"""What the model has learned to write to some messages, word for word."""

WORDS = [
    *(f"<|start|>{role}\n{SYSTEM} You are Tiny. one two three four<|end|>\n" for role in ("system", "user")),
    *TAUGHT.values(),
    "</search></mem></answer></mem></search></think></search>" * 20,
    "Where does the river end? Who wrote the book? \u00fcber \u4e16\u754c \u00e9t\u00e9",
]


def prompt(text: str, stop: tuple[str, ...] = STOP) -> Prompt:
    return Prompt((Message("system", SYSTEM), Message("user", text)), (), stop)


def needs_transformers() -> Any:
    """The package; skips the test where it is missing."""
    return pytest.importorskip("transformers", reason="needs mempo[llm]")


@cache
def chatting() -> PreTrainedTokenizerFast:
    """A tokenizer that several tests look at and none changes."""
    return make_tokenizer()


def make_tokenizer(pad: str = "<|end|>") -> PreTrainedTokenizerFast:
    """A byte-level BPE; the token of padding is the one that ends a message, as in SmolLM2."""
    transformers = needs_transformers()
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    special = ["<|text|>", "<|start|>", "<|end|>", "<|pad|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=360,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(WORDS * 20, trainer)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        eos_token="<|end|>",
        pad_token=pad,
        additional_special_tokens=["<|text|>", "<|start|>", "<|pad|>"],
    )
    fast.chat_template = TEMPLATE
    return fast


def make_network(tokenizer: PreTrainedTokenizerFast, window: int = 1024, **config: Any) -> LlamaForCausalLM:
    """Random weights, large enough that no two tokens are equally likely."""
    transformers = needs_transformers()
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=window,
            initializer_range=0.3,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            **config,
        )
    ).eval()


def teach(
    network: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, taught: Mapping[str, str], steps: int = 150
) -> None:
    """Teach it what to write to each message, until the likeliest token is always the one of the text."""
    pairs = [
        (
            tokenizer.encode(
                f"<|start|>system\n{SYSTEM}<|end|>\n<|start|>user\n{asked}<|end|>\n<|start|>assistant\n",
                add_special_tokens=False,
            ),
            tokenizer.encode(text, add_special_tokens=False),
        )
        for asked, text in taught.items()
    ]
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-2)
    for _ in range(steps):
        optimiser.zero_grad()
        for prompt_ids, output_ids in pairs:
            ids = torch.tensor([prompt_ids + output_ids])
            labels = torch.tensor([[-100] * len(prompt_ids) + output_ids])
            network(input_ids=ids, labels=labels).loss.backward()
        optimiser.step()


def save(folder: Path, network: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> Path:
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


# --- Networks of several families --------------------------------------------------------------------------

_ROTARY = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.3,
    "max_position_embeddings": 512,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": _ROTARY,
    "qwen2": {**_ROTARY, "tie_word_embeddings": True},
    "gemma2": {  # soft caps on attention and logits, windows, tied weights
        **_ROTARY,
        "head_dim": 8,
        "sliding_window": 6,
        "final_logit_softcapping": 3.0,
        "attn_logit_softcapping": 2.0,
    },
    "granite": {**_ROTARY, "logits_scaling": 3.0, "embedding_multiplier": 2.0, "residual_multiplier": 0.5},
    "gpt2": {
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 512,
        "initializer_range": 0.3,
        "attn_pdrop": 0.5,
        "embd_pdrop": 0.5,
        "resid_pdrop": 0.5,
    },
}
"""Shapes of tiny networks, by the type of their config."""


def small_network(family: str, vocabulary: int, seed: int = 0, **config: Any) -> Any:
    """A network with random weights, in evaluation mode; end and padding are those of `chatting`."""
    transformers = needs_transformers()
    end = chatting().eos_token_id
    ids = {"eos_token_id": end, "pad_token_id": end, "bos_token_id": None}
    shape = {"vocab_size": vocabulary, **ids, **FAMILIES[family], **config}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made = transformers.AutoConfig.for_model(family, **shape)
        return transformers.AutoModelForCausalLM.from_config(made, dtype=torch.float32).eval()
