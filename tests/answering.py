"""Answers of OpenAI-compatible servers, for scripted servers; and an agent that asks one once a round."""

from __future__ import annotations

import json
from typing import Any

from mempo_agents.base import Context
from mempo_agents.models.base import Message, Model, Prompt
from mempo_agents.rounds import ModelAgent, Round, as_shown
from scripted import Asked, Behaviour, ok

STOP = ("</search>", "</answer>")
ANSWER = "<answer>Ines Calder</answer>"


def prompt(text: str = "hello", stop: tuple[str, ...] = STOP) -> Prompt:
    return Prompt((Message("system", "be brief"), Message("user", text)), (), stop)


def chat(content: str | None = ANSWER, reason: str | None = "stop", **more: Any) -> dict[str, Any]:
    """What a server answers to /chat/completions; `more` are members of the choice, or of the whole."""
    outer = {key: more.pop(key) for key in ("usage", "timings") if key in more}
    choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": reason}
    return {"object": "chat.completion", "choices": [choice | more], **outer}


def told(asked: Asked) -> str:
    """All that the messages of a request say."""
    return "\n".join(message["content"] for message in json.loads(asked.body)["messages"])


def unless(word: str, fault: Behaviour, answer: Behaviour = ok(chat())) -> Behaviour:  # noqa: B008
    """A fault where the messages hold a word, else an answer."""
    return lambda asked: (fault if word in told(asked) else answer)(asked)


def play(context: Context) -> Round:
    text = yield as_shown(context, STOP)
    return text


def agent_of(model: Model) -> ModelAgent:
    return ModelAgent(name="asking", play=play, model=model, env_kwargs={})
