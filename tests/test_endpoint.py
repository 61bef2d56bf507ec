"""The endpoint model: what it asks, what it reads in the answers of different servers, what it is made of."""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
import pickle
import threading
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from answering import ANSWER, STOP, chat, prompt
from mempo_agents.models.answers import Fault
from mempo_agents.models.base import Sampling
from mempo_agents.models.endpoint import Answer, Endpoint, open_endpoint, read_answer, stopped
from mempo_env.errors import ConfigError, KeywordError
from mempo_env.types import Call, Segment
from scripted import Asked, ok, serving

KEY = "sk-planted-0xC0FFEE"


def asked(request: bytes) -> tuple[str, dict[str, Any]]:
    head, _, body = request.partition(b"\r\n\r\n")
    return head.decode(), json.loads(body)


# --- What it asks ------------------------------------------------------------------------------------------


def test_a_chat_is_asked_with_messages_sampling_seed_and_stop() -> None:
    sampling = Sampling(temperature=0.7, top_p=0.9, max_tokens=64, seed=11)
    with serving(ok(chat())) as server:
        Endpoint(url=f"{server.url}/v1/", model="org/name", sampling=sampling).generate([prompt("é \ud800")])
    head, body = asked(server.requests[0])
    assert head.startswith("POST /v1/chat/completions HTTP/1.1\r\n")
    assert "authorization" not in head.lower()
    assert body == {
        "model": "org/name",
        "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "é ?"}],
        "max_tokens": 64,
        "temperature": 0.7,
        "top_p": 0.9,
        "seed": 11,
        "stop": ["</search>", "</answer>"],
        "stream": False,
    }


def test_plain_completions_are_asked_with_the_texts() -> None:
    answer = {"choices": [{"text": "so it is", "finish_reason": "length"}], "usage": {"prompt_tokens": 3}}
    with serving(ok(answer)) as server:
        (call,) = Endpoint(url=server.url, model="m", form="completions").generate([prompt(stop=("",))])
    head, body = asked(server.requests[0])
    assert head.startswith("POST /completions HTTP/1.1\r\n")
    assert body["prompt"] == "be brief\nhello"
    assert not {"messages", "stop"} & body.keys()
    assert call == Call(output="so it is", finish_reason="length", prompt_tokens=3)


def test_nothing_to_ask_asks_nothing() -> None:
    with serving(ok(chat())) as server:
        assert Endpoint(url=server.url, model="m").generate([]) == []
    assert server.connections == 0


def test_the_key_comes_from_the_environment_when_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-another")
    with serving(ok(chat())) as server:
        endpoint = Endpoint(url=server.url, model="m")
        monkeypatch.setenv("MEMPO_API_KEY", f" {KEY}\n")
        endpoint.generate([prompt()])
        Endpoint(url=server.url, model="m", key_env="OWN_KEY").generate([prompt()])
        monkeypatch.setenv("OWN_KEY", "sk-own")
        Endpoint(url=server.url, model="m", key_env="OWN_KEY").generate([prompt()])
    heads = [asked(request)[0].lower() for request in server.requests]
    assert f"\r\nauthorization: bearer {KEY.lower()}\r\n" in heads[0]
    assert "authorization" not in heads[1]
    assert "\r\nauthorization: bearer sk-own\r\n" in heads[2]


def test_a_batch_is_answered_in_order_and_never_more_at_a_time_than_said() -> None:
    """Each answer waits until four requests are there: with less at a time the barrier would break."""
    barrier, lock, now, most = threading.Barrier(4), threading.Lock(), itertools.count(), [0, 0]

    def echo(asked: Asked) -> bool:
        next(now)
        with lock:
            most[0] += 1
            most[1] = max(most)
        barrier.wait(timeout=30)
        with lock:
            most[0] -= 1
        return ok(chat(json.loads(asked.body)["messages"][1]["content"]))(asked)

    prompts = [prompt(f"number {i}") for i in range(24)]
    with serving(echo) as server:
        calls = Endpoint(url=server.url, model="m", concurrency=4, tries=1).generate(prompts)
    assert [call.output for call in calls if isinstance(call, Call)] == [f"number {i}" for i in range(24)]
    assert most[1] == 4
    assert server.connections <= 24


def test_it_works_where_an_event_loop_runs() -> None:
    """As in a notebook."""

    async def cell() -> Any:
        return Endpoint(url=server.url, model="m").generate([prompt()])

    with serving(ok(chat())) as server:
        (call,) = asyncio.run(cell())
    assert call.output == ANSWER


# --- What it reads -----------------------------------------------------------------------------------------


def call_of(answer: dict[str, Any], stop: tuple[str, ...] = STOP) -> Call:
    with serving(ok(answer)) as server:
        (call,) = Endpoint(url=server.url, model="m", tries=1).generate([prompt(stop=stop)])
    assert isinstance(call, Call), call
    return call


def test_segments_go_into_the_call() -> None:
    segments = (Segment("question", 0, "Question: Who?", 2),)
    asked = msgspec.structs.replace(prompt(), segments=segments)
    with serving(ok(chat())) as server:
        (call,) = Endpoint(url=server.url, model="m").generate([asked])
    assert isinstance(call, Call) and call.segments == segments


OPEN = "<think> so </think>\n<search> Aldo Verne "

STOPPED: dict[str, tuple[dict[str, Any], str]] = {
    # vLLM: stop_reason is the text or token that matched, null at the end of the model's turn.
    "vLLM, by a stop text": (chat(OPEN, stop_reason="</search>"), f"{OPEN}</search>"),
    "vLLM, by the model": (chat(OPEN, stop_reason=None), OPEN),
    # SGLang: matched_stop is the text that matched, or the id of the token.
    "SGLang, by a stop text": (chat(OPEN, matched_stop="</search>"), f"{OPEN}</search>"),
    "SGLang, by the model": (chat(OPEN, matched_stop=151645), OPEN),
    "a stop text of the server's own": (chat(OPEN, matched_stop="<|im_end|>"), OPEN),
    # llama.cpp tells nothing: what was opened last and is open still was being closed.
    "llama.cpp, by a stop text": (chat(OPEN), f"{OPEN}</search>"),
    "llama.cpp, nothing open": (chat("no tags at all"), "no tags at all"),
    "llama.cpp, another tag open": (chat("<mem> half"), "<mem> half"),
    "llama.cpp, two open": (chat("<search> no <answer> yes "), "<search> no <answer> yes </answer>"),
    # transformers serve returns the stop text; a server that ignores `stop` goes on after it.
    "kept by the server": (chat(f"{OPEN}</search>"), f"{OPEN}</search>"),
    "ignored by the server": (chat(f"{OPEN}</search> then <answer>", "length"), f"{OPEN}</search>"),
    "cut by length": (chat(OPEN, "length"), OPEN),
    "no reason": (chat(OPEN, None), OPEN),
}


@pytest.mark.parametrize("what", STOPPED)
def test_the_stop_text_that_matched_is_put_back(what: str) -> None:
    answer, output = STOPPED[what]
    call = call_of(answer)
    assert call.output == output
    told = answer["choices"][0]["finish_reason"]
    assert call.finish_reason == ("stop" if what == "ignored by the server" else told or "")


def test_a_tag_with_parameters_is_open_too() -> None:
    answer = chat('<memory_read k="4"> mayors ')
    assert call_of(answer, ("</memory_read>",)).output == '<memory_read k="4"> mayors </memory_read>'


@given(st.text("ab</x> ", max_size=30), st.lists(st.text("ab</x> ", max_size=5), max_size=3), st.booleans())
def test_what_a_server_cuts_and_tells_is_whole_again(text: str, stop: list[str], kept: bool) -> None:
    """A server that stops at the first stop text to be complete, with it or without, and says which."""
    ends = [(text.find(one) + len(one), one) for one in stop if one and one in text]
    end, matched = min(ends, key=lambda found: (found[0], -len(found[1])), default=(len(text), None))
    shown = text[: end if kept or matched is None else end - len(matched)]
    assert stopped(Answer(shown, "stop", matched, None, None, None), stop) == text[:end]


USAGE = {"prompt_tokens": 40, "completion_tokens": 7}


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ({"usage": USAGE | {"prompt_tokens_details": {"cached_tokens": 32}}}, (40, 7, 32)),
        ({"usage": USAGE | {"prompt_tokens_details": {"cached_tokens": 0}}}, (40, 7, 0)),
        ({"usage": USAGE | {"prompt_tokens_details": None}}, (40, 7, None)),
        ({"usage": USAGE, "timings": {"cache_n": 31, "prompt_n": 9}}, (40, 7, 31)),
        ({"usage": USAGE}, (40, 7, None)),
        ({"usage": {"prompt_tokens": "40", "completion_tokens": -1}}, (None, None, None)),
        ({"usage": {"prompt_tokens": True, "prompt_tokens_details": [1]}}, (None, None, None)),
        ({"usage": None}, (None, None, None)),
        ({}, (None, None, None)),
    ],
)
def test_tokens_are_those_that_the_server_tells(more: dict[str, Any], wanted: tuple[Any, ...]) -> None:
    call = call_of(chat(**more))
    assert (call.prompt_tokens, call.output_tokens, call.cached_tokens) == wanted


def test_thoughts_that_took_all_tokens_leave_an_empty_text_that_was_cut_off() -> None:
    """A reasoning model: its text is null where the length ended its thoughts."""
    call = call_of(chat(None, "length", usage=USAGE))
    assert (call.output, call.finish_reason, call.output_tokens) == ("", "length", 7)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(
                ["choices", "message", "content", "text", "finish_reason", "usage", "error", "code"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
choices = st.fixed_dictionaries(
    {"choices": st.lists(json_values, max_size=2)}, optional={"usage": json_values}
)


@settings(max_examples=300)
@given(st.binary() | (json_values | choices).map(lambda value: json.dumps(value).encode()))
def test_whatever_is_answered_is_an_answer_or_a_fault(body: bytes) -> None:
    try:
        answer = read_answer(body)
    except Fault:
        return
    assert isinstance(stopped(answer, STOP), str)


# --- What it is made of ------------------------------------------------------------------------------------


def test_the_fingerprint_tells_model_form_and_sampling_but_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Endpoint(url="http://127.0.0.1:8000/v1", model="m")
    same = Endpoint(url="https://elsewhere.example/v1", model="m", key_env="OTHER", concurrency=3, total=9.0)
    assert same.fingerprint == one.fingerprint
    assert "127.0.0.1" not in one.fingerprint and "m" in one.fingerprint
    others = [
        Endpoint(url=one.url, model="n"),
        Endpoint(url=one.url, model="m", form="completions"),
        Endpoint(url=one.url, model="m", sampling=Sampling(temperature=0.5)),
        Endpoint(url=one.url, model="m", sampling=Sampling(seed=1)),
        Endpoint(url=one.url, model="m", sampling=Sampling(max_tokens=7)),
    ]
    assert len({one.fingerprint, *(other.fingerprint for other in others)}) == 6


def test_it_copies_and_pickles_without_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMPO_API_KEY", KEY)
    endpoint = Endpoint(url="http://127.0.0.1:8000/v1", model="m")
    assert KEY.encode() not in pickle.dumps(endpoint)
    assert KEY not in repr(endpoint) + endpoint.fingerprint + endpoint.name
    assert pickle.loads(pickle.dumps(endpoint)) == copy.deepcopy(endpoint) == endpoint


def test_it_is_named_model_at_address() -> None:
    endpoint = open_endpoint("qwen@2:7b@http://127.0.0.1:8000/v1", concurrency=2)
    assert (endpoint.model, endpoint.url) == ("qwen@2:7b", "http://127.0.0.1:8000/v1")
    assert (endpoint.name, endpoint.concurrency) == ("qwen@2:7b", 2)
    for name in ("", "http://127.0.0.1:8000/v1", "@http://127.0.0.1:8000/v1"):
        with pytest.raises(ConfigError, match="wanted MODEL@URL"):
            open_endpoint(name)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:8000",
        "ftp://host",
        "http://",
        "http://host:port",
        "http://h:99999",
        "http://h:0",
        "http://[::1",
        "http://\u2100:1",
        "http://a..b",
        "http://" + "a" * 64,
        "http://h/\udce9",
    ],
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="url: wanted a model server's address"):
        Endpoint(url=url, model="m")


@pytest.mark.parametrize(
    "url", ["http://ann:sEcret@h/v1", "http://h/v1?api_key=sEcret", "http://h/v1#sEcret"]
)
def test_an_address_that_may_hold_a_secret_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(ConfigError, match="put the key into the environment") as caught:
        Endpoint(url=url, model="m")
    assert "sEcret" not in str(caught.value)


def test_a_key_that_can_not_be_sent_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMPO_API_KEY", "sEcret\r\nX-Evil: 1")
    with pytest.raises(ConfigError, match=r"^MEMPO_API_KEY: wanted a key of printable ASCII") as caught:
        Endpoint(url="http://h/v1", model="m")
    assert "sEcret" not in str(caught.value)


def test_settings_are_checked() -> None:
    with pytest.raises(KeywordError, match="unknown keyword 'modle': did you mean 'model'"):
        Endpoint(url="http://h/v1", modle="m")  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="unknown form 'chats': did you mean 'chat'"):
        Endpoint(url="http://h/v1", model="m", form="chats")  # type: ignore[arg-type]
    for name in ("connect", "read", "total", "pause"):
        with pytest.raises(ConfigError, match=f"{name}: wanted a number above 0"):
            Endpoint(url="http://h/v1", model="m", **{name: 0})
    for name in ("concurrency", "tries"):
        with pytest.raises(ConfigError, match=f"{name}: wanted a whole number from 1"):
            Endpoint(url="http://h/v1", model="m", **{name: 0})
