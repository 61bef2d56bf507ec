"""A language model in this process, by transformers: batched, with exact token ids and log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np
from msgspec import Struct

from mempo_agents.models.base import ModelError, ModelOverflow, Prompt, Sampling, seed_of
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
from mempo_env.types import Call, FinishReason

try:
    import torch
except ImportError:
    raise MissingExtra("torch", "llm") from None

Network: TypeAlias = Any
"""A causal language model of transformers."""


class Loaded(Struct, frozen=True, kw_only=True):
    """A model in memory.

    Attributes:
        name: What to call it in tables: its name at the hub, or the last part of its folder's.
        network: The network, in evaluation mode.
        tokenizer: Its tokenizer.
        window: Tokens of prompt and output together at most; None: no limit is known.
        ends: Ids that end a message.
        contents: A digest of weights, tokenizer, chat template and dtype.
    """

    name: str
    network: Network
    tokenizer: Tokenizer
    window: int | None
    ends: frozenset[int]
    contents: str


class HuggingFace(Settings, frozen=True, kw_only=True):
    """A causal language model of transformers in this process; a `Model` of `mempo_agents.models.base`.

    `Call.output_ids` are what was sampled, the token that ends a message included. `Call.output` is their
    text without special tokens, up to and with the stop text; the last token may reach beyond it.
    `Call.logprobs` are log softmax of the logits in float32, at temperature 1 and over all tokens, whatever
    the sampling: what a trainer computes for the same ids.

    Attributes:
        loaded: The model.
        batch: Prompts at a time; those of similar length go together.
        sampling: How it samples. What is drawn depends on seed and prompt, not on the batch.
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
        """Of the weights (the hub's revision, or the folder's files), the tokenizer, dtype and sampling."""
        settings = msgspec.json.encode(self.sampling)
        return f"huggingface-1-{self.name}-{digest(self.loaded.contents, settings)}"

    def generate(self, prompts: Sequence[Prompt]) -> list[Call | ModelError]:
        """Answer each prompt, in order.

        A prompt that does not fit the window with `sampling.max_tokens` after it is a ModelOverflow, as it is
        for SGLang and vLLM.
        """
        found: dict[int, Call | ModelError] = {}
        asked: dict[int, tuple[int, ...]] = {}
        for i, prompt in enumerate(prompts):
            try:
                asked[i] = self._fitting(encode(self.loaded.tokenizer, prompt))
            except ModelError as error:
                found[i] = error
        order = sorted(asked, key=lambda i: len(asked[i]))
        for start in range(0, len(order), self.batch):
            rows = order[start : start + self.batch]
            stops = [prompts[i].stop for i in rows]
            seeds = [seed_of(self.sampling, prompts[i]) for i in rows]
            sampled = sample(self.loaded, [asked[i] for i in rows], stops, seeds, self.sampling)
            for i, one in zip(rows, sampled, strict=True):
                found[i] = _call(self.loaded.tokenizer, prompts[i], asked[i], one)
        return [found[i] for i in range(len(prompts))]

    def _fitting(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        window, new = self.loaded.window, self.sampling.max_tokens
        if window is not None and len(ids) + new > window:
            raise ModelOverflow(
                f"wanted at most the {window:,} tokens of the model's window, got a prompt of {len(ids):,} "
                f"and max_tokens {new:,}: show the agent less, lower max_tokens, or use a longer window"
            )
        return ids


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
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"device: wanted one that torch has here, got {device!r}: {error}") from None
    try:
        network = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype))
    except (OSError, ValueError, KeyError) as error:
        raise no_model(model, error) from None
    config, told = network.config, network.generation_config.eos_token_id
    loaded = Loaded(
        name=short_name(model),
        network=network.to(device).eval(),
        tokenizer=tokenizer,
        window=getattr(config.get_text_config(), "max_position_embeddings", None),
        ends=_ids(told) | _ids(tokenizer.eos_token_id),
        contents=digest(tokenizer_digest(tokenizer), _weights_digest(model, config), dtype),
    )
    return HuggingFace(loaded=loaded, **settings)


def _ids(told: int | list[int] | None) -> frozenset[int]:
    return frozenset(() if told is None else [told] if isinstance(told, int) else told)


def _weights_digest(model: str, config: Any) -> str:
    """The hub's revision, or a digest of the files in a folder, by name and content."""
    if not Path(model).is_dir():
        return str(config._commit_hash)
    files = sorted(path for path in Path(model).iterdir() if path.is_file())
    return digest(*(part for path in files for part in (path.name, file_digest(path))))


def _call(
    tokenizer: Tokenizer, prompt: Prompt, prompt_ids: tuple[int, ...], sampled: Sampled
) -> Call | ModelError:
    if not np.isfinite(sampled.logprobs).all():
        return ModelError(
            "wanted finite log-probabilities, got others: the weights are broken, or float16 is too small "
            "for this model (dtype float32 or bfloat16)"
        )
    return Call(
        segments=prompt.segments,
        output=decode(tokenizer, sampled.ids, prompt.stop),
        prompt_ids=prompt_ids,
        output_ids=sampled.ids,
        logprobs=sampled.logprobs,
        finish_reason=sampled.finish_reason,
    )


# --- Sampling ----------------------------------------------------------------------------------------------


class Sampled(Struct, frozen=True):
    """What was drawn after one prompt: ids, their log-probabilities (nats, temperature 1), why it ended."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason


class _Row(Struct):
    """A prompt that is being continued."""

    stop: tuple[str, ...]
    draws: np.ndarray[Any, np.dtype[np.float64]]
    ids: list[int] = []
    logprobs: list[float] = []
    finish_reason: FinishReason = ""


def sample(
    model: Loaded,
    prompts: Sequence[Sequence[int]],
    stops: Sequence[Sequence[str]],
    seeds: Sequence[int],
    sampling: Sampling,
) -> list[Sampled]:
    """Continue prompts, all at once; a row that is over leaves the batch.

    Args:
        model: Who continues them.
        prompts: Their ids, at least one prompt and none empty, each with room in the window.
        stops: For each, the texts after which it ends.
        seeds: For each, that of its draws.
        sampling: How to draw.
    """
    from transformers import DynamicCache

    network, device = model.network, model.network.device
    rows = [_row(*one, sampling) for one in zip(prompts, stops, seeds, strict=True)]
    going, cache = list(rows), DynamicCache(config=network.config)
    kept_as = "cache" if "cache" in signature(network.forward).parameters else "past_key_values"
    new_BT, mask_BT = (part.to(device) for part in _padded(prompts))
    with torch.inference_mode():
        while going:
            places_BT = (mask_BT.cumsum(-1) - 1).clamp(min=0)[:, -new_BT.shape[1] :]
            said = network(
                input_ids=new_BT,
                attention_mask=mask_BT,
                position_ids=places_BT,
                use_cache=True,
                logits_to_keep=1,
                **{kept_as: cache},
            )
            logprobs_BV = said.logits[:, -1].float().log_softmax(-1).cpu()
            chosen_B = choose(logprobs_BV, [row.draws[len(row.ids)] for row in going], sampling)
            drawn_B = logprobs_BV.gather(1, chosen_B[:, None])[:, 0]
            for row, token, logprob in zip(going, chosen_B.tolist(), drawn_B.tolist(), strict=True):
                _append(model, row, token, logprob)
            kept = [i for i, row in enumerate(going) if not row.finish_reason]
            if 0 < len(kept) < len(going):
                cache.batch_select_indices(torch.tensor(kept, device=device))
            going = [going[i] for i in kept]
            new_BT = chosen_B[kept, None].to(device)
            mask_BT = torch.cat([mask_BT[kept], mask_BT.new_ones((len(kept), 1))], dim=1)
    return [Sampled(tuple(row.ids), tuple(row.logprobs), row.finish_reason) for row in rows]


def _row(prompt: Sequence[int], stop: Sequence[str], seed: int, sampling: Sampling) -> _Row:
    mixed = digest(str(seed), np.asarray(prompt, np.int64).tobytes())
    draws = np.random.default_rng(int(mixed, 16)).random(sampling.max_tokens)
    return _Row(tuple(one for one in stop if one), draws)


def _padded(prompts: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids (B, T) with zeros on the left, and the mask that is 1 where a prompt is, by their lengths alone."""
    longest = max(map(len, prompts))
    ids_BT = torch.zeros((len(prompts), longest), dtype=torch.long)
    mask_BT = torch.zeros_like(ids_BT)
    for i, prompt in enumerate(prompts):
        ids_BT[i, longest - len(prompt) :] = torch.tensor(prompt)
        mask_BT[i, longest - len(prompt) :] = 1
    return ids_BT, mask_BT


def choose(logprobs_BV: torch.Tensor, draws_B: Sequence[float], sampling: Sampling) -> torch.Tensor:
    """One token a row, (B,): the likeliest at temperature 0, else the one that a uniform draw falls on.

    Tokens lie on the unit interval in the order of their ids, so that noise in the last digits moves borders
    by as little, and never swaps two tokens.

    Args:
        logprobs_BV: Log-probabilities at temperature 1.
        draws_B: A number in [0, 1) for each row.
        sampling: Temperature and top_p: the least set of likeliest tokens whose mass reaches it.
    """
    if sampling.temperature == 0:
        return logprobs_BV.argmax(-1)
    below_BV = (logprobs_BV - logprobs_BV.amax(-1, keepdim=True)).double()  # or a tiny temperature overflows
    probs_BV = (below_BV / sampling.temperature).softmax(-1)
    if sampling.top_p < 1:
        ordered_BV = probs_BV.sort(-1, descending=True).values
        likelier_BV = ordered_BV.cumsum(-1) - ordered_BV
        within_BV = likelier_BV < max(sampling.top_p, 1e-9)  # the likeliest always is
        least_B = ordered_BV.masked_fill(~within_BV, 2.0).amin(-1, keepdim=True)
        probs_BV = probs_BV.masked_fill(probs_BV < least_B, 0.0)
    ends_BV = probs_BV.cumsum(-1)
    draws_B1 = torch.tensor(draws_B, dtype=torch.float64)[:, None]
    found_B1 = torch.searchsorted(ends_BV, draws_B1 * ends_BV[:, -1:], right=True)
    return found_B1[:, 0].clamp(max=probs_BV.shape[1] - 1)  # beyond: numbers that are not finite


def _append(model: Loaded, row: _Row, token: int, logprob: float) -> None:
    """Add a token to a row, which may be over with it."""
    row.ids.append(token)
    row.logprobs.append(logprob)
    if token in model.ends or _stopped(model.tokenizer, row):
        row.finish_reason = "stop"
    elif len(row.ids) == len(row.draws):
        row.finish_reason = "length"


def _stopped(tokenizer: Tokenizer, row: _Row) -> bool:
    text = decode(tokenizer, row.ids) if row.stop else ""
    return any(one in text for one in row.stop)
