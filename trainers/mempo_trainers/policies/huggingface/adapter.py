"""Which weights of a network learn: all of them, or adapters of low rank (LoRA, arXiv 2106.09685)."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mempo_agents.models.network import Network
from mempo_env.errors import ConfigError, MissingExtra

_NAME = "default"


def adapted(network: Network, rank: int, alpha: int, seed: int) -> Any:
    """Freeze a network and give each linear layer but the head an adapter; returns peft's model around it.

    The adapters' B is 0, so the network is at first what it was.

    Raises:
        ConfigError: for a rank above the network's width, beyond which adapters gain nothing.
    """
    width = network.get_output_embeddings().weight.shape[1]
    if rank > width:
        raise ConfigError(f"lora_rank: wanted at most {width:,}, the width of the network, got {rank:,}")
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise MissingExtra("peft", "llm") from None

    config = LoraConfig(r=rank, lora_alpha=alpha, target_modules="all-linear", task_type="CAUSAL_LM")
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of old names in transformers, of GPT-2's transposed weights
        torch.manual_seed(seed)
        model = get_peft_model(network, config)
    return model.eval()


def check_new(adapter: Any) -> None:
    """Refuse an adapter that has learned, as what lies below it is not what the policy is."""
    learned = [name for name, weight in adapter.named_parameters() if ".lora_B." in name and weight.any()]
    if learned:
        raise ConfigError(
            f"reference: wanted a new adapter, all B of it 0, got one that has learned ({learned[0]}); "
            "take the reference before training, or merge the adapter (save) and begin with that folder"
        )


def frozen(network: Network, bfloat16: bool) -> Network:
    """A copy that computes the same and does not learn.

    Under autocast the matrices of linear layers are rounded to bfloat16 anyway, so it keeps them so.
    """
    twin = copy.deepcopy(network).requires_grad_(False)
    embedding = twin.get_input_embeddings().weight
    for module in twin.modules() if bfloat16 else ():
        if isinstance(module, nn.Linear) and module.weight is not embedding:
            module.to(torch.bfloat16)
    return twin


def merged(network: Network, dtype: torch.dtype) -> dict[str, Tensor]:
    """The weights by the names of the plain network, adapters added to them, floating ones in a dtype."""
    state = {
        name.replace(".base_layer.", "."): weight
        for name, weight in network.state_dict().items()
        if ".lora_" not in name
    }
    for name, module in network.named_modules():
        if hasattr(module, "base_layer"):
            state[f"{name}.weight"] = module.base_layer.weight.float() + module.get_delta_weight(_NAME)
    return {
        name: weight.to(dtype) if weight.is_floating_point() else weight for name, weight in state.items()
    }


def checkpointed(network: Network) -> None:
    """Let each layer keep only its inputs for the backward pass, and compute the rest again.

    Transformers does that in training mode alone, with the dropout on.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    for layer in network.modules():
        if isinstance(layer, GradientCheckpointingLayer):
            layer.forward = _Again(layer.forward)


class _Again:
    """A forward pass that is made again in the backward pass."""

    def __init__(self, forward: Any) -> None:
        self.forward = forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled():
            return checkpoint(self.forward, *args, use_reentrant=False, **kwargs)
        return self.forward(*args, **kwargs)
