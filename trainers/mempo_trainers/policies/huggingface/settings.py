"""What a policy is made of."""

from __future__ import annotations

from typing import Literal

from mempo_env.errors import ConfigError
from mempo_env.settings import Count, Settings, Size, Whole


class PolicySettings(Settings, frozen=True):
    """A causal language model, how it is held and how it learns.

    It always samples at temperature 1 from all tokens: what the sampler tells of a token is then what the
    trainer computes for it.

    Attributes:
        model: Name at the hub, or folder.
        dtype: "bfloat16": matrices are multiplied in it (autocast); weights that learn are kept in float32,
            frozen ones (of a model under LoRA) in bfloat16.
        device: Where it runs: "cpu", "cuda", "cuda:1".
        attention: The implementation in transformers; "auto": what it takes for the model (mostly "sdpa").
        lora_rank: Of the adapters of all linear layers but the head; 0: all weights learn.
        lora_alpha: Adapters are scaled by lora_alpha / lora_rank.
        gradient_checkpointing: Keep only the layers' inputs for the backward pass, compute the rest again.
        batch_tokens: Tokens, padding included, that one pass of the network takes (or one text, if longer).
        warmup_steps: Updates over which the learning rate rises linearly, the last of them the first at full
            rate, which is then kept; 0 or 1: from the start.
        weight_decay: Of matrices, as a share of the learning rate.
        max_new: Tokens that a call may write; most agents make one in a round.
    """

    model: str
    dtype: Literal["float32", "bfloat16"] = "float32"
    device: str = "cpu"
    attention: Literal["auto", "sdpa", "eager", "flex_attention"] = "auto"
    lora_rank: Whole = 0
    lora_alpha: Count = 32
    gradient_checkpointing: bool = False
    batch_tokens: Count = 8192
    warmup_steps: Whole = 0
    weight_decay: Size = 0.0
    max_new: Count = 512

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.model.strip():
            raise ConfigError("model: wanted the name or the folder of a causal language model, got nothing")
