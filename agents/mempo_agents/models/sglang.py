"""A model behind SGLang's native interface: token ids in and out, with log-probabilities."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta, Struct

from mempo_agents.models.answers import Fault, count, decoded, refusal
from mempo_agents.models.base import (
    NOTHING_BEFORE,
    Ids,
    ModelError,
    ModelTimeout,
    Prompt,
    Sampling,
    seed_of,
)
from mempo_agents.models.chat import decode, encode, load_tokenizer, short_name, tokenizer_digest
from mempo_agents.models.server import Seconds, Server, ask, heard
from mempo_agents.models.weights import check_same, sampled, shapes
from mempo_env.errors import ConfigError
from mempo_env.files import digest, file_digest
from mempo_env.types import Call, FinishReason, storable


class SGLang(Server, frozen=True, kw_only=True):
    """A model behind an SGLang server; an `Engine` of `mempo_agents.models.base`.

    `url` is the server's address without a version: http://127.0.0.1:30000. What `Call.output`, `output_ids`
    and `logprobs` hold is said at `mempo_agents.models.huggingface.HuggingFace`, and is the same, but for two
    things that the server decides: at a temperature other than 0 and 1 it divides the logits by it, unless it
    was started with SGLANG_RETURN_ORIGINAL_LOGPROB=1; and it heeds a seed only if it was started with
    --enable-deterministic-inference.

    Attributes:
        model: The name or folder of the model that is served, for its tokenizer and chat template.
        sampling: How it samples.
        patience: Seconds after which calls end if none was answered meanwhile, nor has the server said that
            it is healthy (while it takes weights: anything at all); None: nobody looks, each has its `total`.
    """

    model: str
    sampling: Sampling = Sampling()
    patience: Seconds | None = None

    def __post_init__(self) -> None:
        """Check the settings and load the tokenizer."""
        super().__post_init__()
        load_tokenizer(self.model)

    @property
    def name(self) -> str:
        """The model's; of a folder the last part."""
        return short_name(self.model)

    @property
    def fingerprint(self) -> str:
        """Of what decides an answer, as far as it is known here: model, tokenizer, sampling.

        Of a folder: its config, and names, types, shapes and some bytes of its tensors (`weights.sampled`).
        What the server has in them is its own.
        """
        known = (tokenizer_digest(load_tokenizer(self.model)), *_network_digests(Path(self.model)))
        return f"sglang-3-{self.name}-{digest(*known, msgspec.json.encode(self.sampling))}"

    def generate(self, prompts: Sequence[Prompt]) -> list[Call | ModelError]:
        """Answer each prompt, in order; a call that failed after its bounded tries is its error.

        Takes at most `total` seconds times the number of prompts over `concurrency`, rounded up.
        """
        tokenizer, found = load_tokenizer(self.model), dict[int, Call | ModelError]()
        asked: dict[int, tuple[int, ...]] = {}
        for i, prompt in enumerate(prompts):
            try:
                asked[i] = encode(tokenizer, prompt)
            except ModelError as error:
                found[i] = error
        bodies = [_body(ids, prompts[i], self.sampling) for i, ids in asked.items()]
        answers = ask(self, "/generate", bodies, read_generated, self.patience)
        for i, answer in zip(asked, answers, strict=True):
            found[i] = answer if isinstance(answer, ModelError) else self._call(prompts[i], asked[i], answer)
        return [found[i] for i in range(len(prompts))]

    def _call(self, prompt: Prompt, ids: tuple[int, ...], answer: Generated) -> Call | ModelError:
        if wrong := _contradiction(answer, len(ids), self.sampling.max_tokens, _vocabulary(self.model)):
            return ModelError(
                f"wanted the ids that were sampled after the prompt's, got {wrong}: serve the model whose "
                "name or folder was given, with nothing before it that changes what is asked or answered"
            )
        return Call(
            segments=prompt.segments,
            output=decode(load_tokenizer(self.model), answer.ids, prompt.stop),
            prompt_ids=ids,
            output_ids=answer.ids,
            logprobs=answer.logprobs,
            finish_reason=answer.finish_reason,
            cached_tokens=count(answer.cached_tokens, len(ids)),
        )

    def score(self, asked: Sequence[tuple[Ids, Ids]]) -> list[tuple[float, ...] | ModelError]:
        """Log-probabilities of the second ids after the first, as `Engine.score` says.

        They are the server's own of a prompt of both, at temperature 1 whatever the sampling. Takes at most
        as long as `generate`.
        """
        found: list[tuple[float, ...] | ModelError]
        found = [() if first else ModelError(NOTHING_BEFORE) for first, _ in asked]
        left = [i for i, (first, then) in enumerate(asked) if first and then]
        answers = ask(self, "/generate", [_scoring(*asked[i]) for i in left], read_scored, self.patience)
        for i, answer in zip(left, answers, strict=True):
            found[i] = answer if isinstance(answer, ModelError) else _logprobs(asked[i][1], answer)
        return found

    def update_weights(self, folder: Path) -> None:
        """Have the server load the weights in a folder, which it sees under the same path.

        It forgets what it kept of prompts. As it dies of weights of another shape, they are compared before
        with those of `model`, where that is a folder.

        Raises:
            ConfigError: if there are no weights, or those of another network.
            ModelError: if the server does not take them, after its bounded tries within `total` seconds.
        """
        given, here = shapes(folder), Path(self.model)
        if any(here.glob("*.safetensors")):
            wanted = shapes(here)
            check_same(folder, given, wanted, spared=wanted)
        body = msgspec.json.encode({"model_path": str(folder.resolve()), "flush_cache": True})
        for number in range(1, self.tries + 1):
            (answer,) = ask(self, "/update_weights_from_disk", [body], read_updated, self.patience, busy=True)
            if not isinstance(answer, ModelError):
                return
            if number == self.tries or not any(told in str(answer) for told in _BUSY):
                raise answer
            time.sleep(self.pause * 2**number)  # what nobody waits for any more still runs there


_BUSY = ("requests are still running", "was not flushed")
"""Of what a server answers that has requests under way, and so kept what it knew of prompts."""


def open_sglang(name: str, **settings: Any) -> SGLang:
    """The model that "MODEL@URL" names: "Qwen/Qwen2.5-7B-Instruct@http://127.0.0.1:30000".

    Args:
        name: The model's name or folder, and the server's address.
        settings: Any other field of `SGLang`.

    Raises:
        MissingExtra: without transformers.
        ConfigError: if it is not of that form, there is no such tokenizer, or a setting does not fit.
    """
    model, at, url = name.rpartition("@")
    if not (model and at):
        raise ConfigError("sglang: wanted MODEL@URL, as in my-model@http://127.0.0.1:30000, got no model")
    return SGLang(model=model, url=url, **settings)


def wait_until_ready(server: SGLang, seconds: float = 300.0) -> bool:
    """Wait until a server that is starting says that it is healthy, so many seconds at most.

    Returns:
        Whether it said so when it was first asked; else it may be another one than before.

    Raises:
        ModelTimeout: if it did not.
    """
    said = heard(server, seconds)
    if "" in said:
        return len(said) == 1
    raise ModelTimeout(
        f"wanted a healthy SGLang server within {seconds:g} s, got {said[-1] if said else 'no answer'}: read "
        "the server's own log"
    )


def _body(ids: Sequence[int], prompt: Prompt, sampling: Sampling) -> bytes:
    asked = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_new_tokens": sampling.max_tokens,
        "sampling_seed": seed_of(sampling, prompt),
        "stop": [text for text in prompt.stop if text],
    }
    return msgspec.json.encode(
        {"input_ids": ids, "sampling_params": asked, "return_logprob": True, "stream": False}
    )


def _scoring(first: Ids, then: Ids) -> bytes:
    """Asks for log-probabilities from the last of the first ids on, which has none itself."""
    return msgspec.json.encode(
        {
            "input_ids": [*first, *then],
            "sampling_params": {"temperature": 1.0, "max_new_tokens": 0},
            "return_logprob": True,
            "logprob_start_len": len(first) - 1,
            "stream": False,
        }
    )


# --- Answers -----------------------------------------------------------------------------------------------


class _Finish(Struct):
    type: str
    message: Any = None
    status_code: Any = None


_Id: TypeAlias = Annotated[int, Meta(ge=0, lt=2**31)]


class _Meta(Struct):
    finish_reason: _Finish


class _Sampled(_Meta):
    output_token_logprobs: tuple[tuple[float, _Id, Any], ...]
    prompt_tokens: Any = None
    cached_tokens: Any = None


class _Read(_Meta):
    input_token_logprobs: tuple[tuple[float | None, _Id, Any], ...] | None = None


class _Generated(Struct):
    meta_info: _Sampled
    output_ids: tuple[_Id, ...] | None = None


class _Scored(Struct):
    meta_info: _Read


class _Updated(Struct):
    success: bool
    message: str = ""


class Generated(Struct, frozen=True):
    """What a server generated.

    Attributes:
        ids: What was sampled.
        logprobs: Of each id (nats).
        finish_reason: Why it stopped.
        prompt_tokens: Tokens of the prompt; None where the server does not tell.
        cached_tokens: Tokens of the prompt that came from the server's prefix cache, where it tells.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason
    prompt_tokens: int | None
    cached_tokens: int | None


_REASONS: dict[str, FinishReason] = {"stop": "stop", "length": "length"}


def read_generated(body: bytes) -> Generated:
    """Read the body of an answer of status 200.

    Raises:
        Fault: if it is no answer, without tokens, with log-probabilities that are none or of other ids than
            those that it says were sampled, or one that the server broke off.
    """
    answer = decoded(body, _Generated)
    meta = answer.meta_info
    _check_whole(meta.finish_reason)
    if not meta.output_token_logprobs:
        raise Fault("an answer without tokens")
    logprobs, ids, _ = zip(*meta.output_token_logprobs, strict=True)
    _check_logprobs(logprobs)
    if answer.output_ids not in (None, ids):
        raise Fault("log-probabilities of other ids than those that were sampled")
    return Generated(
        ids=ids,
        logprobs=logprobs,
        finish_reason=_REASONS.get(meta.finish_reason.type, ""),
        prompt_tokens=count(meta.prompt_tokens),
        cached_tokens=count(meta.cached_tokens),
    )


Scored: TypeAlias = tuple[tuple[float | None, int], ...]
"""Log-probability (None for the first one) and id of tokens of a prompt."""


def read_scored(body: bytes) -> Scored:
    """Read the body of an answer of status 200 to a prompt that is to be scored.

    Raises:
        Fault: if it is no answer, without the prompt's log-probabilities, or one that the server broke off.
    """
    meta = decoded(body, _Scored).meta_info
    _check_whole(meta.finish_reason)
    told = meta.input_token_logprobs
    if not told:
        raise Fault("an answer without log-probabilities of the prompt")
    _check_logprobs(logprob for logprob, *_ in told if logprob is not None)
    return tuple((logprob, token) for logprob, token, _ in told)


def read_updated(body: bytes) -> None:
    """Read the body of an answer of status 200 to new weights.

    Raises:
        Fault: if the server says that it did not take them.
    """
    updated = decoded(body, _Updated)
    if not updated.success:
        raise Fault(f"the weights were not taken: {updated.message or 'no reason given'}", final=True)


def _logprobs(wanted: Ids, told: Scored) -> tuple[float, ...] | ModelError:
    """Those of the ids that were wanted, after that of the token before them.

    SGLang calls the last id of a vocabulary 0; its log-probability is right.
    """
    logprobs = tuple(logprob for logprob, _ in told[1:] if logprob is not None)
    same = len(wanted) == len(told) - 1 and all(
        token in (its, 0) for its, (_, token) in zip(wanted, told[1:], strict=True)
    )
    if same and len(logprobs) == len(wanted):
        return logprobs
    return ModelError(
        f"wanted log-probabilities of {len(wanted):,} given ids, got {len(logprobs):,}, or those of others: "
        "serve the model with an SGLang that knows logprob_start_len"
    )


def _check_whole(end: _Finish) -> None:
    """Refuse an answer that the server broke off."""
    if end.type == "abort":
        told = end.message if isinstance(end.message, str) else ""
        said = msgspec.json.encode({"message": storable(told) or "the server broke the answer off"})
        raise refusal(end.status_code if type(end.status_code) is int else 500, said)


def _check_logprobs(logprobs: Iterable[float]) -> None:
    """Refuse numbers that no softmax gives; rounding may take one a little above 0."""
    if not all(-1e6 < one < 1e-2 for one in logprobs):
        raise Fault("log-probabilities that are none: they lie between minus infinity and 0")


def _contradiction(answer: Generated, prompt: int, most: int, vocabulary: int) -> str:
    """What in an answer can't be, if so many ids were asked for so many; "" if all can."""
    if answer.prompt_tokens not in (None, prompt):
        return f"an answer to {answer.prompt_tokens:,} ids instead of {prompt:,}"
    if len(answer.ids) > most:
        return f"{len(answer.ids):,} ids instead of at most {most:,}"
    if max(answer.ids) >= vocabulary:
        return f"the id {max(answer.ids):,}, where a vocabulary of {vocabulary:,} ends"
    return ""


# --- The model's folder ------------------------------------------------------------------------------------


@lru_cache(maxsize=4)
def _vocabulary(model: str) -> int:
    """Ids that the network may sample, some of which may be no token; without its config: its tokens."""
    from transformers import AutoConfig

    try:
        return int(AutoConfig.from_pretrained(model).get_text_config().vocab_size)
    except (OSError, ValueError, KeyError, AttributeError):
        return len(load_tokenizer(model))


def _network_digests(folder: Path) -> tuple[str, ...]:
    """Of a network's config and a sample of its weights, where they lie in a folder."""
    config = folder / "config.json"
    known = file_digest(config) if config.is_file() else ""
    weights = sampled(folder) if any(folder.glob("*.safetensors")) else {}
    return known, str(sorted(weights.items()))
