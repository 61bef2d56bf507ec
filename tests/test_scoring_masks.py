"""FlexAttention's blocks hide what the dense mask hides, and a network that runs on them says the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mempo_env.errors import ConfigError
from mempo_trainers.scoring import masks
from mempo_trainers.scoring.naive import Naive
from mempo_trainers.scoring.networks import as_floats, at_rest
from mempo_trainers.scoring.prefix_tree import FLEX, flex_on_cuda, one_tree, price
from mempo_trainers.scoring.tree import grow, in_order
from scoring_help import alone, far, make, network, related, texts

LOWEST = torch.finfo(torch.float32).min
CPU = torch.device("cpu")


def tensors(made: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    tree, _ = grow([made[i] for i in in_order(made)])
    return torch.from_numpy(tree.depth_N), torch.from_numpy(tree.end_N)


def test_a_mask_written_down_by_hand() -> None:
    """1-2-3 and 1-4-5: nodes 1 2 3 4 5. With a window of 2 a token sees itself and the one above it."""
    depth, end = tensors([np.array([1, 2, 3]), np.array([1, 4, 5])])
    whole = ["x....", "xx...", "xxx..", "x..x.", "x..xx"]
    narrow = ["x....", "xx...", ".xx..", "x..x.", "...xx"]
    for window, rows in ((None, whole), (2, narrow)):
        mask_11NN = masks.dense(masks.sees(depth, end, window), 5, torch.float32, CPU)
        assert mask_11NN.shape == (1, 1, 5, 5) and set(mask_11NN.unique().tolist()) == {0.0, LOWEST}
        assert ["".join("x" if seen else "." for seen in row) for row in (mask_11NN[0, 0] == 0)] == rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_lowest_value_is_that_of_the_dtype_and_finite(dtype: torch.dtype) -> None:
    depth, end = tensors([np.array([1, 2]), np.array([1, 3])])
    mask_11NN = masks.dense(masks.sees(depth, end, None), 3, dtype, CPU)
    assert mask_11NN.dtype == dtype and float(mask_11NN.min()) == torch.finfo(dtype).min


@settings(max_examples=40, deadline=None)
@given(texts(), st.none() | st.integers(1, 6))
def test_blocks_hide_what_the_dense_mask_hides(made: list[Any], window: int | None) -> None:
    from torch.nn.attention.flex_attention import create_mask

    depth, end = tensors(made)
    mask, nodes = masks.sees(depth, end, window), len(depth)
    dense = masks.dense(mask, nodes, torch.float32, CPU)[0, 0] == 0
    block = masks.blocks(mask, nodes, CPU)
    assert block.shape == (1, 1, nodes, nodes)
    assert torch.equal(create_mask(block.mask_mod, 1, 1, nodes, nodes, "cpu")[0, 0], dense)


def test_blocks_in_which_nothing_is_seen_are_skipped() -> None:
    """Three chains of 256 after one token, in blocks of 128: 28 of 49 blocks are causal, 19 are seen."""
    chains = [np.concatenate([[0], np.full(256, token)]) for token in (1, 2, 3)]
    depth, end = tensors(chains)
    block = masks.blocks(masks.sees(depth, end, None), len(depth), CPU)
    seen = (block.to_dense()[0, 0] > 0).int()
    assert seen.tolist() == [
        [1, 0, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0, 0],
        [1, 0, 1, 1, 0, 0, 0],
        [1, 0, 1, 1, 1, 0, 0],
        [1, 0, 0, 0, 1, 1, 0],
        [1, 0, 0, 0, 1, 1, 1],
    ]


@pytest.mark.parametrize("name", ["llama", "qwen2, windows", "mistral", "gemma3"])
def test_a_network_on_flex_attention_says_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not compiled, which needs a compiler for the CPU; what is computed is the same."""
    from torch.nn.attention.flex_attention import flex_attention

    monkeypatch.setattr(
        "transformers.integrations.flex_attention.compile_friendly_flex_attention",
        lambda query, key, value, training=False, **kwargs: flex_attention(query, key, value, **kwargs),
    )
    net = make(name, attn_implementation=FLEX)
    asked = related(np.random.default_rng(0))
    order = in_order([one.read for one in asked])
    with at_rest(net):
        told = as_floats(one_tree(net, [asked[i] for i in order]))
    assert far(told, [alone(network(name), asked[i]) for i in order]) < 1e-4
    assert price(net).sparse


def test_a_network_is_set_to_flex_on_cuda_alone_and_back() -> None:
    class Elsewhere:
        def __init__(self, kind: str) -> None:
            self.device, self.config = (
                torch.device(kind),
                type("Config", (), {"_attn_implementation": "sdpa"})(),
            )

        def set_attn_implementation(self, name: str) -> None:
            self.config._attn_implementation = name

    for kind, used in (("cuda", FLEX), ("cpu", "sdpa")):
        net = Elsewhere(kind)
        with pytest.raises(RuntimeError), flex_on_cuda(net):
            assert net.config._attn_implementation == used
            raise RuntimeError
        assert net.config._attn_implementation == "sdpa"
    with flex_on_cuda(make("llama")):
        assert len(Naive(network("llama")).logprobs(related(np.random.default_rng(0)))) > 10


def test_layers_that_neither_see_all_nor_a_window_are_refused() -> None:
    kinds = ["full_attention", "chunked_attention", "linear_attention"]
    config = type("Config", (), {"layer_types": kinds, "sliding_window": None})
    with pytest.raises(ConfigError, match="got chunked_attention, linear_attention"):
        masks.windows(config)
