"""Engines in this process: batches that are refilled, scores, new weights, networks that are trained."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engines_help import JOIN, WINDOWS, alone, engine, network
from llm_help import STOP, chatting, make_network, make_tokenizer, prompt, save
from mempo_agents.models import huggingface
from mempo_agents.models.base import ModelError, ModelOverflow, Prompt, Sampling
from mempo_agents.models.chat import decode
from mempo_agents.models.decoding import Task, _row, _stopped, choose, sample
from mempo_agents.models.huggingface import HuggingFace, around, open_huggingface
from mempo_env.errors import ConfigError
from mempo_env.types import Call

TEXTS = [f"{'Where does the river end? ' * (i % 5)}{i}" for i in range(24)]


def written(model: HuggingFace, prompts: Sequence[Prompt]) -> list[Call]:
    found = model.generate(prompts)
    assert all(isinstance(one, Call) for one in found), found
    return [one for one in found if isinstance(one, Call)]


def alike(mine: Sequence[Call], others: Sequence[Call]) -> None:
    for one, other in zip(mine, others, strict=True):
        assert (one.prompt_ids, one.output_ids) == (other.prompt_ids, other.output_ids)
        assert (one.output, one.finish_reason) == (other.output, other.finish_reason)
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-5)


class Forwards:
    """What a network was asked: (rows, columns of the mask, new tokens) of each forward pass."""

    def __init__(self, network: Any) -> None:
        self.seen: list[tuple[int, int, int]] = []
        network.register_forward_pre_hook(self._see, with_kwargs=True)

    def _see(self, _: Any, args: Any, kwargs: dict[str, Any]) -> None:
        ids_BT, mask_BT = kwargs["input_ids"], kwargs["attention_mask"]
        self.seen.append((len(ids_BT), mask_BT.shape[1], ids_BT.shape[1]))


# --- Batches that are refilled -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*JOIN, *WINDOWS])
def test_texts_are_those_of_one_prompt_at_a_time(kind: str) -> None:
    prompts = [prompt(text) for text in TEXTS]
    ended = {"ends": 30, "temperature": 1.0, "max_tokens": 24}
    single = written(engine(kind, batch=1, **ended), prompts)
    assert {call.finish_reason for call in single} == {"stop", "length"}
    assert len({len(call.output_ids) for call in single}) > 5
    for batch in (3, 8, 64):
        alike(written(engine(kind, batch=batch, **ended), prompts), single)
    alike(written(engine(kind, batch=5, **ended), prompts[::-1])[::-1], single)
    for call in single:
        expected = alone(engine(kind), call.prompt_ids, call.output_ids)
        np.testing.assert_allclose(call.logprobs, expected, atol=1e-5)


@pytest.mark.parametrize("kind", [*JOIN, *WINDOWS])
def test_what_can_be_joined_is_known_when_the_model_is_made(kind: str) -> None:
    assert engine(kind).loaded.joins == (kind in JOIN)


def test_places_that_are_free_are_taken() -> None:
    """While prompts wait no place of the batch is idle, and no row is read after its end."""
    model = engine("Qwen2", batch=8, ends=30, temperature=1.0, max_tokens=24)
    model.loaded.network.eval()
    forwards = Forwards(model.loaded.network)
    calls = written(model, [prompt(text) for text in TEXTS])
    steps = [rows for rows, _, new in forwards.seen if new == 1]
    assert sum(steps) == sum(len(call.output_ids) - 1 for call in calls)  # the first comes with the prompt
    last = max(len(call.output_ids) for call in calls)  # steps in which nobody waits any more, at most
    assert len(steps) > last and all(rows == 8 for rows in steps[:-last])
    chunked = engine("Qwen2", batch=8, ends=30, temperature=1.0, max_tokens=24)
    chunked.loaded.joins = False
    others = Forwards(chunked.loaded.network)
    alike(written(chunked, [prompt(text) for text in TEXTS]), calls)
    assert len(forwards.seen) < len(others.seen)


def test_padding_that_no_row_needs_is_dropped() -> None:
    """A long prompt that ends at once leaves none of its width to the others."""
    model = engine("Llama", batch=2, max_tokens=12)
    forwards = Forwards(model.loaded.network)
    tasks = [Task((5,) * 200, (), 0), Task((7,) * 9, (), 0)]
    first = sample(model.loaded, tasks[:1], Sampling(max_tokens=1), 2)[0].ids[0]
    model.loaded.ends = frozenset({first})
    forwards.seen.clear()
    long, short = sample(model.loaded, tasks, Sampling(max_tokens=12), 2)
    assert len(long.ids) == 1 and len(short.ids) > 1
    assert [columns for _, columns, _ in forwards.seen] == [200, *range(10, 10 + len(short.ids) - 1)]


def test_equal_prompts_are_read_once() -> None:
    model = engine("Qwen2", batch=8, temperature=1.0, max_tokens=6)
    forwards = Forwards(model.loaded.network)
    group = [msgspec.structs.replace(prompt(text), draw=draw) for text in ("a", "so") for draw in range(4)]
    together = written(model, group)
    assert forwards.seen[0][0] == 2
    assert len({call.output_ids for call in together}) == 8
    alike(together, [written(model, [one])[0] for one in group])


def test_nothing_to_continue_reads_nothing() -> None:
    model = engine("Qwen2")
    forwards = Forwards(model.loaded.network)
    assert model.generate([]) == [] and model.score([]) == [] and model.score([((5,), ())]) == [()]
    assert forwards.seen == []


# --- Stop texts and draws ----------------------------------------------------------------------------------

IDS = st.lists(st.integers(0, len(chatting()) + 3), min_size=1, max_size=40)
LETTERS = [chatting().convert_tokens_to_ids(list(text)) for text in STOP]
ENDING = [
    *(
        chatting().encode(text, add_special_tokens=False)
        for text in (*STOP, "></search>", "<|end|></answer>")
    ),
    *LETTERS,
    [
        id for letter in LETTERS[0] for id in (letter, 3, len(chatting()) + 1)
    ],  # with ids in between that are no text
]


@settings(max_examples=300)
@given(
    st.lists(IDS | st.sampled_from(ENDING), min_size=1, max_size=4),
    st.sampled_from([STOP, ("ver", "h>"), ("\u00e9", "r"), ("h ", "\u4e16")]),
)
def test_a_stop_text_is_seen_with_the_token_that_ends_it(
    parts: list[list[int]], stop: tuple[str, ...]
) -> None:
    """As in the text of all tokens: bytes that are none, special tokens and ids of no token among them."""
    loaded = LOADED
    row, ids = _row(Task((5,), stop, 0), Sampling()), [token for part in parts for token in part]
    for i, token in enumerate(ids):
        stopped = _stopped(loaded, row, token)
        assert stopped == any(one in decode(loaded.tokenizer, ids[: i + 1]) for one in stop)
        if stopped:
            return


LOADED = engine("Llama").loaded


@settings(max_examples=100)
@given(
    st.integers(1, 700),
    st.integers(0, 2**32 - 1),
    st.floats(0.1, 30.0),
    st.sampled_from([(1.0, 1.0), (0.7, 1.0), (1.0, 0.8), (1.5, 0.5)]),
)
def test_draws_fall_where_one_sum_over_all_tokens_lets_them(
    tokens: int, seed: int, spread: float, how: tuple[float, float]
) -> None:
    """Also over many blocks, and where the last of them is not full."""
    random = np.random.default_rng(seed)
    logits = random.normal(size=tokens) * spread
    draws = random.random(64)
    sampling = Sampling(temperature=how[0], top_p=how[1])
    logprobs_BV = torch.tensor(logits, dtype=torch.float32).log_softmax(-1).expand(64, -1)
    chosen = choose(logprobs_BV, draws.tolist(), sampling).numpy()
    probs = np.exp((logits - logits.max()) / how[0])
    probs /= probs.sum()
    order = np.argsort(-probs, kind="stable")
    kept = order[np.cumsum(probs[order]) - probs[order] < how[1]]
    masked = np.zeros(tokens)
    masked[kept] = probs[kept] / probs[kept].sum()
    ends = np.cumsum(masked)
    assert np.all(ends[chosen] >= draws - 1e-4) and np.all(ends[chosen] - masked[chosen] <= draws + 1e-4)


def test_an_impossible_token_is_never_drawn() -> None:
    logprobs_BV = torch.full((3, 300), -torch.inf)
    logprobs_BV[:, [127, 128, 255]] = torch.tensor([0.25, 0.25, 0.5]).log()
    chosen = choose(logprobs_BV, [0.0, 0.49999, 1 - 2**-53], Sampling(temperature=1.0))
    assert chosen.tolist() == [127, 128, 255]


# --- Scores ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*JOIN, *WINDOWS])
def test_scores_are_those_of_a_forward_pass_of_its_own(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, drawn = engine(kind, temperature=0.3, max_tokens=4), random.Random(0)

    def some(least: int, most: int) -> list[int]:
        return [drawn.randrange(len(chatting())) for _ in range(drawn.randint(least, most))]

    asked = [(some(1, 90), some(0, 20)) for _ in range(30)]
    expected = [alone(model, first, then) for first, then in asked]
    for together in (1, 150, 4096):
        monkeypatch.setattr(huggingface, "TOGETHER", together)
        for told, right in zip(model.score(asked), expected, strict=True):
            assert isinstance(told, tuple)
            np.testing.assert_allclose(told, right, atol=2e-5)
    calls = written(model, [prompt(text) for text in TEXTS])
    scored = model.score([(call.prompt_ids, call.output_ids) for call in calls])
    for call, one in zip(calls, scored, strict=True):
        np.testing.assert_allclose(one, call.logprobs, atol=2e-5)


def test_no_more_is_read_together_than_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    model = engine("Llama")
    forwards = Forwards(model.loaded.network)
    monkeypatch.setattr(huggingface, "TOGETHER", 100)
    model.score([((5,) * length, (6, 7)) for length in (8, 120, 30, 28, 9, 8, 8)])
    assert [(rows, new) for rows, _, new in forwards.seen] == [(1, 122), (3, 32), (3, 10)]


def test_what_can_not_be_scored_is_its_error_alone() -> None:
    model = engine("Llama")
    found = model.score([((), (5,)), ((5,) * 510, (6, 7)), ((5,) * 510, (6, 7, 8)), ((5,), (6,))])
    assert isinstance(found[0], ModelError) and "at least one id before" in str(found[0])
    assert isinstance(found[1], tuple) and isinstance(found[3], tuple)
    assert isinstance(found[2], ModelOverflow) and "an answer of 3" in str(found[2])
    model.loaded.network.lm_head.weight.data[7, 0] = float("nan")
    (broken,) = model.score([((5,), (6,))])
    assert isinstance(broken, ModelError) and "finite" in str(broken)


# --- A network that is trained -----------------------------------------------------------------------------


def test_a_network_of_a_trainer_is_shared_and_left_as_it_was() -> None:
    """Dropout is off while it is asked, and on again after; parts that were off stay off; gradients flow."""
    trained = network("GPT2", resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5)
    trained.train()
    trained.transformer.h[0].eval()
    modes = [module.training for module in trained.modules()]
    model = around(trained, chatting(), name="mine", sampling=Sampling(max_tokens=8))
    state = torch.get_rng_state()
    (call,) = written(model, [prompt("a")])
    (scored,) = model.score([(call.prompt_ids, call.output_ids)])
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in trained.modules()] == modes
    np.testing.assert_allclose(call.logprobs, alone(model, call.prompt_ids, call.output_ids), atol=1e-5)
    np.testing.assert_allclose(scored, call.logprobs, atol=1e-5)
    before = model.fingerprint
    optimiser = torch.optim.SGD(trained.parameters(), lr=0.1)
    ids = torch.tensor([[*call.prompt_ids, *call.output_ids]])
    trained(input_ids=ids, labels=ids).loss.backward()
    optimiser.step()
    (after,) = model.score([(call.prompt_ids, call.output_ids)])
    assert after != scored and model.fingerprint != before


def test_modes_are_restored_after_a_failure() -> None:
    trained = network("Llama").train()
    model = around(trained, chatting(), name="mine", sampling=Sampling(max_tokens=2))

    def broken(*_: Any) -> None:
        raise RuntimeError("out of memory")

    handle = trained.register_forward_pre_hook(broken)
    with pytest.raises(RuntimeError, match="out of memory"):
        model.generate([prompt("a")])
    assert all(module.training for module in trained.modules()) and torch.is_grad_enabled()
    handle.remove()
    assert isinstance(model.generate([prompt("a")])[0], Call)


def test_gradient_checkpointing_does_not_matter() -> None:
    trained = network("Llama").train()
    model = around(trained, chatting(), name="mine", sampling=Sampling(max_tokens=8))
    plain = written(model, [prompt("a"), prompt("b b")])
    trained.model.gradient_checkpointing = True
    alike(written(model, [prompt("a"), prompt("b b")]), plain)


def test_an_adapter_is_asked_with_its_network() -> None:
    peft = pytest.importorskip("peft", reason="needs peft")
    trained = peft.get_peft_model(network("Llama"), peft.LoraConfig(r=2, init_lora_weights=False))
    model = around(
        trained, chatting(), name="mine", batch=3, sampling=Sampling(temperature=1.0, max_tokens=8)
    )
    calls = written(model, [prompt(text) for text in TEXTS[:6]])
    for call in calls:
        np.testing.assert_allclose(call.logprobs, alone(model, call.prompt_ids, call.output_ids), atol=1e-5)
    with trained.disable_adapter():
        assert model.score([(calls[0].prompt_ids, calls[0].output_ids)])[0] != calls[0].logprobs


# --- Weights that change -----------------------------------------------------------------------------------

ASKED = [((5, 6, 7), (8, 9))]


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folders of two networks that share the weights of words in and out."""
    made = []
    for seed in (0, 1):
        changed = network("Qwen2", tie_word_embeddings=True)
        torch.manual_seed(seed)
        for tensor in changed.parameters():
            tensor.data.normal_(std=0.3)
        made.append(save(tmp_path_factory.mktemp("llm") / "tied", changed, make_tokenizer()))
    return made[0], made[1]


def test_new_weights_answer_as_the_folder_that_they_came_from(tied: tuple[Path, Path]) -> None:
    one, other = (open_huggingface(str(folder)) for folder in tied)
    before, name = one.score(ASKED), one.fingerprint
    assert before != other.score(ASKED)
    one.update_weights(tied[1])
    assert one.score(ASKED) == other.score(ASKED)
    updated = one.fingerprint
    assert updated != name and one.fingerprint == updated
    one.update_weights(tied[0])
    assert one.score(ASKED) == before and one.fingerprint not in (updated, name)


def test_weights_in_several_files_are_taken(tied: tuple[Path, Path], tmp_path: Path) -> None:
    other = open_huggingface(str(tied[1]))
    other.loaded.network.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    model = open_huggingface(str(tied[0]))
    model.update_weights(tmp_path)
    assert model.score(ASKED) == other.score(ASKED)


def wider(folder: Path) -> None:
    save(folder, network("Qwen2", tie_word_embeddings=True, intermediate_size=66), make_tokenizer())


def of_another_kind(folder: Path) -> None:
    save(folder, network("GPT2"), make_tokenizer())


def shallower(folder: Path) -> None:
    save(folder, network("Qwen2", tie_word_embeddings=True, num_hidden_layers=1), make_tokenizer())


def cut_off(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def garbage(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\xff" * 64)


def gone(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def a_part_gone(folder: Path) -> None:
    network = open_huggingface(str(folder)).loaded.network
    gone(folder)
    network.save_pretrained(folder, max_shard_size="20KB")
    min(folder.glob("*.safetensors")).unlink()


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (wider, r"layers.0.mlp.down_proj.weight is \(32, 66\) instead of \(32, 64\), and 5 more"),
        (of_another_kind, "is missing, and"),
        (shallower, "layers.1.input_layernorm.weight is missing, and"),
        (cut_off, "wanted whole safetensors"),
        (garbage, "wanted whole safetensors"),
        (gone, r"wanted a folder with \*.safetensors, found none"),
        (a_part_gone, "is missing"),
    ],
)
def test_other_weights_are_refused_and_none_is_changed(
    tied: tuple[Path, Path], tmp_path: Path, spoil: Any, told: str
) -> None:
    folder = tmp_path / "other"
    shutil.copytree(tied[1], folder)
    spoil(folder)
    model = open_huggingface(str(tied[0]))
    before = {name: tensor.clone() for name, tensor in model.loaded.network.state_dict().items()}
    fingerprint = model.fingerprint
    with pytest.raises(ConfigError, match=told) as error:
        model.update_weights(folder)
    assert "\n" not in str(error.value)
    after = model.loaded.network.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert model.fingerprint == fingerprint


def test_weights_are_taken_in_the_dtype_of_the_network(tied: tuple[Path, Path]) -> None:
    model = open_huggingface(str(tied[0]), dtype="bfloat16")
    model.update_weights(tied[1])
    assert model.loaded.network.dtype == torch.bfloat16
    other = open_huggingface(str(tied[1]), dtype="bfloat16")
    assert model.score(ASKED) == other.score(ASKED)


def test_words_in_and_out_that_are_shared_stay_shared(tied: tuple[Path, Path]) -> None:
    model = open_huggingface(str(tied[0]))
    model.update_weights(tied[1])
    network = model.loaded.network
    assert network.lm_head.weight.data_ptr() == network.model.embed_tokens.weight.data_ptr()


def test_a_network_of_its_own_answers_as_one_that_is_opened(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    folder = save(tmp_path / "wild", make_network(tokenizer), tokenizer)
    opened = open_huggingface(str(folder), sampling=Sampling(max_tokens=8))
    mine = around(make_network(tokenizer), tokenizer, name="mine", sampling=Sampling(max_tokens=8))
    alike(written(mine, [prompt("a")]), written(opened, [prompt("a")]))
    assert (mine.loaded.window, mine.loaded.ends) == (opened.loaded.window, opened.loaded.ends)
