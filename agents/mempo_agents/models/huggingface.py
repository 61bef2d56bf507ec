"""A language model in this process, by transformers: batched, with exact token ids and log-probabilities."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np

from mempo_agents.models.base import (
    NOTHING_BEFORE,
    Ids,
    ModelError,
    ModelOverflow,
    Prompt,
    Sampling,
    seed_of,
)
from mempo_agents.models.chat import (
    Tokenizer,
    decode,
    encode,
    load_tokenizer,
    no_model,
    short_name,
    tokenizer_digest,
)
from mempo_env.errors import ConfigError, MissingExtra
from mempo_env.files import digest, file_digest
from mempo_env.settings import Count, Settings, check
from mempo_env.types import Call

try:
    import torch
except ImportError:
    raise MissingExtra("torch", "llm") from None

from mempo_agents.models.decoding import Sampled, Task, sample
from mempo_agents.models.network import (
    Loaded,
    Network,
    ends_of,
    evaluating,
    joins,
    load_weights,
    padded,
    read,
    silent_ids,
    weights_digest,
    window_of,
)

TOGETHER = 4096
"""Tokens, padding included, that `score` reads at a time, or one text if it is longer."""


class HuggingFace(Settings, frozen=True, kw_only=True):
    """A causal language model of transformers in this process; an `Engine` of `mempo_agents.models.base`.

    `Call.output_ids` are what was sampled, the token that ends a message included. `Call.output` is their
    text without special tokens, up to and with the stop text; the last token may reach beyond it.
    `Call.logprobs` are log softmax of the logits in float32, at temperature 1 and over all tokens, whatever
    the sampling: what a trainer computes for the same ids. The network is asked in evaluation mode and left
    in the mode that it was in.

    Attributes:
        loaded: The model.
        batch: Prompts at a time, the longest first. Where one is over the next takes its place, if the model
            keeps all keys and values (Llama, Qwen2, GPT-2); one with layers of a sliding window or a
            recurrent state (Mistral, Gemma) goes on to the next prompts when all of a batch are over.
        sampling: How it samples. What is drawn depends on seed, prompt and its `draw`, not on the batch.
    """

    loaded: Loaded
    batch: Count = 8
    sampling: Sampling = Sampling()

    @property
    def name(self) -> str:
        """The model's."""
        return self.loaded.name

    @property
    def fingerprint(self) -> str:
        """Of the weights (the hub's revision, or the folder's files), the tokenizer, dtype and sampling.

        Of weights that a trainer changes, or that `update_weights` has, it is of the tensors as they are now.
        """
        settings = msgspec.json.encode(self.sampling)
        contents = self.loaded.contents or _contents_now(self.loaded)
        return f"huggingface-1-{self.name}-{digest(contents, settings)}"

    def generate(self, prompts: Sequence[Prompt]) -> list[Call | ModelError]:
        """Answer each prompt, in order.

        A prompt that does not fit the window with `sampling.max_tokens` after it is a ModelOverflow, as it is
        for SGLang and vLLM. Where the device has too little memory all that were asked together fail.
        """
        found: dict[int, Call | ModelError] = {}
        tasks: dict[int, Task] = {}
        for i, prompt in enumerate(prompts):
            try:
                ids = encode(self.loaded.tokenizer, prompt)
                _check_fits(self.loaded, len(ids), self.sampling.max_tokens, "max_tokens")
                tasks[i] = Task(ids, prompt.stop, seed_of(self.sampling, prompt))
            except ModelError as error:
                found[i] = error
        try:
            sampled = sample(self.loaded, list(tasks.values()), self.sampling, self.batch)
        except torch.OutOfMemoryError:
            return [found.get(i, _crowded("batch or max_tokens")) for i in range(len(prompts))]
        for i, one in zip(tasks, sampled, strict=True):
            found[i] = _call(self.loaded.tokenizer, prompts[i], tasks[i].ids, one)
        return [found[i] for i in range(len(prompts))]

    def score(self, asked: Sequence[tuple[Ids, Ids]]) -> list[tuple[float, ...] | ModelError]:
        """Log-probabilities of the second ids after the first, as `Engine.score` says.

        Texts of like length are read together, up to 4,096 tokens at a time.
        """
        found: dict[int, tuple[float, ...] | ModelError] = {}
        for i, (first, then) in enumerate(asked):
            try:
                _check_scorable(self.loaded, first, then)
                found[i] = ()
            except ModelError as error:
                found[i] = error
        left = [i for i, (_, then) in enumerate(asked) if not isinstance(found[i], ModelError) and then]
        with evaluating(self.loaded.network):
            for rows in _like(left, [len(first) + len(then) for first, then in asked]):
                try:
                    scored = _scored(self.loaded.network, [asked[i] for i in rows])
                except torch.OutOfMemoryError:
                    scored = [_crowded("the length of what is scored")] * len(rows)
                found.update(zip(rows, scored, strict=True))
        return [found[i] for i in range(len(asked))]

    def update_weights(self, folder: Path) -> None:
        """Take the weights that lie in a folder of a Hugging Face model, in place; all, or none.

        Raises:
            ConfigError: if there are none, or others than the network's by name or shape.
        """
        load_weights(self.loaded.network, Path(folder))
        self.loaded.contents = None


def around(network: Network, tokenizer: Tokenizer, *, name: str, **settings: Any) -> HuggingFace:
    """The model of a network that is in memory, and that somebody else may train.

    Args:
        network: Any causal language model of transformers, or one of peft's around it; it is shared.
        tokenizer: Its tokenizer.
        name: What to call it in tables.
        settings: Any other field of `HuggingFace`.

    Raises:
        ConfigError: if a setting does not fit.
    """
    loaded = Loaded(
        name=name,
        network=network,
        tokenizer=tokenizer,
        window=window_of(network),
        ends=ends_of(network, tokenizer),
        silent=silent_ids(tokenizer),
        contents=None,
        joins=joins(network),
    )
    return HuggingFace(loaded=loaded, **settings)


Dtype: TypeAlias = Literal["float32", "bfloat16", "float16"]


def open_huggingface(
    model: str, *, dtype: Dtype = "float32", device: str = "cpu", **settings: Any
) -> HuggingFace:
    """Load a model.

    Args:
        model: Its name at the hub, or its folder.
        dtype: Of its weights.
        device: Where it runs: "cpu", "cuda", "cuda:1".
        settings: Any other field of `HuggingFace`.

    Raises:
        MissingExtra: without torch or transformers.
        ConfigError: if there is no such model or device, or a setting does not fit.
    """
    check("dtype", dtype, Dtype)
    tokenizer = load_tokenizer(model)  # the first to say that transformers is missing
    from transformers import AutoModelForCausalLM

    try:
        torch.zeros(1, device=device).item()  # "meta" has no numbers
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"device: wanted one that torch has here, got {device!r}: {error}") from None
    try:
        with _quietly():
            network = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype))
    except (OSError, ValueError, KeyError) as error:
        raise no_model(model, error) from None
    made = around(network.to(device).eval(), tokenizer, name=short_name(model), **settings)
    weights = _weights_digest(model, network.config)
    made.loaded.contents = digest(tokenizer_digest(tokenizer), weights, dtype)
    return made


@contextmanager
def _quietly() -> Iterator[None]:
    """Without the bar that transformers shows while it reads weights; one of a download is shown."""
    from transformers.utils import logging

    hook = getattr(logging, "set_tqdm_hook", lambda _: None)  # the first 5.x lack it, and show the bar
    before = hook(lambda bar, args, kwargs: bar(*args, **{**kwargs, "disable": True}))
    try:
        yield
    finally:
        hook(before)


def _weights_digest(model: str, config: Any) -> str:
    """The hub's revision, or a digest of the files in a folder, by name and content."""
    if not Path(model).is_dir():
        return str(config._commit_hash)
    files = sorted(path for path in Path(model).iterdir() if path.is_file())
    return digest(*(part for path in files for part in (path.name, file_digest(path))))


def _contents_now(loaded: Loaded) -> str:
    return digest(tokenizer_digest(loaded.tokenizer), weights_digest(loaded.network.state_dict()))


def _check_fits(loaded: Loaded, prompt: int, new: int, what: str) -> None:
    if loaded.window is not None and prompt + new > loaded.window:
        raise ModelOverflow(
            f"wanted at most the {loaded.window:,} tokens of the model's window, got a prompt of {prompt:,} "
            f"and {what} {new:,}: show the agent less, lower max_tokens, or use a longer window"
        )


def _call(
    tokenizer: Tokenizer, prompt: Prompt, prompt_ids: tuple[int, ...], sampled: Sampled
) -> Call | ModelError:
    if not np.isfinite(sampled.logprobs).all():
        return _broken()
    return Call(
        segments=prompt.segments,
        output=decode(tokenizer, sampled.ids, prompt.stop),
        prompt_ids=prompt_ids,
        output_ids=sampled.ids,
        logprobs=sampled.logprobs,
        finish_reason=sampled.finish_reason,
    )


def _crowded(what: str) -> ModelError:
    return ModelError(
        f"wanted memory for keys, values and logits, got none on the device: lower {what}, take a smaller "
        "dtype, or free what else is there"
    )


def _broken() -> ModelError:
    return ModelError(
        "wanted finite log-probabilities, got others: the weights are broken, or float16 is too small "
        "for this model (dtype float32 or bfloat16)"
    )


# --- Scoring -----------------------------------------------------------------------------------------------


def _check_scorable(loaded: Loaded, first: Ids, then: Ids) -> None:
    if not first:
        raise ModelError(NOTHING_BEFORE)
    _check_fits(loaded, len(first), len(then), "an answer of")


def _like(rows: Sequence[int], lengths: Sequence[int]) -> Iterator[list[int]]:
    """Rows in batches of like length, of at most `TOGETHER` tokens with padding, the longest first."""
    batch: list[int] = []
    for row in sorted(rows, key=lambda i: lengths[i], reverse=True):
        if batch and (len(batch) + 1) * lengths[batch[0]] > TOGETHER:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def _scored(network: Network, asked: Sequence[tuple[Ids, Ids]]) -> list[tuple[float, ...] | ModelError]:
    """Those of one batch, none of them empty."""
    ids_BT, mask_BT = padded([(*first, *then) for first, then in asked], network.device)
    longest = max(len(then) for _, then in asked)
    logprobs_BKV = read(network, ids_BT, mask_BT, keep=longest + 1)[:, :-1]
    rows = logprobs_BKV.gather(2, ids_BT[:, -longest:, None])[:, :, 0].tolist()
    found = (tuple(row[longest - len(then) :]) for row, (_, then) in zip(rows, asked, strict=True))
    return [one if np.isfinite(one).all() else _broken() for one in found]
