"""The models by name, and whether one answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from msgspec.structs import replace

from mempo_agents.models.base import Message, Model, ModelError, Prompt, Sampling
from mempo_agents.models.scripted import ScriptedModel
from mempo_agents.own import lookup_or_own, own
from mempo_env.errors import ConfigError


def _scripted(rest: str) -> Model:
    if rest:
        raise ConfigError(f"model: wanted 'scripted' alone, which takes nothing after a colon, got {rest!r}")
    return ScriptedModel()


def _endpoint(name: str, **settings: Any) -> Model:
    from mempo_agents.models.endpoint import open_endpoint

    return open_endpoint(name, **settings)


def _huggingface(name: str, **settings: Any) -> Model:
    from mempo_agents.models.huggingface import open_huggingface

    return open_huggingface(name, **settings)


def _sglang(name: str, **settings: Any) -> Model:
    from mempo_agents.models.sglang import open_sglang

    return open_sglang(name, **settings)


SAMPLED: dict[str, Callable[..., Model]] = {
    "endpoint": _endpoint,
    "huggingface": _huggingface,
    "sglang": _sglang,
}
MODELS: dict[str, Callable[..., Model]] = {"scripted": _scripted, **SAMPLED}
"""Name: what makes the model, from what stands after the name and a colon ("" if nothing does)."""


def make_model(name: str, sampling: Sampling | None = None) -> Model:
    """Make a model by name; ConfigError with the nearest name if there is none.

    Args:
        name: A name in `MODELS`, with a colon and what it is made of where it needs that; or "module:thing"
            for one of your own, where the thing is a model, or a class or function that makes one without
            arguments.
        sampling: How it samples; None: by the defaults, or as one of your own says itself.
    """
    kind, colon, rest = name.partition(":")
    if sampling is not None and kind not in SAMPLED:
        raise ConfigError(
            f"sampling: wanted a model that takes it ({', '.join(SAMPLED)}), got {name!r}; one of your own "
            "says itself how it samples"
        )
    if kind in MODELS or not colon:
        return lookup_or_own(MODELS, kind, "model")(
            rest, **({} if sampling is None else {"sampling": sampling})
        )
    return cast(Model, own(name, "model", ("name", "fingerprint", "generate")))


def ask_once(model: Model) -> None:
    """Ask a model for a word, with one more try where it has a server.

    A wrong name, a server that is down or a key that is refused would otherwise fail in every episode.

    Raises:
        ModelError: if it answers with that.
        ConfigError: if it does not do what a model does.
    """
    quick: dict[str, Any] = {"tries": 2}
    if isinstance(sampling := getattr(model, "sampling", None), Sampling):
        quick["sampling"] = replace(sampling, max_tokens=1)
    fields = {name: value for name, value in quick.items() if name in getattr(model, "__struct_fields__", ())}
    asked = replace(cast(Any, model), **fields) if fields else model
    try:
        (answer,) = asked.generate([Prompt((Message("user", "Say yes."),))])
    except Exception as error:
        raise ConfigError(
            f"model {model.name!r}: wanted an answer to each prompt from generate(), got "
            f"{type(error).__name__}: {error}"
        ) from error
    if isinstance(answer, ModelError):
        raise answer
