"""What servers do to the innocent: refusals of one prompt, numbers, compression, echoes, keys, proxies."""

from __future__ import annotations

import gzip
import json
import random
import socket
import subprocess
import sys
import textwrap
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from answering import ANSWER, agent_of, chat, prompt, told, unless
from mempo_agents.models.base import ModelError, ModelOverflow
from mempo_agents.models.endpoint import Endpoint, read_answer
from mempo_agents.rollout import episodes
from mempo_env.errors import ConfigError
from mempo_env.types import Call, StopReason
from scripted import Asked, Behaviour, ok, serving, status
from small import QUESTIONS, TitleRetriever

PROXIES = [f"{kind}_PROXY" for kind in ("HTTP", "HTTPS", "ALL", "NO")]


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


def endpoint(url: str, **changed: Any) -> Endpoint:
    return Endpoint(url=url, model="m", **{"tries": 2, "pause": 0.001, "read": 5.0, **changed})


def asked(behaviour: Behaviour, text: str = "hello", **changed: Any) -> Call | ModelError:
    with serving(behaviour) as server:
        (answer,) = endpoint(server.url, **changed).generate([prompt(text)])
    return answer


def body(answer: Any) -> bytes:
    return json.dumps(answer).encode()


# --- One prompt and the others -----------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "guilty"), [(403, "number 0"), (403, "number 3"), (404, "number 3")])
def test_a_prompt_that_is_refused_for_itself_takes_no_other_with_it(code: int, guilty: str) -> None:
    flagged = status(code, body=body({"error": {"message": "your input was flagged"}}))
    with serving(unless(guilty, flagged)) as server:
        found = endpoint(server.url, concurrency=1).generate([prompt(f"number {i}") for i in range(8)])
    failed = [i for i, one in enumerate(found) if isinstance(one, ModelError)]
    assert failed == [int(guilty[-1])] and "flagged" in str(found[failed[0]])
    assert len(server.requests) == 8


@pytest.mark.parametrize("code", [401, 404])
def test_a_verdict_for_all_is_told_to_all_when_none_was_answered(code: int) -> None:
    with serving(status(code)) as server:
        found = endpoint(server.url, concurrency=1).generate([prompt()] * 8)
    assert all(isinstance(one, ModelError) for one in found) and len(server.requests) == 1


DYING = """
    import os, sys; sys.path.insert(0, {tests!r})
    from answering import chat
    from scripted import ok, serving
    def last(asked):
        ok(chat())(asked)
        os._exit(0)
    with serving(ok(chat()), ok(chat()), last) as server:
        print(server.port, flush=True)
        server.stopped.wait()
"""


def test_a_server_that_dies_between_answers_is_not_tried_for_each_of_the_others() -> None:
    code = textwrap.dedent(DYING.format(tests=str(Path(__file__).parent)))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{int(server.stdout.readline())}"
        found = endpoint(url, concurrency=1).generate([prompt()] * 50)
    assert [isinstance(one, Call) for one in found] == [True] * 3 + [False] * 47
    assert sum("for another one of the same batch" in str(one) for one in found) == 46


# --- Numbers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("digits", [10, 20, 300, 400, 5_000])
def test_a_count_of_many_digits_is_no_count_and_ends_no_run(digits: int) -> None:
    """Beyond 2**31 nothing is counted; the square of 10**300 is no float, and 5,000 digits are no int."""
    usage = b'{"prompt_tokens": 9%s, "completion_tokens": 9%s}' % ((b"0" * digits,) * 2)
    answer = body(chat(usage="here")).replace(b'"here"', usage)
    with serving(status(200, body=answer)) as server:
        agent = agent_of(endpoint(server.url))
        played = episodes(agent, ["q0"], env_kwargs={"dataset": QUESTIONS, "retriever": TitleRetriever()})
        ((_, episode),) = played
    assert episode.stop_reason is StopReason.ANSWERED
    (call,) = episode.rounds[0].calls
    assert (call.prompt_tokens, call.output_tokens) == (None, None)
    assert 0 < episode.tokens.total < 10_000


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ({"timings": {"cache_n": 900}}, (None, None)),
        ({"usage": {"prompt_tokens": 40, "prompt_tokens_details": {"cached_tokens": 41}}}, (40, None)),
        ({"usage": {"prompt_tokens": 40, "prompt_tokens_details": {"cached_tokens": 40}}}, (40, 40)),
        ({"usage": {"prompt_tokens": 2**31, "prompt_tokens_details": {"cached_tokens": 1}}}, (None, None)),
    ],
)
def test_no_more_of_a_prompt_is_cached_than_the_server_says_it_has(more: Any, wanted: Any) -> None:
    """A prompt whose length is not told is counted in words, of which the cached tokens are no part."""
    call = asked(ok(chat(**more)))
    assert isinstance(call, Call) and (call.prompt_tokens, call.cached_tokens) == wanted


# --- Bytes -------------------------------------------------------------------------------------------------


def test_a_bomb_is_not_decompressed() -> None:
    """64 MiB of zeros, compressed twice into a few hundred bytes."""
    bomb = gzip.compress(gzip.compress(bytes(64 * 2**20)))
    assert len(bomb) < 2_000
    with serving(status(200, "Content-Encoding: gzip, gzip\r\n", bomb)) as server:
        model = endpoint(server.url)
        tracemalloc.start()
        (error,) = model.generate([prompt()])
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert type(error) is ModelError and "which was not asked for" in str(error)
    assert peak < 16 * 2**20
    assert b"accept-encoding: identity\r\n" in server.requests[0].lower()


@pytest.mark.parametrize("coding", ["gzip", "br", "zstd", "deflate", "X-Own"])
def test_what_was_not_asked_for_is_not_decoded(coding: str) -> None:
    answer = asked(status(200, f"Content-Encoding: {coding}\r\n", body(chat())))
    assert type(answer) is ModelError and "compressed, which was not asked for" in str(answer)


def test_a_refusal_that_is_compressed_is_one_of_its_status() -> None:
    with serving(status(401, "Content-Encoding: gzip\r\n", gzip.compress(b"no"))) as server:
        (error,) = endpoint(server.url).generate([prompt()])
    assert type(error) is ModelError and "(status 401)" in str(error) and len(server.requests) == 1


def test_an_answer_that_says_that_it_is_not_compressed_is_read() -> None:
    call = asked(status(200, "Content-Encoding: Identity\r\n", body(chat())))
    assert isinstance(call, Call) and call.output == ANSWER


# --- Refusals that quote -----------------------------------------------------------------------------------

LONG = "passage: the maximum context length of BERT is 512, the model's context length"
"""A document that says what servers say of prompts that are too long."""

ECHOES: dict[str, tuple[int, Callable[[str], Any]]] = {
    "beside the message": (400, lambda said: {"error": {"message": "bad seed", "request": said}}),
    "input of FastAPI": (422, lambda said: {"detail": [{"loc": ["body"], "msg": "extra", "input": said}]}),
    "no message": (400, lambda said: {"request": said}),
    "behind what is said": (400, lambda said: {"message": "a seed is no text " * 20 + said}),
    "rate limit": (429, lambda said: {"error": {"message": f"slow down; {said}"}}),
    "overloaded": (503, lambda said: {"detail": said}),
    "no such path": (404, lambda said: {"detail": said}),
    "moderation": (403, lambda said: {"message": said}),
}


@pytest.mark.parametrize("how", ECHOES)
def test_a_document_that_is_echoed_makes_no_overflow(how: str) -> None:
    code, error = ECHOES[how]

    def echo(request: Asked) -> bool:
        return status(code, body=body(error(told(request))))(request)

    assert type(asked(echo, LONG)) is ModelError


def test_a_passing_error_that_echoes_a_document_passes() -> None:
    with serving(status(503, body=body({"detail": LONG})), ok(chat())) as server:
        (call,) = endpoint(server.url).generate([prompt(LONG)])
    assert isinstance(call, Call) and len(server.requests) == 2


@pytest.mark.parametrize(
    ("code", "error"),
    [
        # github.com/vllm-project/vllm/issues/12165
        (
            400,
            {"message": "The prompt (total length 25938) is too long to fit into the model (context length"},
        ),
        (413, {"detail": "Input length (9 tokens) exceeds the maximum allowed length (8 tokens)."}),
        (422, {"error": "This model's maximum context length is 8 tokens.", "error_type": "validation"}),
        (400, {"statusCode": 400, "error": "Bad Request", "message": "maximum context length is 8 tokens"}),
        (400, "the request exceeds the available context size"),
    ],
)
def test_the_own_words_of_an_error_make_an_overflow(code: int, error: Any) -> None:
    assert type(asked(status(code, body=body(error)))) is ModelOverflow


# --- Keys --------------------------------------------------------------------------------------------------

SPELLINGS: dict[str, Callable[[str], str]] = {
    "plain": lambda c: c,
    "slashed": lambda c: f"\\{c}",
    "slashed twice": lambda c: f"\\\\\\{c}",
    "escaped": lambda c: f"\\u{ord(c):04X}",
    "escaped in small letters": lambda c: f"\\u{ord(c):04x}",
    "escaped twice": lambda c: f"\\\\u{ord(c):04x}",
    "of an address": lambda c: f"%{ord(c):02X}",
    "HTML": escape,
    "HTML by number": lambda c: f"&#{ord(c)};",
    "HTML by hexadecimal number": lambda c: f"&#x{ord(c):x};",
}
KEY = 'sk-Pl"an\\t/ed+12=<3>&'


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_key_that_comes_back_is_masked_however_it_is_spelled(
    spelling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMPO_API_KEY", KEY)
    spelled = "".join(map(SPELLINGS[spelling], KEY))
    refused = asked(status(401, body=f'{{"errors": [{{"msg": "bad key {spelled}!"}}]}}'.encode()))
    assert "bad key [key]!" in str(refused)


@pytest.mark.parametrize("ascii_only", [True, False])
def test_a_key_that_a_model_writes_is_masked_in_its_text(
    ascii_only: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway that shows the headers that it got in the answer itself."""
    monkeypatch.setenv("MEMPO_API_KEY", KEY)
    answer = chat(f"é Bearer {KEY} <answer>yes</answer>", usage={KEY: KEY})
    sent = json.dumps(answer, ensure_ascii=ascii_only).replace("/", "\\/").encode()
    call = asked(status(200, body=sent))
    assert isinstance(call, Call) and call.output == "é Bearer [key] <answer>yes</answer>"


letters = st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="\\")
keys = st.text(letters, min_size=8, max_size=24)  # a backslash before "u0041" may be read in two ways


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(keys, st.randoms(use_true_random=False))
def test_no_key_comes_through_in_any_mixture_of_spellings(
    monkeypatch: pytest.MonkeyPatch, key: str, chance: random.Random
) -> None:
    monkeypatch.setenv("MEMPO_API_KEY", key)
    spelled = "".join(chance.choice(list(SPELLINGS.values()))(c) for c in key)
    error = asked(status(400, body=f"<p>{spelled}</p>".encode()), tries=1)
    assert "<p>[key]</p>" in str(error)


def test_a_stand_in_for_a_key_is_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Local servers take any key, such as EMPTY, which a model may well write."""
    monkeypatch.setenv("MEMPO_API_KEY", "EMPTY")
    call = asked(ok(chat("<answer>EMPTY</answer>")))
    assert isinstance(call, Call) and call.output == "<answer>EMPTY</answer>"


# --- Side fields -------------------------------------------------------------------------------------------

SIDES: dict[str, bytes] = {
    "usage is a word": body(chat(usage="lots")),
    "usage is a list": body(chat(usage=[1])),
    "timings are a number": body(chat(timings=5)),
    "a number as the reason": body(chat(reason=5)),  # type: ignore[arg-type]
    "the reason is an object": body(chat(reason={"type": "stop"})),  # type: ignore[arg-type]
    "a text beside the message": body(chat(text=5)),
    "a model without a name": body(chat() | {"model": 5}),
    "a byte order mark": b"\xef\xbb\xbf" + body(chat()),
    "not a number": body(chat(usage={"prompt_tokens": float("nan")})),
    "no number": body(chat(timings={"cache_n": float("inf")})),
    "half a character elsewhere": body(chat() | {"id": "\ud800"}),
    "a byte that is no UTF-8": body(chat() | {"id": "here"}).replace(b"here", b"\xff"),
}


@pytest.mark.parametrize("side", SIDES)
def test_a_text_is_not_thrown_away_for_what_stands_beside_it(side: str) -> None:
    answer = read_answer(SIDES[side])
    assert answer.text == ANSWER
    assert (answer.prompt_tokens, answer.output_tokens, answer.cached_tokens) == (None, None, None)


def test_half_a_character_in_a_text_is_a_question_mark() -> None:
    call = asked(status(200, body=body(chat("<answer>\ud83d yes</answer>"))))
    assert isinstance(call, Call) and call.output == "<answer>? yes</answer>"


# --- Names -------------------------------------------------------------------------------------------------


def test_a_model_of_another_name_is_told() -> None:
    with pytest.warns(UserWarning, match="asked for the model 'm', the server answers as 'other-7b'"):
        asked(ok(chat() | {"model": "other-7b"}))


@pytest.mark.parametrize("more", [{"model": "m"}, {}, {"model": None}, {"model": ""}])
def test_a_model_of_the_name_or_of_none_is_not(more: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert isinstance(asked(ok(chat() | more)), Call)


# --- Proxies -----------------------------------------------------------------------------------------------


@pytest.fixture
def dead() -> Iterator[str]:
    """The address of a proxy that is not there."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    yield f"127.0.0.1:{port}"


BAD_PROXIES = [
    "ftp://ann:sEcret@h:1",
    "http://ann:sEcret@[::1",
    *([] if find_spec("socksio") else ["socks5://h:1"]),
]


@pytest.mark.parametrize("proxy", BAD_PROXIES)
@pytest.mark.parametrize("name", ["HTTP_PROXY", "ALL_PROXY", "https_proxy"])
def test_a_proxy_that_can_not_be_used_is_refused_when_a_server_is_opened(
    proxy: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, proxy)
    with pytest.raises(
        ConfigError, match=r"ALL_PROXY, NO_PROXY: wanted proxies as http://HOST:PORT"
    ) as caught:
        Endpoint(url="http://somewhere.example/v1", model="m")
    assert "sEcret" not in str(caught.value) and caught.value.__cause__ is None


@pytest.mark.parametrize("proxy", [*BAD_PROXIES, "dead"])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.2"])
def test_a_server_on_this_machine_is_asked_without_a_proxy(
    proxy: str, host: str, dead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALL_PROXY", f"http://{dead}" if proxy == "dead" else proxy)
    with serving(ok(chat())) as server:
        listening = host != "127.0.0.2"  # which nobody listens at
        (answer,) = endpoint(f"http://{host}:{server.port}").generate([prompt()])
    assert isinstance(answer, Call) is listening
    assert "PROXY" not in str(answer)


def test_a_proxy_on_the_way_is_named(dead: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://ann:sEcret@{dead}")
    monkeypatch.setenv("ALL_PROXY", f"http://ann:sEcret@{dead}")
    (error,) = endpoint("http://nowhere.invalid/v1").generate([prompt()])
    assert "no connection" in str(error) and str(error).endswith(", and the proxy in HTTP_PROXY")
    assert "sEcret" not in str(error)
    monkeypatch.delenv("HTTP_PROXY")
    (error,) = endpoint("http://nowhere.invalid/v1").generate([prompt()])
    assert str(error).endswith(", and the proxy in ALL_PROXY")
    monkeypatch.setenv("NO_PROXY", "nowhere.invalid")
    (error,) = endpoint("http://nowhere.invalid/v1").generate([prompt()])
    assert "there is no such host" in str(error) and "PROXY" not in str(error)


def test_a_proxy_is_used_for_a_server_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(ok(chat())) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        (call,) = endpoint("http://nowhere.invalid/v1").generate([prompt()])
    assert isinstance(call, Call)
    assert proxy.requests[0].startswith(b"POST http://nowhere.invalid/v1/chat/completions HTTP/1.1\r\n")
