"""A language model in this process where something is missing: a prompt's text, memory, quiet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from llm_help import make_network, make_tokenizer, prompt, save
from mempo_agents.models.base import Message, ModelError, Prompt, Sampling
from mempo_agents.models.huggingface import HuggingFace, open_huggingface
from mempo_env.types import Call


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a base model, which has no chat template."""
    tokenizer = make_tokenizer()
    tokenizer.chat_template = None
    return save(tmp_path_factory.mktemp("llm") / "base", make_network(tokenizer), tokenizer)


@pytest.fixture
def model(folder: Path) -> HuggingFace:
    return open_huggingface(str(folder), sampling=Sampling(max_tokens=4))


EMPTY = Prompt((Message("user", ""),))


def test_a_prompt_of_no_token_fails_alone(model: HuggingFace) -> None:
    (error,) = model.generate([EMPTY])
    assert type(error) is ModelError and "at least one token, got none" in str(error)
    first, error, last = model.generate([prompt("a"), EMPTY, prompt("so")])
    assert type(error) is ModelError
    assert [first, last] == model.generate([prompt("a"), prompt("so")])


def crowded(*_: Any, **__: Any) -> Any:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def test_too_little_memory_is_an_error_of_the_model(
    model: HuggingFace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not one of the agent that asked it; and the next ones are answered."""
    with monkeypatch.context() as patched:
        patched.setattr(model.loaded.network, "forward", crowded)
        found = model.generate([prompt("a"), EMPTY, prompt("so")])
        assert [type(one) for one in found] == [ModelError] * 3
        assert "lower batch or max_tokens" in str(found[0]) and "at least one token" in str(found[1])
        scores = model.score([((5, 6), (7,)), ((), (7,)), ((5,), ())])
        assert "lower the length of what is scored" in str(scores[0])
        assert "at least one id before" in str(scores[1]) and scores[2] == ()
    assert all(isinstance(one, Call) for one in model.generate([prompt("a"), prompt("so")]))
    assert isinstance(model.score([((5, 6), (7,))])[0], tuple)


def test_a_model_is_loaded_without_a_bar_and_those_of_others_stay(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    seen: list[dict[str, Any]] = []

    def users(bar: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        seen.append(kwargs)
        return bar(*args, **kwargs)

    before = logging.set_tqdm_hook(users)
    try:
        open_huggingface(str(folder))
        assert seen == [] and "Loading weights" not in capfd.readouterr().err
        AutoModelForCausalLM.from_pretrained(str(folder))
        assert [one["desc"] for one in seen] == ["Loading weights"]
        assert "Loading weights" in capfd.readouterr().err
    finally:
        logging.set_tqdm_hook(before)
