"""A model behind SGLang's native interface: token ids in and out, with log-probabilities."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any, TypeAlias

import httpx
import msgspec
from msgspec import Meta, Struct

from mempo_agents.models.base import ModelError, ModelTimeout, Prompt, Sampling, seed_of
from mempo_agents.models.chat import decode, encode, load_tokenizer, short_name, tokenizer_digest
from mempo_agents.models.server import Fault, Server, ask, refusal
from mempo_env.errors import ConfigError
from mempo_env.files import BAD_JSON, digest
from mempo_env.types import Call, FinishReason


class SGLang(Server, frozen=True, kw_only=True):
    """A model behind an SGLang server; a `Model` of `mempo_agents.models.base`.

    `url` is the server's address without a version: http://127.0.0.1:30000. What `Call.output`, `output_ids`
    and `logprobs` hold is said at `mempo_agents.models.huggingface.HuggingFace`, and is the same, but for two
    things that the server decides: at a temperature other than 0 and 1 it divides the logits by it, unless it
    was started with SGLANG_RETURN_ORIGINAL_LOGPROB=1; and it heeds a seed only if it was started with
    --enable-deterministic-inference.

    Attributes:
        model: The name or folder of the model that is served, for its tokenizer and chat template.
        sampling: How it samples.
    """

    model: str
    sampling: Sampling = Sampling()

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
        """Of what decides an answer, as far as it is known here: model, tokenizer, sampling."""
        settings = msgspec.json.encode(self.sampling)
        return f"sglang-1-{self.name}-{digest(tokenizer_digest(load_tokenizer(self.model)), settings)}"

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
        for i, answer in zip(asked, ask(self, "/generate", bodies, read_generated), strict=True):
            if isinstance(answer, ModelError):
                found[i] = answer
                continue
            found[i] = Call(
                segments=prompts[i].segments,
                output=decode(tokenizer, answer.ids, prompts[i].stop),
                prompt_ids=asked[i],
                output_ids=answer.ids,
                logprobs=answer.logprobs,
                finish_reason=answer.finish_reason,
                cached_tokens=answer.cached_tokens,
            )
        return [found[i] for i in range(len(prompts))]


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


def wait_until_ready(server: SGLang, seconds: float = 300.0) -> None:
    """Wait until a server that is starting says that it is healthy.

    Raises:
        ModelTimeout: if it does not within so many seconds.
    """
    until, told = time.monotonic() + seconds, "nothing listens there"
    while time.monotonic() < until:
        try:
            status = httpx.get(f"{server.url.rstrip('/')}/health", timeout=server.connect).status_code
            if status == 200:
                return
            told = f"status {status}"
        except httpx.HTTPError as error:
            told = f"no answer ({type(error).__name__})"
        time.sleep(min(0.5, max(until - time.monotonic(), 0.0)))
    raise ModelTimeout(
        f"wanted a healthy SGLang server within {seconds:g} s, got {told}: read the server's own log"
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


# --- Answers -----------------------------------------------------------------------------------------------


class _Finish(Struct):
    type: str
    message: str = ""
    status_code: int | None = None


_Id: TypeAlias = Annotated[int, Meta(ge=0, lt=2**31)]


class _Meta(Struct):
    finish_reason: _Finish
    output_token_logprobs: tuple[tuple[float, _Id, Any], ...]
    cached_tokens: Annotated[int, Meta(ge=0)] | None = None


class _Answer(Struct):
    meta_info: _Meta


class Generated(Struct, frozen=True):
    """What a server generated.

    Attributes:
        ids: What was sampled.
        logprobs: Of each id (nats).
        finish_reason: Why it stopped.
        cached_tokens: Tokens of the prompt that came from the server's prefix cache, where it tells.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason
    cached_tokens: int | None


_REASONS: dict[str, FinishReason] = {"stop": "stop", "length": "length"}


def read_generated(body: bytes) -> Generated:
    """Read the body of an answer of status 200.

    Raises:
        Fault: if it is no answer, without tokens, or one that the server broke off.
    """
    try:
        meta = msgspec.json.decode(body, type=_Answer).meta_info
    except BAD_JSON as error:
        raise Fault(f"an answer that is not what was asked for: {error}") from None
    end = meta.finish_reason
    if end.type == "abort":
        told = msgspec.json.encode({"message": end.message or "the server broke the answer off"})
        raise refusal(end.status_code or 500, told)
    if not meta.output_token_logprobs:
        raise Fault("an answer without tokens")
    return Generated(
        ids=tuple(token for _, token, _ in meta.output_token_logprobs),
        logprobs=tuple(logprob for logprob, _, _ in meta.output_token_logprobs),
        finish_reason=_REASONS.get(end.type, ""),
        cached_tokens=meta.cached_tokens,
    )
