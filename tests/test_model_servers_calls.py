"""Each call has its own connection; short keys are masked where a server tells of failures."""

from __future__ import annotations

import json

import pytest

from answering import chat, prompt
from mempo_agents.models.base import ModelError
from mempo_agents.models.endpoint import Endpoint
from mempo_env.types import Call
from scripted import Asked, ok, serving, status


@pytest.mark.parametrize("concurrency", [1, 4])
def test_what_a_server_sends_too_much_is_no_answer_to_the_next_prompt(concurrency: int) -> None:
    """On a connection that stayed open the second answer was taken for that of the next prompt."""
    late = "<answer>of nobody</answer>"

    def twice(asked: Asked) -> bool:
        text = json.loads(asked.body)["messages"][-1]["content"]
        bodies = (json.dumps(chat(one)).encode() for one in (f"<answer>{text}</answer>", late))
        heads = (b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body) for body in bodies)
        asked.connection.sendall(b"".join(heads))
        return True

    with serving(twice) as server:
        model = Endpoint(model="m", url=f"{server.url}/v1", concurrency=concurrency, tries=1)
        found = model.generate([prompt(f"ask {i}") for i in range(8)])
    assert [call.output for call in found if isinstance(call, Call)] == [
        f"<answer>ask {i}</answer>" for i in range(8)
    ]
    assert server.connections == 8


@pytest.mark.parametrize("key", ["abc1", "hunter2", "EMPTY"])
@pytest.mark.parametrize("spelled", [lambda key: key, lambda key: "".join(f"\\u{ord(c):04x}" for c in key)])
def test_a_short_key_is_masked_in_what_is_told_of_a_failure(
    key: str, spelled: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMPO_API_KEY", key)
    body = f'{{"error": {{"message": "no such key {spelled(key)}!"}}}}'.encode()  # type: ignore[operator]
    with serving(status(401, body=body)) as server:
        model = Endpoint(model="m", url=f"{server.url}/v1", tries=1)
        (error,) = model.generate([prompt()])
    assert isinstance(error, ModelError) and key not in str(error) and "no such key [key]!" in str(error)


def test_a_short_key_is_a_word_like_others_in_the_text_of_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMPO_API_KEY", "none")
    with serving(ok(chat("<answer>none</answer>"))) as server:
        (call,) = Endpoint(model="m", url=f"{server.url}/v1", tries=1).generate([prompt()])
    assert isinstance(call, Call) and call.output == "<answer>none</answer>"


def test_what_is_shorter_than_any_key_leaves_messages_legible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMPO_API_KEY", "no")
    with serving(status(404, body=b'{"error": {"message": "no such model"}}')) as server:
        (error,) = Endpoint(model="m", url=f"{server.url}/v1", tries=1).generate([prompt()])
    assert "no such model" in str(error)
