"""Any OpenAI-compatible server as a model: SGLang, vLLM, llama.cpp, `transformers serve`, or one in the net.

Servers agree on what they are asked and differ in what they answer; `read_answer` takes all of these:

    what                    OpenAI, vLLM, SGLang                              llama.cpp
    stop text that matched  stop_reason (vLLM), matched_stop (SGLang), none   none
    tokens from the cache   usage.prompt_tokens_details.cached_tokens         the same, or timings.cache_n
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from mempo_agents.models.answers import Fault, count, decoded, refusal
from mempo_agents.models.base import ModelError, Prompt, Sampling, seed_of
from mempo_agents.models.chat import until
from mempo_agents.models.server import Server, ask
from mempo_env.errors import ConfigError
from mempo_env.files import digest
from mempo_env.types import Call, FinishReason, storable

_CLOSING = re.compile(r"</(\w+)>")
_REASONS: dict[str | None, FinishReason] = {"stop": "stop", "length": "length"}
_BROKEN_OFF = ("abort", "error")


class Endpoint(Server, frozen=True, kw_only=True):
    """A model behind an OpenAI-compatible server; a `Model` of `mempo_agents.models.base`.

    Attributes:
        model: Its name, as the server calls it.
        form: "chat" sends the messages; "completions" their texts, joined by newlines, without a template.
        sampling: How it samples.
    """

    model: str
    form: Literal["chat", "completions"] = "chat"
    sampling: Sampling = Sampling()

    @property
    def name(self) -> str:
        """The model's."""
        return self.model

    @property
    def fingerprint(self) -> str:
        """Of what decides an answer: model, form and sampling; where it is served does not."""
        return f"endpoint-1-{self.model}-{digest(msgspec.json.encode((self.form, self.sampling)))}"

    def generate(self, prompts: Sequence[Prompt]) -> list[Call | ModelError]:
        """Answer each prompt, in order; a call that failed after its bounded tries is its error.

        Takes at most `total` seconds times the number of prompts over `concurrency`, rounded up.
        """
        path = "/chat/completions" if self.form == "chat" else "/completions"
        answers = ask(self, path, [_body(self, prompt) for prompt in prompts], read_answer)
        others = {one.model for one in answers if isinstance(one, Answer)} - {"", self.model}
        if others:
            warnings.warn(
                f"asked for the model {self.model!r}, the server answers as {min(others)!r}", stacklevel=2
            )
        return [
            answer if isinstance(answer, ModelError) else _call(prompt, answer)
            for prompt, answer in zip(prompts, answers, strict=True)
        ]


def open_endpoint(name: str, **settings: Any) -> Endpoint:
    """The endpoint that "MODEL@URL" names: "Qwen/Qwen2.5-7B-Instruct@http://127.0.0.1:8000/v1".

    Args:
        name: The model's name and the server's address.
        settings: Any other field of `Endpoint`.

    Raises:
        ConfigError: if it is not of that form, or a setting does not fit.
    """
    model, at, url = name.rpartition("@")
    if not (model and at):
        raise ConfigError("endpoint: wanted MODEL@URL, as in my-model@http://127.0.0.1:8000/v1, got no model")
    return Endpoint(model=model, url=url, **settings)


def _body(endpoint: Endpoint, prompt: Prompt) -> bytes:
    sampling, stop = endpoint.sampling, [text for text in prompt.stop if text]
    asked: dict[str, Any] = {
        "model": endpoint.model,
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": seed_of(sampling, prompt),
        "stream": False,
    }
    if stop:
        asked["stop"] = stop
    if endpoint.form == "chat":
        asked["messages"] = [{"role": m.role, "content": storable(m.content)} for m in prompt.messages]
    else:
        asked["prompt"] = storable(prompt.text)
    return msgspec.json.encode(asked)


# --- Answers -----------------------------------------------------------------------------------------------


class _Message(Struct):
    content: str | None = None


class _Choice(Struct):
    """What has no type may be anything: it is no reason to throw a text away."""

    message: _Message | None = None
    text: Any = None
    finish_reason: Any = None
    stop_reason: Any = UNSET
    matched_stop: Any = UNSET


class _Answer(Struct):
    choices: tuple[_Choice, ...] | None = ()
    usage: Any = None
    timings: Any = None
    error: Any = None
    model: Any = None


class Answer(Struct, frozen=True):
    """What a server answered.

    Attributes:
        text: What the model wrote, as it came.
        finish_reason: Why it stopped.
        stopped_by: The stop text that matched; None if none did, UNSET where the server does not tell.
        prompt_tokens: Tokens of the prompt; None where the server does not tell, as for the next two.
        output_tokens: Tokens of the output.
        cached_tokens: Tokens of the prompt that came from the server's prefix cache; None, too, where the
            prompt's are not told or are fewer.
        model: What the server calls its model; "" where it does not tell.
    """

    text: str
    finish_reason: FinishReason
    stopped_by: str | UnsetType | None
    prompt_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None
    model: str = ""


def read_answer(body: bytes) -> Answer:
    """Read the body of an answer of status 200.

    A model whose thoughts, which are not shown, took all tokens has no text but was cut off: that text is "".

    Raises:
        Fault: if it is no answer, it has no text, or the server says that it failed.
    """
    answer = decoded(body, _Answer)
    if answer.error:
        code = answer.error.get("code") if isinstance(answer.error, dict) else None
        raise refusal(code if type(code) is int else 500, body)
    if not answer.choices:
        raise Fault("an answer without choices")
    choice = answer.choices[0]
    text = _text(choice.text) if choice.message is None else choice.message.content
    reason = _text(choice.finish_reason)
    if reason in _BROKEN_OFF:
        raise Fault(f"an answer that the server broke off ({reason})")
    if text is None and reason != "length":
        raise Fault(f"an answer without text (finish_reason {reason})", final=True)
    told = choice.matched_stop if choice.stop_reason is UNSET else choice.stop_reason
    usage = _members(answer.usage)
    prompt = count(usage.get("prompt_tokens"))
    return Answer(
        text=text or "",
        finish_reason=_REASONS.get(reason, ""),
        stopped_by=told if isinstance(told, str) or told is UNSET else None,
        prompt_tokens=prompt,
        output_tokens=count(usage.get("completion_tokens")),
        cached_tokens=None if prompt is None else count(_cached(usage, _members(answer.timings)), prompt),
        model=_text(answer.model) or "",
    )


def _cached(usage: dict[str, Any], timings: dict[str, Any]) -> Any:
    told = _members(usage.get("prompt_tokens_details")).get("cached_tokens")
    return timings.get("cache_n") if told is None else told


def _members(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


# --- Calls -------------------------------------------------------------------------------------------------


def _call(prompt: Prompt, answer: Answer) -> Call:
    output = stopped(answer, prompt.stop)
    cut = output != answer.text  # by a stop text, so not by its length
    return Call(
        segments=prompt.segments,
        output=output,
        finish_reason="stop" if cut else answer.finish_reason,
        prompt_tokens=answer.prompt_tokens,
        output_tokens=answer.output_tokens,
        cached_tokens=answer.cached_tokens,
    )


def stopped(answer: Answer, stop: Sequence[str]) -> str:
    """The text up to and with the stop text that ended it.

    Most servers leave that text out; some return it, some do not stop at it. Where the server does not tell
    which one matched, it is the closing tag of the tag that was opened last and is still open.
    """
    text, stop = answer.text, [one for one in stop if one]
    if any(one in text for one in stop):
        return until(text, stop)
    if answer.finish_reason != "stop":
        return text
    if answer.stopped_by is UNSET:
        return text + _still_open(text, stop)
    return text + answer.stopped_by if answer.stopped_by in stop else text


def _still_open(text: str, stop: Sequence[str]) -> str:
    """The closing tag in `stop`, none of which is in the text, whose opening tag comes last; else ""."""
    opened: dict[int, str] = {}
    for one in stop:
        if tag := _CLOSING.fullmatch(one):
            opened |= {match.start(): one for match in re.finditer(rf"<{tag[1]}[\s>]", text)}
    return opened[max(opened)] if opened else ""
