"""A language model in this process: ids, log-probabilities, batches, stop texts, windows, templates."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from answering import agent_of
from llm_help import (
    STOP,
    TAUGHT,
    make_network,
    make_tokenizer,
    needs_transformers,
    prompt,
    save,
    teach,
)
from mempo_agents.models.base import ModelError, ModelOverflow, Sampling
from mempo_agents.models.chat import decode, encode, load_tokenizer
from mempo_agents.models.decoding import choose
from mempo_agents.models.huggingface import HuggingFace, open_huggingface
from mempo_agents.models.network import Loaded
from mempo_agents.models.table import make_model
from mempo_agents.rollout import episodes
from mempo_env.errors import ConfigError, KeywordError, MissingExtra
from mempo_env.types import Call, Segment, StopReason
from small import QUESTIONS, TitleRetriever

TEXTS = [
    "a",
    "Where does the river end?",
    "\u00fcber " * 40,
    "Who wrote the book? " * 12,
    "one two",
    "b",
    "?",
    "so",
]
"""Eight prompts of very different lengths."""


@pytest.fixture(scope="module")
def wild(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model with random weights."""
    tokenizer = make_tokenizer()
    return save(tmp_path_factory.mktemp("llm") / "wild", make_network(tokenizer), tokenizer)


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model that writes the texts of `TAUGHT` to their messages."""
    tokenizer = make_tokenizer()
    network = make_network(tokenizer)
    teach(network, tokenizer, TAUGHT)
    return save(tmp_path_factory.mktemp("llm") / "taught", network, tokenizer)


def opened(folder: Path, max_tokens: int = 24, batch: int = 8, **sampling: Any) -> HuggingFace:
    return open_huggingface(str(folder), batch=batch, sampling=Sampling(max_tokens=max_tokens, **sampling))


def answers(model: HuggingFace, texts: Sequence[str], stop: tuple[str, ...] = STOP) -> list[Call]:
    found = model.generate([prompt(text, stop) for text in texts])
    assert all(isinstance(one, Call) for one in found), found
    return [one for one in found if isinstance(one, Call)]


def alone(model: HuggingFace, call: Call) -> np.ndarray[Any, Any]:
    """Log-probabilities of a call's output by one forward pass: no cache, no padding, no batch."""
    ids = torch.tensor([[*call.prompt_ids, *call.output_ids]])
    with torch.no_grad():
        logprobs = torch.log_softmax(model.loaded.network(input_ids=ids).logits.float(), -1)[0]
    first = len(call.prompt_ids) - 1
    return np.array([float(logprobs[first + i, token]) for i, token in enumerate(call.output_ids)])


# --- Ids and log-probabilities -----------------------------------------------------------------------------

SAMPLINGS = [{}, {"temperature": 1.0}, {"temperature": 0.7, "top_p": 0.8, "seed": 3}]


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_logprobs_are_those_of_a_forward_pass_of_its_own(wild: Path, sampling: dict[str, Any]) -> None:
    """Whatever the sampling: those at temperature 1, over all tokens."""
    model = opened(wild, **sampling)
    for call in answers(model, TEXTS):
        assert len(call.logprobs) == len(call.output_ids) > 0
        np.testing.assert_allclose(call.logprobs, alone(model, call), atol=1e-5)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_batch_of_one_is_one_of_eight_in_any_order(wild: Path, sampling: dict[str, Any]) -> None:
    together = answers(opened(wild, batch=8, **sampling), TEXTS)
    single = answers(opened(wild, batch=1, **sampling), TEXTS)
    backwards = answers(opened(wild, batch=3, **sampling), TEXTS[::-1])[::-1]
    for others in (single, backwards):
        for mine, other in zip(together, others, strict=True):
            assert (mine.prompt_ids, mine.output_ids) == (other.prompt_ids, other.output_ids)
            assert (mine.output, mine.finish_reason) == (other.output, other.finish_reason)
            np.testing.assert_allclose(mine.logprobs, other.logprobs, atol=1e-5)


def test_the_likeliest_tokens_are_those_of_transformers_own_generate(wild: Path) -> None:
    model = opened(wild)
    for call in answers(model, TEXTS, stop=()):
        ids = torch.tensor([call.prompt_ids])
        made = model.loaded.network.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=24
        )
        assert tuple(made[0, len(call.prompt_ids) :].tolist()) == call.output_ids


def test_a_seed_draws_the_same_again_and_another_one_something_else(wild: Path) -> None:
    first, again = (answers(opened(wild, temperature=1.0, seed=5), TEXTS) for _ in range(2))
    other = answers(opened(wild, temperature=1.0, seed=6), TEXTS)
    assert [call.output_ids for call in first] == [call.output_ids for call in again]
    assert all(mine.output_ids != its.output_ids for mine, its in zip(first, other, strict=True))
    assert len({call.output_ids for call in first}) == len(TEXTS)


def test_equal_prompts_get_texts_of_their_own_where_their_draws_differ(wild: Path) -> None:
    """As the rollouts of one question need them; at temperature 0 there is nothing to draw."""
    group = [msgspec.structs.replace(prompt("a"), draw=draw) for draw in range(8)]
    model = opened(wild, temperature=1.0, seed=5)
    drawn, backwards = (model.generate(group), model.generate(group[::-1])[::-1])
    assert all(isinstance(one, Call) for one in drawn)
    ids = [one.output_ids for one in drawn if isinstance(one, Call)]
    assert len(set(ids)) == 8
    assert ids == [one.output_ids for one in backwards if isinstance(one, Call)]
    assert ids[0] == answers(model, ["a"])[0].output_ids
    assert len({one.output_ids for one in opened(wild).generate(group) if isinstance(one, Call)}) == 1


def test_the_token_of_padding_does_not_matter(taught: Path, tmp_path: Path) -> None:
    """pad == eos == 2, as in SmolLM2: the end that was written is kept; with another pad all is the same."""
    folder = tmp_path / "taught"
    shutil.copytree(taught, folder)
    other = load_tokenizer(str(folder))
    assert other.pad_token_id == other.eos_token_id == 2
    make_tokenizer(pad="<|pad|>").save_pretrained(folder)
    load_tokenizer.cache_clear()
    mine, its = opened(taught), opened(folder)
    assert its.loaded.tokenizer.pad_token_id == 3
    assert answers(mine, [*TAUGHT, *TEXTS]) == answers(its, [*TAUGHT, *TEXTS])
    (end,) = answers(mine, ["three"])
    assert end.output_ids[-1] == 2 and end.output_ids.count(2) == 1
    assert (end.output, end.finish_reason) == ("It is \u00e9t\u00e9.", "stop")


def test_broken_weights_are_an_error_of_each_call(wild: Path) -> None:
    model = opened(wild, temperature=1.0, top_p=0.5)
    model.loaded.network.lm_head.weight.data[7, 0] = float("nan")
    found = model.generate([prompt("a"), prompt("b")])
    assert all(isinstance(one, ModelError) for one in found)
    assert str(found[0]).startswith("wanted finite log-probabilities")


# --- Where it ends -----------------------------------------------------------------------------------------


def test_an_output_ends_exactly_with_the_tag(taught: Path) -> None:
    model = opened(taught, max_tokens=40)
    found = answers(model, list(TAUGHT))
    assert [call.output for call in found] == [
        "<think> so </think>\n<search> Ines Calder </search>",
        "<mem> a <search> b </search>",
        "It is \u00e9t\u00e9.",
        "<answer> yes </answer>",
    ]
    assert [call.finish_reason for call in found] == ["stop"] * 4
    tokens = [[model.loaded.tokenizer.decode([token]) for token in call.output_ids] for call in found]
    assert tokens[1][-1] == "></"  # sampled as one token, so kept as one
    assert tokens[3][-1] == ">"  # nothing was written after it


def test_without_a_stop_text_it_goes_on(taught: Path) -> None:
    (call,) = answers(opened(taught, max_tokens=40), ["four"], stop=("",))
    assert call.output.startswith(TAUGHT["four"])


def test_a_cut_by_length_says_length(taught: Path) -> None:
    (call,) = answers(opened(taught, max_tokens=5), ["one"])
    assert (len(call.output_ids), call.finish_reason) == (5, "length")
    assert TAUGHT["one"].startswith(call.output)
    whole = len(answers(opened(taught), ["one"])[0].output_ids)
    (exact,) = answers(opened(taught, max_tokens=whole), ["one"])
    assert (exact.finish_reason, exact.output) == ("stop", TAUGHT["one"])


def test_what_does_not_fit_the_window_is_an_overflow_and_the_others_are_answered(wild: Path) -> None:
    room = 1024 - len(encode(load_tokenizer(str(wild)), prompt("a")))
    found = opened(wild, max_tokens=room).generate([prompt("b" * 9), prompt("a")])
    assert isinstance(found[0], ModelOverflow) and found[0].reason == "context_overflow"
    assert "the 1,024 tokens of the model's window" in str(found[0])
    assert isinstance(found[1], Call)


def test_nothing_to_ask_asks_nothing(wild: Path) -> None:
    assert opened(wild).generate([]) == []


# --- Drawing -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("draw", "top_p", "token"),
    [  # probabilities 0.2, 0.5, 0.3: borders at 0.2 and 0.7
        (0.0, 1.0, 0),
        (0.19, 1.0, 0),
        (0.21, 1.0, 1),
        (0.69, 1.0, 1),
        (0.71, 1.0, 2),
        (0.999, 1.0, 2),
        # of the likeliest two, 0.5 and 0.3: a border at 0.625
        (0.0, 0.6, 1),
        (0.62, 0.6, 1),
        (0.63, 0.6, 2),
        # of the likeliest alone
        (0.999, 0.4, 1),
        (0.999, 0.0, 1),
    ],
)
def test_a_draw_falls_on_the_token_of_its_interval(draw: float, top_p: float, token: int) -> None:
    logprobs = torch.tensor([[0.2, 0.5, 0.3]]).log()
    assert choose(logprobs, [draw], Sampling(temperature=1.0, top_p=top_p)).tolist() == [token]


def test_temperature_sharpens() -> None:
    """p ** 2 / sum: 0.04, 0.25, 0.09 of 0.38, borders at 0.105 and 0.763."""
    logprobs = torch.tensor([[0.2, 0.5, 0.3]] * 4).log()
    chosen = choose(logprobs, [0.10, 0.11, 0.76, 0.77], Sampling(temperature=0.5))
    assert chosen.tolist() == [0, 1, 1, 2]
    assert choose(logprobs[:2], [0.0, 0.99], Sampling(temperature=1e-320)).tolist() == [1, 1]


@settings(max_examples=50)
@given(st.integers(0, 2**32 - 1), st.floats(0.05, 0.95), st.floats(0.3, 2.0))
def test_top_p_draws_from_what_transformers_keeps(seed: int, top_p: float, temperature: float) -> None:
    logits = torch.randn((1, 12), generator=torch.Generator().manual_seed(seed))
    transformers = needs_transformers()
    kept = transformers.TopPLogitsWarper(top_p=top_p)(torch.tensor([[0]]), logits / temperature).isfinite()
    draws = np.linspace(0, 1, 4000, endpoint=False).tolist()
    sampling = Sampling(temperature=temperature, top_p=top_p)
    chosen = choose(logits.log_softmax(-1).expand(len(draws), -1), draws, sampling)
    probs = torch.where(kept, (logits / temperature).softmax(-1), 0.0)[0]
    expected = probs / probs.sum()
    drawn = torch.bincount(chosen, minlength=12) / len(draws)
    np.testing.assert_allclose(drawn.numpy(), expected.numpy(), atol=1 / len(draws) + 1e-5)


# --- In episodes -------------------------------------------------------------------------------------------


def test_ids_travel_into_the_episode_untouched(wild: Path) -> None:
    model = opened(wild, max_tokens=6, temperature=1.0)
    kwargs = {"dataset": QUESTIONS, "retriever": TitleRetriever(), "max_rounds": 3, "system_prompt": "Go."}
    seen = 0
    for _, episode in episodes(agent_of(model), ["q0", "q1", "q2"], env_kwargs=kwargs):
        for played in episode.rounds:
            (call,) = played.calls
            assert played.token_ids == call.output_ids and played.logprobs == call.logprobs
            assert played.text == call.output == decode(model.loaded.tokenizer, call.output_ids, STOP)
            assert (played.tokens.prompt, played.tokens.output) == (
                len(call.prompt_ids),
                len(call.output_ids),
            )
            np.testing.assert_allclose(call.logprobs, alone(model, call), atol=1e-5)
            seen += 1
    assert seen == 9


def test_an_overflow_ends_its_episode_as_one(wild: Path) -> None:
    model = opened(wild, max_tokens=1000)
    kwargs = {"dataset": QUESTIONS, "retriever": TitleRetriever()}
    ((_, episode),) = episodes(agent_of(model), ["q0"], env_kwargs=kwargs)
    assert episode.stop_reason is StopReason.CONTEXT_OVERFLOW
    assert "model's window" in episode.stop_detail


def test_segments_go_into_the_call(wild: Path) -> None:
    segments = (Segment("question", 0, "Question: Who?", 2),)
    (call,) = opened(wild, 2).generate([msgspec.structs.replace(prompt("a"), segments=segments)])
    assert isinstance(call, Call) and call.segments == segments


# --- What it is made of ------------------------------------------------------------------------------------


def test_the_fingerprint_tells_weights_tokenizer_and_sampling_but_no_place(
    wild: Path, taught: Path, tmp_path: Path
) -> None:
    first = opened(wild)
    moved = tmp_path / "elsewhere" / "wild"
    shutil.copytree(wild, moved)
    assert opened(moved).fingerprint == first.fingerprint
    assert first.name == "wild" and str(wild.parent) not in first.fingerprint

    changed = tmp_path / "changed" / "wild"
    shutil.copytree(wild, changed)
    network = make_network(make_tokenizer())
    network.lm_head.weight.data[0, 0] += 1
    network.save_pretrained(changed)
    template = tmp_path / "template" / "wild"
    shutil.copytree(wild, template)
    (template / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    others = [
        opened(changed),
        opened(template),
        opened(taught),
        opened(wild, seed=1),
        opened(wild, max_tokens=23),
        open_huggingface(str(wild), dtype="bfloat16", sampling=first.sampling),
    ]
    assert len({first.fingerprint, *(other.fingerprint for other in others)}) == 7
    assert msgspec.structs.replace(first, batch=2).fingerprint == first.fingerprint


def test_it_is_made_by_name(wild: Path) -> None:
    model = make_model(f"huggingface:{wild}")
    assert isinstance(model, HuggingFace) and isinstance(model.loaded, Loaded)
    assert model.loaded.network.dtype == torch.float32 and model.loaded.network.device.type == "cpu"
    assert (model.loaded.window, model.loaded.ends) == (1024, {2})
    assert not model.loaded.network.training


def test_what_can_not_be_loaded_says_so(wild: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="wanted the name or the folder of a causal language model, got"):
        open_huggingface(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="wanted the name or the folder of a causal language model, got"):
        open_huggingface(str(tmp_path))
    for device in ("cuda:77", "meta"):
        with pytest.raises(ConfigError, match=f"device: wanted one that torch has here, got '{device}'"):
            open_huggingface(str(wild), device=device)
    with pytest.raises(ConfigError, match="unknown dtype 'bfloat': did you mean 'bfloat16'"):
        open_huggingface(str(wild), dtype="bfloat")  # type: ignore[arg-type]
    with pytest.raises(KeywordError, match="unknown keyword 'samplng': did you mean 'sampling'"):
        open_huggingface(str(wild), samplng=Sampling())


def test_without_transformers_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    load_tokenizer.cache_clear()
    with pytest.raises(MissingExtra, match=r"pip install 'mempo\[llm\]'"):
        open_huggingface("anything")
