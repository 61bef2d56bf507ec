"""Networks that trees cannot serve are found when a scorer is opened, and asked text by text."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch

from mempo_env.errors import ConfigError
from mempo_trainers.scoring import selftest
from mempo_trainers.scoring.base import Asked
from mempo_trainers.scoring.masks import windows
from mempo_trainers.scoring.naive import Naive
from mempo_trainers.scoring.prefix_tree import PrefixTree
from mempo_trainers.scoring.table import open_scorer
from scoring_help import REFUSED, SERVED, alone, far, ids, make, network, related

pytest.importorskip("transformers", reason="needs mempo[llm]")

REASONS = {
    "dynamic RoPE": "rotations depend on the length of the text .dynamic RoPE",
    "longrope RoPE": "rotations depend on the length of the text .longrope RoPE",
    "bloom": "refuses a tree's mask",
    "mpt": "log-probs differ by .* more than 0.0001",
    "mamba": "wanted layers of full or sliding attention, got linear_attention",
}


@pytest.mark.parametrize("name", SERVED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_networks_that_can_be_asked_by_trees_are(name: str, dtype: torch.dtype) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scorer = open_scorer("prefix_tree", make(name).to(dtype), most_nodes=99, batch_tokens=77)
    assert isinstance(scorer, PrefixTree) and (scorer.name, scorer.fallback) == ("prefix_tree", "")
    assert (scorer.most_nodes, scorer.batch_tokens) == (99, 77)


@pytest.mark.parametrize("name", REFUSED)
def test_a_network_that_cannot_is_asked_text_by_text_and_that_is_said(name: str) -> None:
    with pytest.warns(UserWarning, match=REASONS[name]) as told:
        scorer = open_scorer("prefix_tree", network(name), batch_tokens=40)
    assert len(told) == 1 and isinstance(scorer, Naive) and scorer.batch_tokens == 40
    assert scorer.fallback and scorer.fallback in str(told[0].message)
    asked = related(np.random.default_rng(0))
    assert far(scorer.logprobs(asked), [alone(network(name), one) for one in asked]) < 1e-4


def test_networks_with_rotations_by_length_are_read_text_by_text() -> None:
    """A batch with a long text would give a short one the rotations of long texts: 0.3 nats and more."""
    net = network("longrope RoPE")
    short, long = Asked(ids(3, 1, 4, 1, 5), ids(9, 2)), Asked(np.arange(3, 61).repeat(2)[:90], ids(7))
    assert far(Naive(net).logprobs([short, long]), [alone(net, short), alone(net, long)]) < 1e-4


def _deaf(net: Any) -> Any:
    """The network, whose layers see all that comes before, whatever the mask says."""

    def ignore(module: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        mask = kwargs["attention_mask"]
        return args, kwargs if mask is None else {
            **kwargs,
            "attention_mask": torch.full_like(mask, -1e9).triu(1),
        }

    for layer in net.model.layers:
        layer.register_forward_pre_hook(ignore, with_kwargs=True)
    return net


def test_a_network_that_ignores_its_mask_is_found() -> None:
    """Batches that are padded on the right need no mask, so only the tree is wrong."""
    net = _deaf(make("llama"))
    assert "log-probs differ by" in selftest.doubt(net)


def test_a_network_that_ignores_positions_is_found() -> None:
    net = make("llama")
    turn = net.model.rotary_emb.forward
    net.model.rotary_emb.forward = lambda x, position_ids: turn(x, torch.arange(x.shape[1])[None])
    assert "log-probs differ by" in selftest.doubt(net)


def test_a_window_one_token_too_wide_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = windows

    def wide(config: Any) -> dict[str, int | None]:
        return {kind: window and window + 1 for kind, window in right(config).items()}

    assert selftest.doubt(network("mistral")) == ""
    monkeypatch.setattr("mempo_trainers.scoring.masks.windows", wide)
    assert "log-probs differ by" in selftest.doubt(network("mistral"))


@pytest.mark.parametrize("name", ["mistral", "gemma3"])
def test_the_window_is_seen_in_16_bits_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice the noise of padding is far less than what a mask without a window changes."""
    net = make(name).bfloat16()
    whole = {"mistral": {"full_attention": None}, "gemma3": dict.fromkeys(windows(net.config), None)}[name]
    monkeypatch.setattr("mempo_trainers.scoring.masks.windows", lambda config: whole)
    assert "log-probs differ by" in selftest.doubt(net)


def test_nan_log_probs_are_no_agreement() -> None:
    net = make("llama")
    with torch.no_grad():
        net.lm_head.weight[3] = torch.nan
    assert "log-probs differ by nan" in selftest.doubt(net)


def test_other_attention_is_refused_before_it_is_tried() -> None:
    net = make("llama")
    net.config._attn_implementation_internal = "flash_attention_2"
    assert selftest.doubt(net).startswith(
        "it needs attention by eager, sdpa, flex_attention, and the network"
    )


def test_the_texts_tried_pass_the_window_and_stay_within_the_positions() -> None:
    for window, positions, longest in ((5, 128, 119), (5, 64, 63), (300, 4_096, 347), (4_096, 8_192, 1_199)):
        net = make("mistral", sliding_window=window, max_position_embeddings=positions)
        asked = selftest.trajectory(net)
        assert max(len(one.read) for one in asked) == longest
        again = selftest.trajectory(net)
        assert all(np.array_equal(a.read, b.read) for a, b in zip(asked, again, strict=True))
    assert selftest.doubt(make("mistral", sliding_window=300, max_position_embeddings=4_096)) == ""


def test_modes_random_states_and_precision_are_as_before() -> None:
    net = make("llama").train()
    state = torch.get_rng_state()
    open_scorer("prefix_tree", net)
    assert torch.equal(torch.get_rng_state(), state) and all(module.training for module in net.modules())
    assert torch.get_float32_matmul_precision() == "highest" and torch.is_grad_enabled()


# --- Opening -----------------------------------------------------------------------------------------------


def test_scorers_are_opened_by_name() -> None:
    naive = open_scorer("naive", network("llama"))
    assert (naive.name, naive.fallback) == ("naive", "")
    with pytest.raises(ConfigError, match="did you mean 'prefix_tree'"):
        open_scorer("prefix_three", network("llama"))
    with pytest.raises(ConfigError, match="'naive': wanted network=, got none"):
        open_scorer("naive")
    with pytest.raises(ConfigError, match="'server': wanted model=, with a method score, got none"):
        open_scorer("server", network("llama"))
