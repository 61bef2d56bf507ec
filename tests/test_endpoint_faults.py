"""The endpoint model against servers that do everything wrong over real sockets: typed ends, and soon."""

from __future__ import annotations

import itertools
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from answering import ANSWER, agent_of, chat, prompt, told, unless
from mempo_agents.models.base import ModelError, ModelOverflow, ModelTimeout, Prompt
from mempo_agents.models.endpoint import Endpoint
from mempo_agents.rollout import episodes
from mempo_benchmarks.costs import Price
from mempo_benchmarks.results import FullRow, read_plan, read_rows
from mempo_benchmarks.summary import compare
from mempo_env.cli import main
from mempo_env.types import Call, Episode, StopReason
from scripted import Asked, Behaviour, drip, hang, ok, raw, serving, status
from small import QUESTIONS, TitleRetriever

GOOD = json.dumps(chat()).encode()
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: "
STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNK = b'data: {"choices": [{"delta": {"content": "<ans"}}]}\n\n'
KEY = "sk-planted-0xC0FFEE"


PATIENT = {"read": 30.0, "total": 60.0}


def endpoint(url: str, **settings: Any) -> Endpoint:
    impatient = {"connect": 1.0, "read": 0.3, "total": 5.0, "tries": 3, "pause": 0.001}
    return Endpoint(url=url, model="m", **{**impatient, **settings})


def ask(model: Endpoint, prompts: Sequence[Prompt] = (prompt(),)) -> Any:
    """Generate in a thread of its own, so that a client that hangs fails its test, not the whole run."""
    threads = ThreadPoolExecutor(1)
    try:
        return threads.submit(model.generate, prompts).result(timeout=60)
    finally:
        threads.shutdown(wait=False)


def refusing(answered: int, message: str, **more: Any) -> Behaviour:
    return status(answered, body=json.dumps({"error": {"message": message, **more}}).encode())


FAULTS: dict[str, tuple[Behaviour, type[ModelError], str, int]] = {
    "hangs before the answer": (hang, ModelTimeout, "no answer in time", 3),
    "drips its head": (drip(b"HTTP/1.1 200 OK\r\nX: "), ModelTimeout, "no answer in time", 1),
    "drips its body": (drip(HEAD + b"99999\r\n\r\n", b" "), ModelTimeout, "no answer in time", 1),
    "closes at once": (raw(b""), ModelError, "connection closed before the answer was whole", 3),
    "dies within the body": (
        raw(HEAD + b"%d\r\n\r\n" % len(GOOD) + GOOD[:40]),
        ModelError,
        "connection closed before the answer was whole",
        3,
    ),
    "a stream cut in the middle": (
        raw(STREAM + b"%x\r\n" % len(CHUNK) + CHUNK + b"\r\n" + b"40\r\ndata: {"),
        ModelError,
        "connection closed before the answer was whole",
        3,
    ),
    "a stream where none was asked for": (
        raw(STREAM + b"%x\r\n" % len(CHUNK) + CHUNK + b"\r\n0\r\n\r\n"),
        ModelError,
        "not what was asked for: JSON is malformed",
        3,
    ),
    "is no HTTP": (raw(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"), ModelError, "an answer that is not HTTP", 3),
    "is not the gzip that it says": (
        raw(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nabcd"),
        ModelError,
        "an answer that is compressed, which was not asked for",
        3,
    ),
    "truncated JSON": (status(200, body=GOOD[:40]), ModelError, "Input data was truncated", 3),
    "garbage": (status(200, body=b"\xff\x00<html>"), ModelError, "not what was asked for", 3),
    "nested too deep": (status(200, body=b'{"usage":' + b"[" * 200_000), ModelError, "not what was", 3),
    "nothing": (status(200, body=b""), ModelError, "Input data was truncated", 3),
    "empty choices": (ok({"choices": []}), ModelError, "an answer without choices", 3),
    "no choices": (ok({"object": "chat.completion"}), ModelError, "an answer without choices", 3),
    "content null": (ok(chat(None)), ModelError, "an answer without text (finish_reason stop)", 1),
    "a tool call": (ok(chat(None, "tool_calls")), ModelError, "without text (finish_reason tool_calls)", 1),
    "broken off": (ok(chat("half", "abort")), ModelError, "the server broke off (abort)", 3),
    "status 500": (status(500), ModelError, "status 500", 3),
    "status 502 of a proxy": (
        status(502, body=b"<html>\nBad Gateway"),
        ModelError,
        "status 502: <html> Bad Gateway",
        3,
    ),
    "status 429": (status(429, "Retry-After: 0\r\n"), ModelError, "status 429", 3),
    "status 503, loading": (refusing(503, "Loading model"), ModelError, "status 503: Loading model", 3),
    "an error under status 200": (
        ok({"error": {"code": 500, "message": "out of memory"}}),
        ModelError,
        "status 500: out of memory",
        3,
    ),
    "status 301": (status(301, "Location: http://127.0.0.1:9/v1\r\n"), ModelError, "status 301", 1),
    "a wrong key": (refusing(401, "Unauthorized"), ModelError, "status 401: Unauthorized", 1),
    "a wrong model name, 404": (
        refusing(404, "The model `m` does not exist.", type="NotFoundError", code=404),
        ModelError,
        "status 404: The model `m` does not exist.",
        1,
    ),
    "a wrong model name, 400": (
        refusing(400, "model 'm' not found"),
        ModelError,
        "status 400: model 'm' not found",
        1,
    ),
    "a wrong path": (status(404, body=b'{"detail":"Not Found"}'), ModelError, "status 404: Not Found", 1),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_server_that_stays_faulty_ends_in_a_typed_error(fault: str) -> None:
    behaviour, kind, said, tries = FAULTS[fault]
    with serving(behaviour) as server:
        impatient = {"read": 0.3, "total": 1.0 if tries == 1 else 5.0}  # a busy machine is no fault of others
        (error,) = ask(endpoint(server.url, **impatient if kind is ModelTimeout else PATIENT))
    assert type(error) is kind and said in str(error), error
    assert "\n" not in str(error)
    assert len(server.requests) == tries
    assert f"http://127.0.0.1:{server.port}" in str(error)


@pytest.mark.parametrize("fault", [name for name, (*_, tries) in FAULTS.items() if tries == 3])
def test_a_server_that_recovers_is_asked_again(fault: str) -> None:
    with serving(FAULTS[fault][0], ok(chat())) as server:
        (call,) = ask(endpoint(server.url, **{} if FAULTS[fault][1] is ModelTimeout else PATIENT))
    assert isinstance(call, Call) and call.output == ANSWER
    assert len(server.requests) == 2


OVERFLOWS = {
    # github.com/vllm-project/vllm/issues/20409, 33418; github.com/thu-coai/Glyph/issues/9; vllm issues/4667
    "vLLM": (
        400,
        {
            "object": "error",
            "message": "This model's maximum context length is 16384 tokens. However, you requested 19591 "
            "tokens (9591 in the messages, 10000 in the completion). Please reduce the length of the "
            "messages or completion.",
            "type": "BadRequestError",
            "param": None,
            "code": 400,
        },
    ),
    "vLLM, the prompt alone": (
        400,
        {
            "error": {
                "message": "The decoder prompt (length 163840) is longer than the maximum model length of "
                "131072. Make sure that `max_model_len` is no smaller than the number of text tokens.",
                "type": "BadRequestError",
                "param": None,
                "code": 400,
            }
        },
    ),
    "vLLM, before 2025": (
        400,
        {"object": "error", "message": "max_tokens must be at least 1, got -186.", "code": 400},
    ),
    # github.com/QwenLM/Qwen3/issues/1321; its tokenizer_manager.py; github.com/sgl-project/sglang/issues/4048
    "SGLang": (
        400,
        {
            "object": "error",
            "message": "The input (61709 tokens) is longer than the model's context length (40960 tokens).",
            "type": "BadRequestError",
            "param": None,
            "code": 400,
        },
    ),
    "SGLang, with the output": (
        400,
        {
            "object": "error",
            "message": "Requested token count exceeds the model's maximum context length of 64000 tokens. "
            "You requested a total of 71897 tokens: 7897 tokens from the input messages and 64000 tokens "
            "for the completion.",
            "type": "BadRequestError",
            "code": 400,
        },
    ),
    "SGLang, by memory": (
        400,
        {"message": "Input length (160062 tokens) exceeds the maximum allowed length (59862 tokens)."},
    ),
    # github.com/ggml-org/llama.cpp/pull/15780, and what it says since; oobabooga/textgen/issues/7257
    "llama.cpp": (
        400,
        {
            "error": {
                "code": 400,
                "message": "request (5274 tokens) exceeds the available context size (4096 tokens), try "
                "increasing it",
                "type": "exceed_context_size_error",
                "n_prompt_tokens": 5274,
                "n_ctx": 4096,
            }
        },
    ),
    "llama.cpp, 2025": (
        500,
        {
            "error": {
                "code": 500,
                "message": "the request exceeds the available context size. try increasing the context size "
                "or enable context shift",
                "type": "exceed_context_size_error",
            }
        },
    ),
    "llama.cpp, under status 200": (
        200,
        {"error": {"code": 400, "message": "...", "type": "exceed_context_size_error", "n_ctx": 8192}},
    ),
    # github.com/fedora-copr/logdetective-website/pull/193
    "llama-cpp-python": (
        500,
        {"error": {"message": "Requested tokens (2285) exceed context window of 2048", "code": None}},
    ),
    "OpenAI": (400, {"error": {"message": "Too much.", "code": "context_length_exceeded"}}),
}


@pytest.mark.parametrize("server", OVERFLOWS)
def test_a_prompt_beyond_the_window_is_an_overflow_and_not_asked_again(server: str) -> None:
    code, body = OVERFLOWS[server]
    with serving(status(code, body=json.dumps(body).encode())) as serve:
        (error,) = ask(endpoint(serve.url))
    assert type(error) is ModelOverflow and error.reason == "context_overflow"
    assert len(serve.requests) == 1


@pytest.mark.parametrize(
    "message",
    ["Rate limit reached: 60000 tokens per min", "max_tokens must be at least 1, got 0", "temperature"],
)
def test_other_refusals_are_no_overflow(message: str) -> None:
    with serving(refusing(400, message)) as server:
        (error,) = ask(endpoint(server.url))
    assert type(error) is ModelError


# --- Waiting -----------------------------------------------------------------------------------------------


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    seconds: list[float] = []

    async def sleep(pause: float) -> None:
        seconds.append(pause)

    monkeypatch.setattr("mempo_agents.models.server.anyio.sleep", sleep)
    return seconds


def test_pauses_double_with_jitter(waits: list[float]) -> None:
    with serving(status(500)) as server:
        ask(endpoint(server.url, tries=5, pause=0.1, total=60.0))
    assert all(
        0.5 * base <= wait <= 1.5 * base for wait, base in zip(waits, (0.1, 0.2, 0.4, 0.8), strict=True)
    )


@pytest.mark.parametrize("code", [429, 503])
def test_retry_after_is_obeyed_within_the_total(waits: list[float], code: int) -> None:
    with serving(status(code, "Retry-After: 7\r\n"), ok(chat())) as server:
        (call,) = ask(endpoint(server.url, total=60.0))
    assert waits == [7.0] and isinstance(call, Call)


@pytest.mark.parametrize("header", ["3600", "9" * 400])
def test_retry_after_beyond_the_total_gives_up_at_once(waits: list[float], header: str) -> None:
    with serving(status(429, f"Retry-After: {header}\r\n")) as server:
        (error,) = ask(endpoint(server.url))
    assert waits == [] and len(server.requests) == 1
    assert type(error) is ModelError and "in 1 of 3 tries (status 429" in str(error)


# --- Faults of the whole server ----------------------------------------------------------------------------


def refused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as held:
        return int(held.getsockname()[1])


def test_a_server_that_is_down_is_not_tried_for_each_of_a_thousand_prompts() -> None:
    errors = ask(endpoint(f"http://127.0.0.1:{refused_port()}/v1", concurrency=4), [prompt()] * 1000)
    assert {type(error) for error in errors} == {ModelError}
    tried = [error for error in errors if "in 3 of 3 tries (no connection: nothing listens" in str(error)]
    spared = [error for error in errors if "for another one of the same batch (no connection" in str(error)]
    assert 1 <= len(tried) <= 4
    assert len(spared) == 996


def test_an_unknown_model_is_not_asked_for_again_by_those_that_wait() -> None:
    with serving(FAULTS["a wrong model name, 404"][0]) as server:
        errors = ask(endpoint(server.url, concurrency=4), [prompt()] * 1000)
    assert len(server.requests) <= 4
    assert all("The model `m` does not exist." in str(error) for error in errors)


def test_a_server_that_is_back_is_asked_again_by_the_next_batch() -> None:
    with serving(FAULTS["a wrong model name, 404"][0], ok(chat())) as server:
        model = endpoint(server.url, concurrency=1)
        assert len([e for e in ask(model, [prompt()] * 3) if isinstance(e, ModelError)]) == 3
        assert [call.output for call in ask(model, [prompt()] * 3)] == [ANSWER] * 3


def test_a_host_that_does_not_exist_is_a_model_error() -> None:
    (error,) = ask(endpoint("http://nowhere.invalid/v1"))
    assert type(error) is ModelError and "there is no such host" in str(error)


def test_a_server_that_accepts_and_never_reads_is_a_timeout() -> None:
    """The backlog accepts connections of a process that has stopped."""
    with socket.create_server(("127.0.0.1", 0)) as stuck:
        (error,) = ask(endpoint(f"http://127.0.0.1:{stuck.getsockname()[1]}"))
    assert type(error) is ModelTimeout


def test_an_answer_without_end_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mempo_agents.models.server.MAX_BODY", 1_000)
    endless = drip(HEAD + b"99999999\r\n\r\n", b"0" * 2_000)
    with serving(endless) as server:
        (error,) = ask(endpoint(server.url))
    assert type(error) is ModelError and "an answer of more than" in str(error)


HANGING = """
    import sys; sys.path.insert(0, {tests!r})
    from scripted import hang, serving
    def told(asked):
        print("asked", flush=True)
        return hang(asked)
    with serving(told) as server:
        print(server.port, flush=True)
        server.stopped.wait()
"""


def test_a_server_killed_while_it_answers_is_a_model_error() -> None:
    code = textwrap.dedent(HANGING.format(tests=str(Path(__file__).parent)))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        with ThreadPoolExecutor(1) as threads:
            model = endpoint(f"http://127.0.0.1:{port}", read=60.0, total=120.0)
            asked = threads.submit(model.generate, [prompt()])
            assert server.stdout.readline() == "asked\n"
            server.send_signal(signal.SIGKILL)
            (error,) = asked.result(timeout=60)
    assert type(error) is ModelError and "in 3 of 3 tries (no connection" in str(error)


def test_ctrl_c_is_not_held_up_by_a_server_that_hangs() -> None:
    code = """
        from mempo_agents.models.base import Message, Prompt
        from mempo_agents.models.endpoint import Endpoint
        model = Endpoint(url="http://127.0.0.1:{port}", model="m", read=3600.0, total=3600.0)
        model.generate([Prompt((Message("user", "x"),))] * 4)
    """

    def ready(asked: Asked) -> bool:
        os.write(write, b"x")
        return hang(asked)

    read, write = os.pipe()
    with serving(ready) as server:
        client = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code.format(port=server.port))],
            stderr=subprocess.PIPE,
            text=True,
        )
        os.read(read, 1)
        client.send_signal(signal.SIGINT)
        _, err = client.communicate(timeout=60)
    os.close(read), os.close(write)
    assert client.returncode != 0 and "KeyboardInterrupt" in err


# --- Episodes ----------------------------------------------------------------------------------------------

GUILTY = "q3"
WORD = "(variant 3)"


def play(model: Endpoint, num_envs: int = 3) -> dict[str, Episode]:
    kwargs = {"dataset": QUESTIONS, "retriever": TitleRetriever()}
    ids = [f"q{i}" for i in range(6)]
    played = episodes(agent_of(model), ids, env_kwargs=kwargs, num_envs=num_envs)
    return {episode.question_id: episode for _, episode in played}


ENDS = {
    "hangs before the answer": StopReason.TIMEOUT,
    "drips its body": StopReason.TIMEOUT,
    "dies within the body": StopReason.MODEL_ERROR,
    "a stream cut in the middle": StopReason.MODEL_ERROR,
    "truncated JSON": StopReason.MODEL_ERROR,
    "empty choices": StopReason.MODEL_ERROR,
    "content null": StopReason.MODEL_ERROR,
    "status 500": StopReason.MODEL_ERROR,
    "status 429": StopReason.MODEL_ERROR,
}


@pytest.mark.parametrize("fault", ENDS)
def test_a_fault_ends_its_episode_with_a_reason_and_no_other(fault: str) -> None:
    behaviour, kind, said, _ = FAULTS[fault]
    with serving(unless(WORD, behaviour)) as server:
        played = play(endpoint(server.url, total=1.0))
    assert {id: episode.stop_reason for id, episode in played.items()} == {
        id: ENDS[fault] if id == GUILTY else StopReason.ANSWERED for id in played
    }
    guilty = played[GUILTY]
    assert kind.__name__ in guilty.stop_detail and said in guilty.stop_detail
    assert guilty.mask_episode is (ENDS[fault] is StopReason.MODEL_ERROR)
    assert guilty.score.em == 0.0 and played["q0"].score.em == 1.0


def test_a_prompt_beyond_the_window_ends_its_episode_as_a_context_overflow() -> None:
    code, body = OVERFLOWS["llama.cpp"]
    with serving(unless(WORD, status(code, body=json.dumps(body).encode()))) as server:
        played = play(endpoint(server.url))
    assert [id for id, e in played.items() if e.stop_reason is StopReason.CONTEXT_OVERFLOW] == [GUILTY]
    assert "5274 tokens" in played[GUILTY].stop_detail and not played[GUILTY].mask_episode
    assert len(server.requests) == 6


def test_rounds_before_the_fault_are_kept() -> None:
    """The model searches, then its server fails: the episode has the first round and its tokens."""
    usage = {"prompt_tokens": 50, "completion_tokens": 8, "prompt_tokens_details": {"cached_tokens": 48}}
    searching = ok(chat("<search>Aldo Verne", usage=usage))
    with serving(lambda a: (status(500) if "Aldo Verne is a painter" in told(a) else searching)(a)) as server:
        episode = play(endpoint(server.url), num_envs=1)["q0"]
    assert (episode.stop_reason, len(episode.rounds)) == (StopReason.MODEL_ERROR, 1)
    assert (episode.tokens.total, episode.tokens.peak) == (58, 58)
    assert episode.rounds[0].calls[0].cached_tokens == 48


# --- A whole run -------------------------------------------------------------------------------------------

AGENT = """
import sys; sys.path.insert(0, {tests!r})
from answering import agent_of
from mempo_agents.models.endpoint import Endpoint
agent = agent_of(Endpoint(url={url!r}, model="m", tries={tries}, pause=0.001))
"""


def thirds(fault: Behaviour) -> Behaviour:
    number = itertools.count(1)
    return lambda asked: (fault if next(number) % 3 == 0 else ok(chat()))(asked)


def echoed(asked: Asked) -> bool:
    """A server that says back the key that it was sent."""
    return refusing(500, f"can't serve Bearer {KEY} now: {KEY}")(asked)


def bench(server: Any, tries: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[FullRow]:
    (folder / "asking.py").write_text(
        AGENT.format(tests=str(Path(__file__).parent), url=f"{server.url}/v1", tries=tries)
    )
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "asking", raising=False)
    command = ["bench", "run", "--dataset", "synthetic", "--agents", "asking:agent", "--episodes", "9"]
    assert main([*command, "--num-envs", "3", "--out", "run"]) == 0
    rows = list(read_rows(Path("run"), read_plan(Path("run")), FullRow))
    return sorted((row for row in rows if row.agent == "asking:agent"), key=lambda row: row.index)


def test_a_run_goes_on_when_every_third_request_fails_and_no_key_is_written(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("MEMPO_API_KEY", KEY)
    caplog.set_level(logging.DEBUG)
    with serving(thirds(echoed)) as server:
        rows = bench(server, 1, tmp_path, monkeypatch)
    assert len(server.requests) == 9
    assert all(f"Authorization: Bearer {KEY}".encode() in request for request in server.requests)
    failed = [row for row in rows if row.stop_reason is StopReason.MODEL_ERROR]
    assert (len(rows), len(failed)) == (9, 3)
    assert {row.stop_reason for row in rows} == {StopReason.ANSWERED, StopReason.MODEL_ERROR}
    for row in failed:
        assert row.masked
        assert "status 500: can't serve Bearer [key] now: [key]" in row.episode.stop_detail
    assert main(["bench", "report", "run"]) == 0
    assert main(["view", "run"]) == 0
    said = capfd.readouterr()
    assert KEY not in said.out + said.err + caplog.text
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.name for path in written} >= {"run.json", "results.jsonl", "report.html", "episodes.html"}
    assert [path for path in written if KEY.encode() in path.read_bytes()] == []


def test_with_a_second_try_the_same_server_is_good_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(thirds(status(500))) as server:
        rows = bench(server, 3, tmp_path, monkeypatch)
    assert {row.stop_reason for row in rows} == {StopReason.ANSWERED}
    assert len(server.requests) > 9


def test_it_is_named_on_the_command_line_and_its_usage_is_what_a_run_cost(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 90, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": 60}}
    number, run = itertools.count(1), str(tmp_path / "run")
    answer = ok(chat(usage=usage))
    with serving(lambda asked: (status(503) if next(number) == 2 else answer)(asked)) as server:
        model = f"endpoint:org/m@{server.url}/v1"
        command = ["bench", "run", "--dataset", "synthetic", "--agents", "mempo", "--episodes", "3"]
        assert main([*command, "--model", model, "--num-envs", "1", "--out", run]) == 0
    assert len(server.requests) == 5, "one before the run, three episodes, one try more"
    (mempo,) = [
        arm
        for arm in compare([Path(run)], prices={"org/m": Price(prompt=1, cached=0.5, output=10)}).arms
        if arm.agent == "mempo"
    ]
    spent = {key: spent.episode.value for key, spent in mempo.spent.items()}
    assert mempo.model == "org/m"
    assert (spent["prompt"], spent["cached"], spent["output"]) == (90, 60, 10)
    assert spent["dollars"] == pytest.approx(1_000 * (30 * 1 + 60 * 0.5 + 10 * 10) / 1e6)
