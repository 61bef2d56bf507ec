"""From messages to token ids and back, by a model's own tokenizer and chat template.

Four things that templates and tokenizers do are undone, since none of them is in the agent's prompt:

- a template that inserts a system message of its own where the chat has none is given an empty one;
- a template that tells the date (Llama 3.2) tells the same on every day, or no run could go on tomorrow;
- special tokens written out in a message (a passage that says "<|im_end|>") are text, not tokens;
- no token of padding is ever looked at: lengths are counted, as pad and end may be the same id.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

from mempo_agents.models.base import ModelError, Prompt
from mempo_env.errors import ConfigError, MissingExtra
from mempo_env.files import digest
from mempo_env.types import storable

TODAY = date(2024, 7, 26)
"""What templates are told that day it is; what Llama 3.1's says where it is told nothing."""

_PATIENCE = 10.0
"""Seconds in which the hub must tell whether it has a model."""

Tokenizer: TypeAlias = Any
"""A tokenizer of transformers, which has no types of its own."""


@lru_cache(maxsize=4)
def load_tokenizer(model: str) -> Tokenizer:
    """The tokenizer of a model, by its name or folder.

    Raises:
        MissingExtra: without transformers.
        ConfigError: if there is none.
    """
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise MissingExtra("transformers", "llm") from None
    _check_there(model)
    try:
        return AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError, KeyError) as error:
        raise no_model(model, error) from None


def _check_there(model: str) -> None:
    """A ConfigError, within seconds, for a name that is no folder, not in the cache and not at the hub."""
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import RepositoryNotFoundError

    if Path(model).is_dir():
        return
    try:
        if not isinstance(try_to_load_from_cache(model, "config.json"), str):
            HfApi().model_info(model, timeout=_PATIENCE)
    except RepositoryNotFoundError:
        why = "there is no such folder, and none of that name at the hub, or it is private"
        why += " and you are not logged in"
        raise no_model(model, why) from None
    except Exception as error:  # of whichever client the hub's package uses
        why = f"there is no such folder, it is not in the cache, and the hub did not tell: {_line(error)}"
        raise no_model(model, why) from None


def no_model(model: str, why: Exception | str) -> ConfigError:
    """The error of a model that can't be loaded."""
    return ConfigError(
        f"wanted the name or the folder of a causal language model, got {model!r}: {_line(why)}"
    )


def short_name(model: str) -> str:
    """A model's name, or the last part of its folder's: no path of this machine gets into a result."""
    return Path(model).resolve().name if Path(model).is_dir() else model


def tokenizer_digest(tokenizer: Tokenizer) -> str:
    """Of all that decides the ids of a prompt: vocabulary, rules, chat template."""
    return digest(tokenizer.backend_tokenizer.to_str(), str(tokenizer.chat_template))


def encode(tokenizer: Tokenizer, prompt: Prompt) -> tuple[int, ...]:
    """Token ids of a prompt, up to where the model's own message begins.

    Without a chat template (base models): those of the texts of the messages, joined by newlines.

    Raises:
        ModelError: if the template refuses the messages, or nothing is left of them.
    """
    if tokenizer.chat_template is None:
        ids = tokenizer.encode(inert(tokenizer, prompt.text))
    else:
        ids = tokenizer.encode(_chat(tokenizer, prompt), add_special_tokens=False)
    if not ids:
        raise ModelError("wanted a prompt of at least one token, got none: give the message a text")
    return tuple(ids)


def _chat(tokenizer: Tokenizer, prompt: Prompt) -> str:
    chat = [{"role": m.role, "content": inert(tokenizer, m.content)} for m in prompt.messages]
    try:
        return _rendered(tokenizer, chat)
    except Exception as error:  # a template is a program: it may fail in any way
        raise ModelError(
            f"wanted messages that the model's chat template takes, got roles "
            f"{', '.join(m.role for m in prompt.messages)}: {_line(error)}"
        ) from None


def decode(tokenizer: Tokenizer, ids: Sequence[int], stop: Sequence[str] = ()) -> str:
    """The text of sampled ids, without special tokens, up to and with the stop text that ends first."""
    text = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return until(storable(text), stop)


def until(text: str, stop: Sequence[str]) -> str:
    """The text up to and with the stop text that ends first; all of it if there is none."""
    ends = [at + len(one) for one in stop if one and (at := text.find(one)) >= 0]
    return text[: min(ends, default=len(text))]


def _rendered(tokenizer: Tokenizer, chat: list[dict[str, str]]) -> str:
    """The chat as one text. A template that knows no system messages inserts none either."""

    def render(chat: list[dict[str, str]]) -> str:
        template = _undated(tokenizer.get_chat_template())
        return str(
            tokenizer.apply_chat_template(
                chat, chat_template=template, tokenize=False, add_generation_prompt=True
            )
        )

    if chat[0]["role"] == "system":
        return render(chat)
    try:
        return render([{"role": "system", "content": ""}, *chat])
    except Exception:  # then this one, whose own error is told
        return render(chat)


def _undated(template: str) -> str:
    """The template with a clock that stands still, in place of the one that transformers lets it ask."""
    if "strftime_now" not in template:
        return template
    fields = ("-d", *"aAbBdeHIjmMpSyY")
    told = "".join(f"|replace('%{one}', '{TODAY.strftime(f'%{one}')}')" for one in fields)
    return f"{{% macro strftime_now(form) %}}{{{{ form{told} }}}}{{% endmacro %}}{template}"


def inert(tokenizer: Tokenizer, text: str) -> str:
    """The text with each special token that it spells out broken by a space after its first character."""
    text = storable(text)
    for token in tokenizer.added_tokens_decoder.values():
        if token.special and len(token.content) > 1:
            text = text.replace(token.content, f"{token.content[0]} {token.content[1:]}")
    return text


def _line(error: Exception | str) -> str:
    """What it says on one line, cut behind a word."""
    return textwrap.shorten(str(error), 240, placeholder=" ...")
