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
from mempo_trainers.scoring.attention import BLOCKS, FLEX, skipping
from mempo_trainers.scoring.base import Asked
from mempo_trainers.scoring.networks import as_floats, at_rest
from mempo_trainers.scoring.prefix_tree import one_tree
from mempo_trainers.scoring.tree import grow, in_order
from scoring_help import alone, far, make, network, related, texts

pytest.importorskip("transformers", reason="needs mempo[llm]")
from transformers.integrations import sdpa_attention

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
    with torch.no_grad(), skipping(net) as skips:
        assert skips


def test_attention_skips_on_cuda_and_under_sdpa_and_is_set_back() -> None:
    class Elsewhere:
        def __init__(self, kind: str, used: str) -> None:
            self.device = torch.device(kind)
            self.config = type("Config", (), {"_attn_implementation": used})()

        def set_attn_implementation(self, name: str) -> None:
            self.config._attn_implementation = name

    for kind, before, used in (
        ("cuda", "sdpa", FLEX),
        ("cuda", "eager", FLEX),
        ("cpu", "sdpa", BLOCKS),
        ("cpu", "eager", "eager"),
    ):
        net = Elsewhere(kind, before)
        with torch.no_grad(), pytest.raises(RuntimeError), skipping(net) as skips:
            assert net.config._attn_implementation == used and skips is (used != "eager")
            raise RuntimeError
        assert net.config._attn_implementation == before
        with skipping(net) as skips:  # with gradients
            assert net.config._attn_implementation == before and not skips


@pytest.mark.parametrize("name", ["llama", "qwen2, windows", "mistral", "gemma3", "gpt2"])
@pytest.mark.parametrize("rows", [1, 7, 256])
def test_blocks_of_sdpa_say_what_all_at_once_says(
    name: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mempo_trainers.scoring.attention._ROWS", rows)
    net, asked = network(name), related(np.random.default_rng(9))
    order = in_order([one.read for one in asked])
    with at_rest(net):
        told = as_floats(one_tree(net, [asked[i] for i in order]))
    assert net.config._attn_implementation == "sdpa"
    assert far(told, [alone(net, asked[i]) for i in order]) < 1e-4


def test_what_no_row_of_a_block_sees_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """1-2-3-4 and 1-5-6-7, two rows at a time: blocks 12, 34, 56 and 7 see 2, 4, 3 and 4 nodes."""
    net = make("llama")
    monkeypatch.setattr("mempo_trainers.scoring.attention._ROWS", 2)
    forward, looks = sdpa_attention.sdpa_attention_forward, []

    def counted(module: Any, query: Any, key: Any, *rest: Any, **kwargs: Any) -> Any:
        looks.append((query.shape[2], key.shape[2]))
        return forward(module, query, key, *rest, **kwargs)

    monkeypatch.setattr(sdpa_attention, "sdpa_attention_forward", counted)
    with at_rest(net):
        one_tree(
            net, [Asked(np.array([1, 2, 3, 4]), np.array([9])), Asked(np.array([1, 5, 6, 7]), np.array([9]))]
        )
    assert looks == [(2, 2), (2, 4), (2, 3), (1, 4)] * 2


def test_layers_that_neither_see_all_nor_a_window_are_refused() -> None:
    kinds = ["full_attention", "chunked_attention", "linear_attention"]
    config = type("Config", (), {"layer_types": kinds, "sliding_window": None})
    with pytest.raises(ConfigError, match="got chunked_attention, linear_attention"):
        masks.windows(config)
