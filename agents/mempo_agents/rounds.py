"""Agents with a model behind them: a round is a generator that asks, batched over episodes."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from mempo_agents.base import Context
from mempo_agents.models.base import Message, Model, ModelError, Prompt
from mempo_env.protocol import neutralise
from mempo_env.tokens import count_words
from mempo_env.types import Call, Completion, Segment, SegmentKind

Round: TypeAlias = Generator[Prompt, str, str]
"""Yields prompts, is sent what the model wrote, and returns the text of the round."""


class ModelAgent(Struct, frozen=True, kw_only=True):
    """An agent that asks a model, once a round or more often.

    Attributes:
        name: What to call it in tables.
        play: What it does in a round.
        model: Whom it asks.
        env_kwargs: Keyword arguments of the environment that it needs.
        version: Raised whenever `play` changes.
    """

    name: str
    play: Callable[[Context], Round]
    model: Model
    env_kwargs: Mapping[str, Any]
    version: int = 1

    @property
    def fingerprint(self) -> str:
        """Changes whenever the agent's behaviour does, or the model's."""
        return f"{self.name}-{self.version}-{self.model.fingerprint}"

    def act(self, contexts: Sequence[Context]) -> list[Completion | Exception]:
        """Play a round of each episode; the prompts of all of them that wait are asked together."""
        rounds = [self.play(context) for context in contexts]
        calls: list[list[Call]] = [[] for _ in rounds]
        written: dict[int, Completion | Exception] = {}
        waiting: dict[int, Prompt] = {}

        def go_on(i: int, answer: str | None) -> None:
            try:
                try:
                    asked = next(rounds[i]) if answer is None else rounds[i].send(answer)
                    waiting[i] = replace(asked, draw=contexts[i].seed)
                except StopIteration as end:
                    written[i] = completed(end.value, calls[i])
            except Exception as error:  # one episode's fault ends that episode alone
                written[i] = ended(error, calls[i])

        for i in range(len(rounds)):
            go_on(i, None)
        while waiting:
            prompts, waiting = waiting, {}
            for i, answer in zip(prompts, answers(self.model, list(prompts.values())), strict=True):
                if isinstance(answer, Exception):
                    rounds[i].close()
                    written[i] = ended(answer, calls[i])
                else:
                    calls[i].append(replace(counted(prompts[i], answer), role=prompts[i].role))
                    go_on(i, answer.output)
        return [written[i] for i in range(len(rounds))]


def answers(model: Model, prompts: Sequence[Prompt]) -> list[Call | Exception]:
    """A call or an error for each prompt, whatever the model does.

    If it fails for all of them together it is asked for each alone: what was answered before is not lost.
    """
    try:
        found = list(model.generate(list(prompts)))
        if len(found) != len(prompts):
            raise ValueError(
                f"generate: wanted an answer to each of {len(prompts)} prompts, got {len(found)}"
            )
        return [one if isinstance(one, Call | ModelError) else _no_call(one) for one in found]
    except MemoryError:
        raise
    except Exception as error:
        return [error] if len(prompts) == 1 else [answers(model, [prompt])[0] for prompt in prompts]


def _no_call(value: object) -> TypeError:
    return TypeError(f"generate: wanted a Call or a ModelError, got {type(value).__name__}")


def ended(error: Exception, calls: Sequence[Call]) -> Exception:
    """An error with the calls of its round that were answered before it, for they cost all the same."""
    if isinstance(error, ModelError):
        error = copy(error)  # one may have ended several calls
    with suppress(AttributeError):
        error.calls = tuple(calls)  # type: ignore[attr-defined]
    return error


def counted(prompt: Prompt, call: Call) -> Call:
    """The call with the segments of its prompt, where nothing else tells of it: what they hold is counted.

    Messages without segments count as one that may hold all of passages, thoughts and memory.
    """
    if call.prompt_ids or call.prompt_tokens or call.segments:
        return call
    sent = (Segment("recall", 0, prompt.text, count_words(prompt.text)),)
    return replace(call, segments=prompt.segments or sent)


def completed(text: str, calls: Sequence[Call]) -> Completion:
    """The text of a round with its calls, and with exact tokens where it is the output of its only call."""
    if len(calls) == 1 and text == calls[0].output:
        call = calls[0]
        return Completion(text, call.output_ids, call.logprobs, call.finish_reason, calls)
    return Completion(text, finish_reason=calls[-1].finish_reason if calls else "", calls=calls)


ENDS = ("</search>", "</answer>", "</tool_call>")
"""After which a round is over."""


def one_call(context: Context) -> Round:
    """A round of one call, whose prompt is the environment's."""
    return (yield as_shown(context, ENDS))


def as_shown(context: Context, stop: Sequence[str] = ()) -> Prompt:
    """The prompt as the environment renders it: a message of the system, and one of the user."""
    return composed(context.segments, stop)


def composed(segments: Sequence[Segment], stop: Sequence[str] = ()) -> Prompt:
    """A prompt of segments: a message of the system if the first one is the system's, and one of the user."""
    first = int(bool(segments) and segments[0].kind == "system")
    system = tuple(Message("system", segment.text) for segment in segments[:first])
    return Prompt((*system, Message("user", joined(segments[first:]))), tuple(segments), tuple(stop))


MEMORY_ENDS = ("</mem>",)
"""After which a memory is written."""


def remembering(segments: Sequence[Segment]) -> Prompt:
    """A prompt whose answer stands in `<mem>` and becomes memory."""
    return replace(composed(segments, MEMORY_ENDS), role="mem")


# --- Prompts of one's own ----------------------------------------------------------------------------------


def joined(segments: Sequence[Segment]) -> str:
    """Their texts, as the environment joins them."""
    return "\n".join(segment.text for segment in segments)


def kinds(segments: Sequence[Segment], *wanted: SegmentKind) -> tuple[Segment, ...]:
    """The segments of some kinds, in their order."""
    return tuple(segment for segment in segments if segment.kind in wanted)


def without(segments: Sequence[Segment], *unwanted: SegmentKind) -> tuple[Segment, ...]:
    """The segments of all other kinds, in their order."""
    return tuple(segment for segment in segments if segment.kind not in unwanted)


def said(kind: SegmentKind, text: str, context: Context) -> Segment:
    """A segment that no ledger holds, an instruction or what a call of this round wrote; tokens are words."""
    now = 1 + max((segment.round for segment in context.segments), default=0)
    return Segment(kind, now, text, count_words(text))


def inside(text: str, tag: str) -> str:
    """What stands in a tag of a text, or the whole text if there is none; inert, so that it cannot act."""
    match = _tagged(text, tag)
    return neutralise(match[1] if match else text).strip()


def memory_in(text: str) -> tuple[int, int]:
    """Where in a text its memory stands, from its tag to the end of it: all of it if there is no tag."""
    match = _tagged(text, "mem")
    return match.span() if match else (0, len(text))


def _tagged(text: str, tag: str) -> re.Match[str] | None:
    return re.search(rf"<{tag}>(.*?)(?:</{tag}>|\Z)", text, re.DOTALL)


def remembered(text: str, context: Context) -> tuple[Segment, ...]:
    """What a call wrote into `<mem>`, as the segment that the environment will make of it; () for nothing."""
    memory = inside(text, "mem")
    return (said("mem", f"<mem>\n{memory}\n</mem>", context),) if memory else ()
