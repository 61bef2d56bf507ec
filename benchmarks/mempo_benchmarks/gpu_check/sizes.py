"""How large the checks are, and the random network and tokenizer that they work on."""

from __future__ import annotations

from typing import Any

import torch
from msgspec import Struct

from mempo_agents.models.huggingface import around
from mempo_agents.models.network import Loaded

_END = "<|end|>"


class Size(Struct, frozen=True):
    """How large.

    Attributes:
        shape: Of a Qwen2.
        rollouts: That are scored,
        rounds: of so many rounds each.
        rows: Texts that are sampled at a time,
        new: of so many tokens.
        steps: Of GRPO,
        questions: with so many questions a step,
        group: rollouts of each,
        prompt: prompts of so many tokens
        written: and so many tokens a round.
        floor: Times as fast as `naive` that the tree must be; None: nothing is asked of a tiny network.
    """

    shape: dict[str, int]
    rollouts: int
    rounds: int
    rows: int
    new: int
    steps: int
    questions: int
    group: int
    prompt: int
    written: int
    floor: float | None


SIZES = {
    "full": Size(
        shape={
            "vocab_size": 151_936,
            "hidden_size": 896,
            "intermediate_size": 4_864,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "max_position_embeddings": 32_768,
        },
        rollouts=8,
        rounds=6,
        rows=64,
        new=128,
        steps=20,
        questions=4,
        group=8,
        prompt=300,
        written=64,
        floor=1.0,
    ),
    "tiny": Size(
        shape={
            "vocab_size": 300,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 8_192,
        },
        rollouts=2,
        rounds=2,
        rows=4,
        new=8,
        steps=3,
        questions=2,
        group=2,
        prompt=20,
        written=9,
        floor=None,
    ),
}
"""By name; "full" is Qwen2.5-0.5B's."""


def network(size: Size, device: str, dtype: torch.dtype = torch.float32) -> Any:
    """A random network on a device, the same one each time."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        **size.shape, tie_word_embeddings=True, eos_token_id=0, pad_token_id=0, bos_token_id=None
    )
    torch.manual_seed(0)
    with torch.device(device):
        made: Any = Qwen2ForCausalLM(config)
    return made.to(dtype).eval()


def loaded(size: Size, device: str) -> Loaded:
    """The network in float32, with a tokenizer of the 256 bytes; most of its ids are no text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = [_END, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    made = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, eos_token=_END, pad_token=_END)
    return around(network(size, device), tokenizer, name="random").loaded
