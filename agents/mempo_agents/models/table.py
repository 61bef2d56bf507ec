"""The models by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from mempo_agents.models.base import Model
from mempo_agents.models.scripted import ScriptedModel
from mempo_agents.own import own
from mempo_env.errors import lookup


def _endpoint(name: str) -> Model:
    from mempo_agents.models.endpoint import open_endpoint

    return open_endpoint(name)


def _huggingface(name: str) -> Model:
    from mempo_agents.models.huggingface import open_huggingface

    return open_huggingface(name)


def _sglang(name: str) -> Model:
    from mempo_agents.models.sglang import open_sglang

    return open_sglang(name)


MODELS: dict[str, Callable[[str], Model]] = {
    "scripted": lambda _: ScriptedModel(),
    "endpoint": _endpoint,
    "huggingface": _huggingface,
    "sglang": _sglang,
}
"""Name: what makes the model, from what stands after the name and a colon ("" if nothing does)."""


def make_model(name: str) -> Model:
    """Make a model by name; ConfigError with the nearest name if there is none.

    Args:
        name: A name in `MODELS`, with a colon and what it is made of where it needs that; or "module:thing"
            for one of your own, where the thing is a model, or a class or function that makes one without
            arguments.
    """
    kind, colon, rest = name.partition(":")
    if kind in MODELS or not colon:
        return lookup(MODELS, kind, "model")(rest)
    return cast(Model, own(name, "model", ("name", "fingerprint", "generate")))
