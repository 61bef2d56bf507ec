"""What the Hugging Face policy says of texts, against passes of one text at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_help import FAMILIES, chatting, save, small_network
from llm_policy_help import (
    VOCABULARY,
    alone,
    contexts,
    gradients,
    policy,
    responses,
    rows_of,
    texts,
    thought,
    told,
    weights,
    wrapped,
)
from mempo_agents.models.base import ModelOverflow
from mempo_env.errors import ConfigError
from mempo_trainers.credit.data import ANSWER, CALL, MEM, NOT_GENERATED, THINK
from mempo_trainers.policies.base import Responses
from mempo_trainers.policies.huggingface import HuggingFacePolicy, PolicySettings, open_policy
from mempo_trainers.policies.huggingface import told as told_module
from mempo_trainers.policies.huggingface.told import told as from_logits
from mempo_trainers.scoring.base import Asked
from mempo_trainers.scoring.table import open_scorer
from mempo_trainers.tokens import Ragged, View

LENGTHS, SIZES = [4, 30, 11, 7, 1], [5, 9, 2, 9, 1]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def objective(
    logprobs: torch.Tensor, entropies: torch.Tensor, row: int, width: int = max(SIZES)
) -> torch.Tensor:
    """A sum of a row's log-probs and entropies with weights that tell every place from every other."""
    weight_BK = torch.rand(len(LENGTHS), width, generator=generator(7)) - 0.3
    weight_K = weight_BK[row, : len(logprobs)]
    return (weight_K * (logprobs + 0.3 * entropies)).sum()


# --- Exactness ---------------------------------------------------------------------------------------------

VARIANTS = [
    *((family, {}) for family in FAMILIES),
    ("llama", {"attention": "eager"}),
    ("gpt2", {"attention": "eager"}),
    ("llama", {"gradient_checkpointing": True}),
    ("gpt2", {"gradient_checkpointing": True}),
    ("qwen2", {"batch_tokens": 1}),
    ("gemma2", {"batch_tokens": 40}),
]


@pytest.mark.parametrize(("family", "settings"), VARIANTS)
def test_values_and_gradients_are_those_of_one_text_at_a_time(family: str, settings: dict[str, Any]) -> None:
    """Dropout is 0.5 in GPT-2's config: it is off in the passes with gradients, too."""
    here, there = policy(family, **settings), policy(family, attention=settings.get("attention", "auto"))
    seen, written = contexts(LENGTHS), responses(SIZES)
    logp_BK, entropy_BK = here.logprobs(seen, written)
    assert logp_BK.dtype == entropy_BK.dtype == torch.float32
    for row, ids in enumerate(rows_of(written)):
        n = len(ids)
        logp_K, entropy_K = alone(there.loaded.network, seen.rows[row], ids)
        torch.testing.assert_close(logp_BK[row, :n], logp_K, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(entropy_BK[row, :n], entropy_K, atol=1e-5, rtol=1e-5)
        assert not logp_BK[row, n:].any() and not entropy_BK[row, n:].any()
        objective(logp_K, entropy_K, row).backward()
    sum(objective(logp_BK[row, :n], entropy_BK[row, :n], row) for row, n in enumerate(SIZES)).backward()
    mine, its = gradients(here), gradients(there)
    largest = max(float(grad.abs().max()) for grad in its.values())
    assert largest > 0.1
    for name, grad in its.items():
        torch.testing.assert_close(mine[name], grad, atol=1e-5 * max(1, largest), rtol=1e-4, msg=name)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 25), st.integers(1, 9)), min_size=1, max_size=7),
    st.integers(1, 200),
    st.integers(0, 5),
    st.randoms(use_true_random=False),
)
def test_padding_order_company_and_micro_batches_change_nothing(
    sizes: list[tuple[int, int]], batch_tokens: int, wider: int, chance: Any
) -> None:
    seen, written = contexts([n for n, _ in sizes]), responses([k for _, k in sizes])
    plain = told(policy("gemma2"), seen, written)
    order = np.array(chance.sample(range(len(sizes)), len(sizes)))
    wide = Responses(
        *(np.pad(a, ((0, 0), (0, wider))) for a in (written.tokens_BK, written.roles_BK, written.logprobs_BK))
    )
    wide.tokens_BK[written.tokens_BK.shape[0] :, :] = 3  # what stands where nothing was written is not read
    other = told(policy("gemma2", batch_tokens=batch_tokens), seen[order], wide.take(order))
    np.testing.assert_allclose(other[:, : plain.shape[1]], plain[order], atol=1e-5)
    assert not other[:, plain.shape[1] :].any()


def test_padding_is_by_length_and_never_by_id() -> None:
    """The end of a message is also the id of padding, and 0 is what batches are filled with."""
    here, end = policy("llama"), chatting().eos_token_id
    assert here.loaded.network.config.pad_token_id == end == chatting().pad_token_id
    seen = Ragged(tuple(np.array(ids) for ids in ([end, 5, end, end], [0, 0], [7] * 9)))
    written = thought([[end, 4, 0, end], [0, end], [end]])
    logp = told(here, seen, written)
    for row, ids in enumerate(rows_of(written)):
        logp_K = alone(here.loaded.network, seen.rows[row], ids)[0].detach()
        np.testing.assert_allclose(logp[row, : len(ids)], logp_K, atol=1e-5)


def counting() -> HuggingFacePolicy:
    """A network without layers whose next id is this id + 1, by a logit of sqrt(16) * 10 = 40 over others."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(vocab_size=16, hidden_size=16, num_hidden_layers=0, num_attention_heads=1)
    network = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        network.model.embed_tokens.weight.copy_(torch.eye(16))
        network.lm_head.weight.copy_(10 * torch.eye(16).roll(1, 0))
    return wrapped(network)


def test_no_token_is_one_place_off() -> None:
    """Each response continues its context by counting; where it does not, that token alone is unlikely."""
    here = counting()
    seen = Ragged((np.array([3]), np.array([9, 9, 1]), np.array([2, 5])))
    written = thought([[4, 5, 6], [2, 3], [7, 8, 2, 3]])
    expected = [[0, 0, 0, 0], [0, 0, 0, 0], [-40, 0, -40, 0]]
    np.testing.assert_allclose(told(here, seen, written), expected, atol=1e-3)
    here.value.weight.data.copy_(torch.arange(16.0)[None])  # reads 4 times the id before the token
    with torch.no_grad():
        values = here.values(seen, written)
    np.testing.assert_allclose(values, [[12, 16, 20, 0], [4, 8, 0, 0], [20, 28, 32, 8]], atol=1e-3)


def test_what_comes_later_is_never_seen() -> None:
    here, seen, written = policy("gemma2"), contexts([6]), responses([8])
    before = told(here, seen, written)
    written.tokens_BK[0, 5] = (written.tokens_BK[0, 5] + 1) % VOCABULARY
    after = told(here, seen, written)
    np.testing.assert_allclose(after[0, :5], before[0, :5], atol=1e-6)
    assert abs(after[0, 6] - before[0, 6]) > 1e-4


def test_a_row_without_tokens_is_zeros_with_a_graph() -> None:
    here = policy()
    logp, entropies = here.logprobs(contexts([3, 1]), thought([[], []]))
    assert logp.shape == entropies.shape == (2, 0)
    empty = Responses(np.zeros((1, 2), np.int64), np.zeros((1, 2), np.int8), np.zeros((1, 2), np.float32))
    logp, _ = here.logprobs(contexts([1]), empty)
    assert not logp.any()
    logp.sum().backward()
    assert here.update() == 0


def test_what_can_not_be_read_is_refused() -> None:
    here = policy("gpt2", {"n_positions": 20})
    with pytest.raises(ConfigError, match=r"wanted texts of at most the 20 tokens .* got one of 21"):
        here.logprobs(contexts([12]), responses([9]))
    assert told(here, contexts([12]), responses([8])).all()
    with pytest.raises(ConfigError, match="context: wanted at least one token"):
        here.logprobs(Ragged((np.array([], np.int64),)), responses([2]))
    with pytest.raises(ModelOverflow, match=r"wanted contexts and max_new 12 within the 20 tokens .* got 21"):
        here.act(contexts([9]), generator())


def test_an_attention_that_a_model_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    network = small_network("llama", VOCABULARY)
    network.set_attn_implementation("eager")
    monkeypatch.setattr(type(network), "_supports_sdpa", False)
    with pytest.raises(ConfigError, match="attention: wanted one that LlamaForCausalLM supports, got 'sdpa'"):
        wrapped(network, attention="sdpa")


def test_batches_hold_every_segment_once_and_no_more_than_they_may() -> None:
    lengths, sizes = [4, 9, 30, 6, 200, 2, 14, 21], [5, 1, 4, 8, 2, 2, 3, 6]
    parts = policy(batch_tokens=64).batches(contexts(lengths), responses(sizes))
    assert sorted(np.concatenate(parts).tolist()) == list(range(8))
    whole = np.array(lengths) + sizes
    assert all(len(part) * whole[part].max() <= 64 or len(part) == 1 for part in parts)


# --- From logits -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 37, 1 << 24])
def test_log_probs_and_entropies_of_logits(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against torch's cross-entropy and categorical distribution, and numeric gradients."""
    monkeypatch.setattr(told_module, "CHUNK", chunk)
    logits = (3 * torch.randn(5, 12, generator=generator(), dtype=torch.float64)).requires_grad_()
    ids = torch.tensor([0, 11, 3, 3, 7])
    logp, entropies = from_logits(logits, ids)
    torch.testing.assert_close(logp, -torch.nn.functional.cross_entropy(logits, ids, reduction="none"))
    torch.testing.assert_close(entropies, torch.distributions.Categorical(logits=logits).entropy())
    assert torch.autograd.gradcheck(from_logits, (logits, ids))
    assert torch.autograd.gradcheck(lambda x: from_logits(x, ids)[0], (logits,))
    assert torch.autograd.gradcheck(lambda x: from_logits(x, ids)[1], (logits,))


def test_log_probs_of_bfloat16_are_computed_in_float32() -> None:
    logits = (9 * torch.randn(4, 3000, generator=generator())).bfloat16().requires_grad_()
    ids = torch.tensor([5, 2999, 0, 17])
    logp, entropies = from_logits(logits, ids)
    expected = logits.detach().float().log_softmax(-1)
    assert logp.dtype == entropies.dtype == torch.float32
    torch.testing.assert_close(logp, expected.gather(1, ids[:, None])[:, 0])
    logp.sum().backward()
    assert logits.grad is not None and logits.grad.dtype == torch.bfloat16


def test_impossible_tokens_are_no_noise() -> None:
    logits = torch.tensor([[0.0, 0.0, -torch.inf]], requires_grad=True)
    logp, entropies = from_logits(logits, torch.tensor([0]))
    assert logp.item() == pytest.approx(-np.log(2)) and entropies.item() == pytest.approx(np.log(2))
    (logp + entropies).sum().backward()
    np.testing.assert_allclose(logits.grad, [[0.5, -0.5, 0]], atol=1e-6)


# --- Values ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2"])
def test_values_read_the_last_hidden_state_before_each_token(family: str) -> None:
    here, seen, written = policy(family), contexts(LENGTHS), responses(SIZES)
    with torch.no_grad():
        assert not here.values(seen, written).any()
        here.value.weight.normal_(generator=generator())
        here.value.bias.fill_(0.25)
    values = here.values(seen, written)
    for row, ids in enumerate(rows_of(written)):
        whole = torch.tensor([[*seen.rows[row], *ids]])
        states = here.loaded.network(input_ids=whole, output_hidden_states=True).hidden_states[-1][0]
        expected = here.value(states)[:, 0][len(seen.rows[row]) - 1 : -1]
        torch.testing.assert_close(values[row, : len(ids)], expected, atol=1e-5, rtol=1e-5)
        assert not values[row, len(ids) :].any()
    values.sum().backward()
    moved = {name for name, grad in gradients(here).items() if grad.any()}
    assert {"value.weight", "value.bias"} <= moved and any(name.startswith("network.") for name in moved)


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2"])
def test_one_pass_tells_log_probs_and_values(family: str) -> None:
    here, seen, written = policy(family), contexts(LENGTHS), responses(SIZES)
    torch.nn.init.ones_(here.value.weight)
    apart = *here.logprobs(seen, written), here.values(seen, written)
    weight_BK = torch.rand(3, *written.tokens_BK.shape, generator=generator()) - 0.3
    (weight_BK * torch.stack(apart)).sum().backward()
    wanted, passes = gradients(here), list[int]()
    here.optimizer.zero_grad()
    here.loaded.network.register_forward_pre_hook(lambda *_: passes.append(1))
    told = here.logprobs_and_values(seen, written)
    assert len(passes) == len(here.batches(seen, written))
    for one, other in zip(told, apart, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-6)
    (weight_BK * torch.stack(told)).sum().backward()
    for name, grad in gradients(here).items():
        torch.testing.assert_close(grad, wanted[name], atol=1e-5, rtol=1e-4, msg=name)


# --- Less memory -------------------------------------------------------------------------------------------


def test_checkpointing_computes_each_layer_again_and_only_with_gradients() -> None:
    passes = []
    for again in (False, True):
        here, count = policy("llama", gradient_checkpointing=again), [0]
        for layer in here.loaded.network.model.layers:
            layer.mlp.register_forward_pre_hook(lambda *_, count=count: count.__setitem__(0, count[0] + 1))
        told(here, contexts([3]), responses([4]))
        assert count == [2]
        here.logprobs(contexts([3]), responses([4]))[0].sum().backward()
        passes.append(count[0])
    assert passes == [4, 6]


def test_checkpointing_leaves_the_sampler_its_cache() -> None:
    seen = contexts([3, 9])
    plain, again = (
        policy("llama", gradient_checkpointing=flag).act(seen, generator()) for flag in (False, True)
    )
    assert (plain.tokens_BK == again.tokens_BK).all() and (plain.logprobs_BK == again.logprobs_BK).all()


@pytest.mark.parametrize("rank", [0, 4])
def test_bfloat16_multiplies_in_it_and_learns_in_float32(rank: int) -> None:
    quiet = {"initializer_range": 0.1}
    here, plain = policy("qwen2", quiet, dtype="bfloat16", lora_rank=rank), policy("qwen2", quiet)
    seen = contexts(LENGTHS)
    written = here.act(seen, generator())
    logp = told(here, seen, written)
    far = np.abs(logp - told(plain, seen, written)).max()
    assert 1e-5 < far < 0.2
    assert np.abs(logp - written.logprobs_BK).max() < 0.05
    assert all(weight.dtype == torch.float32 for weight in weights(here).values())
    reference = told(here.reference(), seen, written)
    assert (reference == logp).all()
    here.logprobs(seen, written)[0].sum().backward()
    assert here.update() > 0
    assert (told(here, seen, written) != logp).any()


def test_a_frozen_model_lies_in_bfloat16_and_so_do_the_matrices_of_a_reference(tmp_path: Any) -> None:
    folder = save(tmp_path / "model", small_network("llama", VOCABULARY), chatting())
    under = open_policy(PolicySettings(model=str(folder), dtype="bfloat16", lora_rank=2))
    kept = {w.dtype for n, w in under.loaded.network.named_parameters() if "lora" not in n}
    assert kept == {torch.bfloat16}
    whole = open_policy(PolicySettings(model=str(folder), dtype="bfloat16"))
    twin = whole.reference().network
    assert twin.lm_head.weight.dtype == torch.bfloat16 and twin.model.norm.weight.dtype == torch.float32
    assert whole.loaded.network.lm_head.weight.dtype == torch.float32


# --- Writing -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["qwen2", "gemma2", "gpt2"])
def test_the_sampler_and_the_training_pass_agree(family: str) -> None:
    here, seen = policy(family, max_new=20), contexts([1, 2, 3, 9, 40, 17, 17, 5])
    written = here.act(seen, generator())
    there = written.roles_BK != NOT_GENERATED
    assert there.sum() > 60
    assert np.abs(told(here, seen, written) - written.logprobs_BK)[there].max() < 1e-5


def test_equal_contexts_get_texts_of_their_own_and_a_generator_gives_the_same_again() -> None:
    here, seen = policy(), Ragged((contexts([7]).rows[0],) * 6)
    first, again, other = (here.act(seen, generator(seed)) for seed in (5, 5, 6))
    assert len({tuple(ids) for ids in rows_of(first)}) == 6
    assert (first.tokens_BK == again.tokens_BK).all() and (first.logprobs_BK == again.logprobs_BK).all()
    assert rows_of(first) != rows_of(other)
    narrow = policy(batch_tokens=8).act(seen, generator(5))
    assert rows_of(narrow) == rows_of(first)


def test_every_token_has_the_role_of_its_first_character_and_texts_end_where_they_should() -> None:
    """Memory is what starts before character 14, thought before 33; "</mem><think>" shares tokens."""
    here = policy()
    ids = here.tokenizer.encode("<mem> a </mem><think> so </think><search> b </search>")
    roles = [MEM if start < 14 else THINK if start < 33 else CALL for start in here.tokenizer.starts(ids)]
    assert here.roles(ids, "stop") == roles and set(roles) == {MEM, THINK, CALL}
    assert set(here.roles(ids[3:9], "length")) == {THINK}  # nothing was done
    answer = here.tokenizer.encode("<answer> x </answer>")
    assert set(here.roles(answer, "stop")) == {ANSWER}
    assert here.finish_reason(ids) == here.finish_reason(answer) == "stop"
    assert here.finish_reason(ids[:-1]) == here.finish_reason([]) == "length"
    assert here.finish_reason([5, chatting().eos_token_id]) == "stop"


# --- Scores ------------------------------------------------------------------------------------------------


class Counting:
    """A scorer that keeps what it was asked, and answers minus the length of the context for each token."""

    name, fallback = "counting", ""

    def __init__(self) -> None:
        self.asked: list[Asked] = []

    def logprobs(self, asked: list[Asked]) -> list[np.ndarray]:
        self.asked += asked
        return [np.full(len(one.answer), -float(len(one.context))) for one in asked]


def test_scores_are_means_over_the_answers_tokens_alone_and_each_is_asked_once() -> None:
    context, (before, first, second) = texts([12])[0], texts([2, 3, 1], seed=4)
    view = View(context, ((before, first), (before, second)))
    views = Ragged((view, None, view))
    here = policy("gemma2")
    lead = [*context, *before]
    expected = [alone(here.loaded.network, lead, ids)[0].mean().item() for ids in (first, second)]
    scores = here.score(views)
    np.testing.assert_allclose(scores[[0, 2]], [expected] * 2, atol=1e-5)
    assert np.isnan(scores[1]).all()
    assert here.score(Ragged((None, None))).shape == (2, 1)
    scorer = Counting()
    there = wrapped(here.loaded.network, lambda network: scorer)
    assert there.score(views).tolist()[0] == [-14.0, -14.0]
    assert len(scorer.asked) == 2


def test_a_scorer_of_trees_says_the_same() -> None:
    plain = policy("qwen2")
    tree = wrapped(plain.loaded.network, lambda network: open_scorer("prefix_tree", network))
    assert tree.scorer.name == "prefix_tree"
    stem = texts([20])[0]
    views = Ragged(
        tuple(
            View(stem[:n], ((stem[:1], ids),)) for n, ids in zip((5, 12, 20), texts([3, 1, 4]), strict=True)
        )
    )
    np.testing.assert_allclose(tree.score(views), plain.score(views), atol=1e-5)


# --- References --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [0, 4])
def test_a_reference_stays_as_the_policy_was(rank: int) -> None:
    here, seen, written = (
        policy("gemma2", lora_rank=rank, learning_rate=0.05),
        contexts(LENGTHS),
        responses(SIZES),
    )
    plain = told(policy("gemma2"), seen, written)
    reference = here.reference()
    assert (reference.network is here.loaded.network) == (rank > 0)
    for _ in range(3):
        here.logprobs(seen, written)[0].sum().backward()
        here.update()
        assert (told(reference, seen, written) == plain).all()
    assert np.abs(told(here, seen, written) - plain).max() > 0.01


def test_an_adapter_that_has_learned_is_no_reference() -> None:
    here = policy(lora_rank=2)
    here.logprobs(contexts([3]), responses([4]))[0].sum().backward()
    here.update()
    with pytest.raises(ConfigError, match="reference: wanted a new adapter, all B of it 0"):
        here.reference()
