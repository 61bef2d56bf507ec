"""Token counters, and what a call of a model costs."""

from __future__ import annotations

from collections.abc import Callable, Sized
from functools import partial
from typing import Any, TypeAlias

from mempo_env.errors import ConfigError, lookup
from mempo_env.types import Call, Segment, Tokens

TokenCounter: TypeAlias = Callable[[str], int]


def count_words(text: str) -> int:
    """White-space separated words: the default counter, the same for every model."""
    return len(text.split())


COUNTERS: dict[str, TokenCounter] = {"words": count_words}


def counter(tokenizer: str | TokenCounter | Any) -> tuple[str, TokenCounter]:
    """Return name and counter of a tokenizer.

    Args:
        tokenizer: A name in `COUNTERS`, a callable from text to a count, or an object whose
            `encode(text, add_special_tokens=False)` returns ids (any Hugging Face tokenizer).
    """
    if isinstance(tokenizer, str):
        return tokenizer, lookup(COUNTERS, tokenizer, "tokenizer")
    name = str(
        getattr(tokenizer, "name_or_path", "") or getattr(tokenizer, "__qualname__", type(tokenizer).__name__)
    )
    encode = getattr(tokenizer, "encode", None)
    if encode is not None:
        return name, partial(_count_ids, encode)
    if callable(tokenizer):
        if type(tokenizer("two words")) is not int:
            raise ConfigError(f"tokenizer: wanted {name} to return an int, got {tokenizer('two words')!r}")
        return name, tokenizer
    raise ConfigError(f"tokenizer: wanted a name, a callable or an object with encode(), got {tokenizer!r}")


def _count_ids(encode: Callable[..., Sized], text: str) -> int:
    return len(encode(text, add_special_tokens=False))


def of_call(call: Call, count: TokenCounter, in_view: int) -> tuple[int, int]:
    """(prompt tokens, output tokens) of a call: by its exact ids, else as it says, else counted.

    No prompt is empty, and no output that is a text: where 0 tokens are told (as some servers do of all) they
    are counted, too.

    Args:
        call: The call.
        count: Counts the tokens of its output.
        in_view: Tokens of the environment's prompt, which a call that names no segments is taken to be over.
    """
    shown = sum(s.tokens for s in call.segments if isinstance(s, Segment)) if call.segments else in_view
    return (
        len(call.prompt_ids) or call.prompt_tokens or shown,
        len(call.output_ids) or call.output_tokens or count(call.output),
    )


def spend(before: Tokens, calls: tuple[tuple[int, int], ...], memory: int) -> Tokens:
    """Add a round's calls, each (prompt tokens, output tokens), to the counts before it.

    peak is the longest single call, total the sum of all, and dependency sums (2 n_p + n_o) n_o / 2, the
    number of (token, earlier token) pairs that generation attended to (MEM1, 2506.15841, its dependency
    metric).
    """
    prompt = output = 0
    peak, dependency = before.peak, before.dependency
    for n_prompt, n_output in calls:
        prompt += n_prompt
        output += n_output
        peak = max(peak, n_prompt + n_output)
        dependency += (2 * n_prompt + n_output) * n_output / 2
    return Tokens(prompt, output, memory, peak, before.total + prompt + output, dependency)


NO_TOKENS = Tokens(0, 0, 0, 0, 0, 0.0)
