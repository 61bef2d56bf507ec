"""Log-probs by trees and in batches are those of single texts, whatever is asked and however it is cut."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from mempo_env.errors import ConfigError
from mempo_trainers.scoring.base import Asked
from mempo_trainers.scoring.naive import Naive, batch_logprobs
from mempo_trainers.scoring.networks import as_floats, at_rest
from mempo_trainers.scoring.prefix_tree import PrefixTree, one_tree, price, tree_logprobs
from mempo_trainers.scoring.table import open_scorer
from mempo_trainers.scoring.tree import in_order
from scoring_help import POSITIONS, SERVED, VOCABULARY, WINDOW, alone, far, ids, make, network, related, trees

pytest.importorskip("transformers", reason="needs mempo[llm]")

ATOL = 1e-4
FEW = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def by_one_tree(net: Any, asked: list[Asked]) -> list[np.ndarray[Any, np.dtype[np.float64]]]:
    """All in one tree, whatever that costs, in the order in which they were asked."""
    order = in_order([one.read for one in asked])
    with at_rest(net):
        told = as_floats(one_tree(net, [asked[i] for i in order]))
    return [told[order.index(i)] for i in range(len(asked))]


# --- Equal to the definition -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SERVED)
@FEW
@given(asked=trees())
def test_a_tree_says_what_single_texts_say(name: str, asked: list[Asked]) -> None:
    net = network(name)
    expected = [alone(net, one) for one in asked]
    assert far(by_one_tree(net, asked), expected) < ATOL
    assert far(Naive(net, batch_tokens=30).logprobs(asked), expected) < ATOL


@pytest.mark.parametrize("name", SERVED)
def test_a_trajectory_longer_than_the_window(name: str) -> None:
    net, asked = network(name), related(np.random.default_rng(1))
    assert max(len(one.context) for one in asked) > 6 * WINDOW
    expected = [alone(net, one) for one in asked]
    assert far(by_one_tree(net, asked), expected) < ATOL
    assert far(PrefixTree(net).logprobs(asked), expected) < ATOL


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3", "gpt2"])
def test_eager_attention_is_served_too(name: str) -> None:
    net, asked = make(name, attn_implementation="eager"), related(np.random.default_rng(2))
    assert far(by_one_tree(net, asked), [alone(net, one) for one in asked]) < ATOL


@pytest.mark.parametrize("name", ["qwen2, windows", "mistral", "gemma2", "gemma3"])
def test_a_window_that_is_left_out_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The faults that these tests must find: several nats."""
    net, asked = network(name), related(np.random.default_rng(1))
    expected = [alone(net, one) for one in asked]
    everything = dict.fromkeys(("full_attention", "sliding_attention"))
    monkeypatch.setattr("mempo_trainers.scoring.masks.windows", lambda config: everything)
    if name == "mistral":
        monkeypatch.setattr("mempo_trainers.scoring.masks.windows", lambda config: {"full_attention": None})
    assert far(by_one_tree(net, asked), expected) > 0.1


def test_a_network_with_a_lora_adapter_on_and_off() -> None:
    """On, it is scored with the adapter; off, without, which is how a reference is kept."""
    peft = pytest.importorskip("peft", reason="needs peft")
    asked = related(np.random.default_rng(8))
    plain = Naive(network("qwen2, windows")).logprobs(asked)
    settings = peft.LoraConfig(
        task_type="CAUSAL_LM", target_modules=["q_proj", "o_proj"], init_lora_weights=False
    )
    net = peft.get_peft_model(make("qwen2, windows"), settings).eval()
    adapted = [alone(net, one) for one in asked]
    assert far(adapted, plain) > 0.01
    assert isinstance(open_scorer("prefix_tree", net), PrefixTree)
    assert (
        far(by_one_tree(net, asked), adapted) < ATOL and far(PrefixTree(net).logprobs(asked), adapted) < ATOL
    )
    with net.disable_adapter():
        assert far(PrefixTree(net).logprobs(asked), plain) < ATOL


# --- Nothing but the answer depends on what else is asked --------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_order_duplicates_and_cuts_change_nothing(name: str) -> None:
    net, asked = network(name), related(np.random.default_rng(3))
    expected = PrefixTree(net).logprobs(asked)
    back = PrefixTree(net).logprobs(asked[::-1])[::-1]
    twice = PrefixTree(net).logprobs([*asked, *asked])
    assert far(back, expected) < ATOL
    assert far(twice[: len(asked)], expected) < ATOL and far(twice[len(asked) :], expected) < ATOL
    for most in (1, 20, 60, 10_000):
        assert far(PrefixTree(net, most_nodes=most).logprobs(asked), expected) < ATOL
    for tokens in (1, 50, 100_000):
        assert far(Naive(net, batch_tokens=tokens).logprobs(asked), expected) < ATOL


def test_a_padding_id_in_the_text_is_a_token_like_any_other() -> None:
    net = network("llama")
    asked = [
        Asked(ids(0, 0, 5, 0), ids(0, 7)),
        Asked(ids(0), ids(0, 0)),
        Asked(ids(5, 0, 0, 0, 3, 4), ids(2, 0)),
    ]
    expected = [alone(net, one) for one in asked]
    assert far(Naive(net).logprobs(asked), expected) < ATOL
    assert far(by_one_tree(net, asked), expected) < ATOL


def test_no_question_is_no_answer() -> None:
    assert Naive(network("llama")).logprobs([]) == PrefixTree(network("llama")).logprobs([]) == []


def test_answers_are_probabilities() -> None:
    """Over all tokens that may follow they sum to one."""
    net = network("gemma2")
    asked = [Asked(ids(3, 1, 4, 1, 5), ids(token)) for token in range(VOCABULARY)]
    told = np.concatenate(by_one_tree(net, asked))
    assert np.exp(told).sum() == pytest.approx(1, abs=1e-5) and told.dtype == np.float64


# --- Fewer tokens ------------------------------------------------------------------------------------------


def counting(net: Any) -> list[int]:
    """The tokens of each pass that follows."""
    passes: list[int] = []
    net.register_forward_pre_hook(
        lambda module, args, kwargs: passes.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    return passes


def test_what_is_shared_is_read_once_and_logits_are_made_for_answers_only() -> None:
    """Histories of 40, 60 and 80 tokens, each the beginning of the next, with the same answer of 4."""
    net = make("llama")
    passes = counting(net)
    heads: list[tuple[int, ...]] = []
    net.lm_head.register_forward_hook(lambda module, args, out: heads.append(tuple(out.shape)))
    history = np.random.default_rng(0).integers(3, VOCABULARY, size=80)
    asked = [Asked(history[:n], ids(2, 1, 2, 1)) for n in (40, 60, 80)]
    Naive(net).logprobs(asked)
    assert passes == [3 * 83] and heads == [(3, 12, VOCABULARY)]
    by_one_tree(net, asked)
    assert passes[1:] == [80 + 3 * 3] and heads[1:] == [(1, 12, VOCABULARY)]


def test_the_cheaper_way_is_taken() -> None:
    """Wide layers: each beginning is read once. Little but attention, and a dense mask: trees are cut."""
    asked = related(np.random.default_rng(4))
    wide = make("llama", intermediate_size=9_000)
    thin = {"num_attention_heads": 16, "num_key_value_heads": 1, "head_dim": 64, "intermediate_size": 1}
    narrow = make("llama", **thin, attn_implementation="eager")
    nodes = len({one.read[: n + 1].tobytes() for one in asked for n in range(len(one.read))})
    tokens = sum(len(one.read) for one in asked)
    seen = counting(wide), counting(narrow)
    for net in (wide, narrow):
        PrefixTree(net).logprobs(asked)
    assert seen[0] == [nodes]
    assert len(seen[1]) > 1 and nodes < sum(seen[1]) < tokens


def test_the_price_is_of_layers_and_pairs() -> None:
    """By hand: two layers of q 32x32, k and v 32x16, o 32x32, three of 32x48, norms 2x32; a norm of 32."""
    layer = 32 * 32 + 2 * 32 * 16 + 32 * 32 + 3 * 32 * 48 + 2 * 32
    found = price(network("llama"), sparse=True)
    assert found.token == 2 * (2 * layer + 32)
    assert found.pair == 4 * 2 * 32 and found.sparse


# --- Gradients ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SERVED)
def test_gradients_are_those_of_separate_texts(name: str) -> None:
    asked = related(np.random.default_rng(5))
    weights = [torch.linspace(-1, 1, len(one.answer)) + i % 3 for i, one in enumerate(asked)]
    order = in_order([one.read for one in asked])

    def gradients(logprobs: Callable[[Any], list[torch.Tensor]]) -> dict[str, torch.Tensor]:
        net = make(name)
        loss = sum((each * weight).sum() for each, weight in zip(logprobs(net), weights, strict=True))
        assert isinstance(loss, torch.Tensor)
        loss.backward()
        return {key: value.grad for key, value in net.named_parameters() if value.grad is not None}

    def separately(net: Any) -> list[torch.Tensor]:
        return [batch_logprobs(net, [one])[0] for one in asked]

    def in_a_tree(net: Any) -> list[torch.Tensor]:
        told = one_tree(net, [asked[i] for i in order])
        return [told[order.index(i)] for i in range(len(asked))]

    expected = gradients(separately)
    for way in (in_a_tree, tree_logprobs_of(asked)):
        found = gradients(way)
        assert found.keys() == expected.keys() and len(found) > 10
        for key, gradient in expected.items():
            size = float(gradient.abs().max())
            assert torch.allclose(found[key], gradient, rtol=0, atol=1e-4 * max(size, 1)), key


def tree_logprobs_of(asked: list[Asked]) -> Callable[[Any], list[torch.Tensor]]:
    return lambda net: tree_logprobs(net, asked, most_nodes=80)


# --- Modes -------------------------------------------------------------------------------------------------


def test_dropout_is_off_while_scoring_and_modes_are_as_before() -> None:
    net, asked = make("gpt2"), related(np.random.default_rng(6))
    expected = [alone(net, one) for one in asked]
    net.train()
    net.transformer.h[0].eval()
    before = [module.training for module in net.modules()]
    assert net.transformer.drop.p > 0
    for scorer in (Naive(net), PrefixTree(net)):
        assert far(scorer.logprobs(asked), expected) < ATOL
        assert [module.training for module in net.modules()] == before
    assert all(parameter.grad is None for parameter in net.parameters())


def test_modes_are_as_before_after_an_error() -> None:
    net = make("llama").train()
    with pytest.raises(IndexError):
        Naive(net).logprobs([Asked(ids(VOCABULARY + 5), ids(1))])
    assert all(module.training for module in net.modules()) and torch.is_grad_enabled()


def test_autocast_changes_both_alike() -> None:
    net, asked = network("mistral"), related(np.random.default_rng(7))
    exact = Naive(net).logprobs(asked)
    with torch.autocast("cpu", torch.bfloat16):
        batches, tree = Naive(net).logprobs(asked), by_one_tree(net, asked)
    noise = far(batches, exact)
    assert 1e-3 < noise < 1 and far(tree, batches) < 2 * noise


def test_the_softmax_of_a_network_in_16_bits_is_in_32() -> None:
    """Sums of 61 probabilities that were rounded to 16 bits would be off by more than a thousandth."""
    net = copy.deepcopy(network("llama")).bfloat16()
    told = np.concatenate(by_one_tree(net, [Asked(ids(3, 1, 4), ids(token)) for token in range(VOCABULARY)]))
    assert np.exp(told).sum() == pytest.approx(1, abs=1e-5)


# --- What cannot be asked ----------------------------------------------------------------------------------


@pytest.mark.parametrize("scorer", [Naive, PrefixTree])
def test_a_context_beyond_the_networks_positions_is_refused_not_cut(scorer: Callable[[Any], Any]) -> None:
    fits = Asked(np.ones(POSITIONS - 2, np.int64), ids(1, 2))
    assert len(scorer(network("gpt2")).logprobs([fits])[0]) == 2
    long = Asked(np.ones(POSITIONS - 1, np.int64), ids(1, 2))
    with pytest.raises(ConfigError, match=r"answer 1: wanted .* within the 128 positions .* got 129 tokens"):
        scorer(network("gpt2")).logprobs([fits, long])


@pytest.mark.parametrize("scorer", [Naive, PrefixTree])
@pytest.mark.parametrize("asked", [Asked(ids(), ids(1)), Asked(ids(1), ids())])
def test_an_empty_context_or_answer_is_refused(scorer: Callable[[Any], Any], asked: Asked) -> None:
    with pytest.raises(ConfigError, match="answer 0: wanted a context and an answer of at least one token"):
        scorer(network("llama")).logprobs([asked])
