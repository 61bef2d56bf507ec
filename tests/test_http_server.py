"""The retrieval server: every spelling of the protocol, bad requests, a full house, and its end."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("starlette", reason="needs mempo[server]")

import httpx

from mempo_env.cli import main
from mempo_env.errors import RetrieverError
from mempo_env.retrieval import server as server_module
from mempo_env.retrieval.bm25 import BM25Index
from mempo_env.retrieval.corpus import Corpus
from mempo_env.retrieval.http import HTTPRetriever, Patience
from mempo_env.retrieval.server import app
from mempo_env.types import Hit, Passage

PASSAGES = [
    Passage("a", "Neil Peart", "was the drummer of a rock band."),
    Passage("b", 'The "Rush"', "is a rock band <b>from</b> Canada; é."),
    Passage("c", "Elsewhere", "nothing of the kind"),
]
INDEX = BM25Index.of(Corpus.of(PASSAGES))


class InProcess:
    """Asks an application without a socket."""

    def __init__(self, application: Any) -> None:
        self.application = application

    def request(self, method: str, path: str, **content: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.application)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                return await client.request(method, path, **content)

        return asyncio.run(ask())

    def post(self, path: str, **content: Any) -> httpx.Response:
        return self.request("POST", path, **content)

    def get(self, path: str) -> httpx.Response:
        return self.request("GET", path)


@pytest.fixture
def client() -> InProcess:
    return InProcess(app(INDEX))


def documents(query: str, k: int) -> list[dict[str, Any]]:
    return [
        {"id": h.id, "title": h.title, "text": h.text, "contents": f'"{h.title}"\n{h.text}', "row": h.row}
        for h in INDEX.search([query], k)[0]
    ]


# --- Spellings ---------------------------------------------------------------------------------------------


def test_search_r1_gets_documents_with_scores(client: InProcess) -> None:
    body = {"queries": ["rock band", "drummer"], "topk": 2, "return_scores": True}
    answer = client.post("/retrieve", json=body).json()
    assert [[item["document"] for item in hits] for hits in answer["result"]] == [
        documents("rock band", 2),
        documents("drummer", 2),
    ]
    assert [item["score"] for item in answer["result"][0]] == [
        h.score for h in INDEX.search(["rock band"], 2)[0]
    ]


@pytest.mark.parametrize("queries", [[], ["drummer"], ["rock band", "drummer"], ["drummer"] * 3])
def test_without_scores_there_is_one_list_of_documents_a_query(client: InProcess, queries: list[str]) -> None:
    """Some servers unpack (results, scores) there: with two queries, the first one's hits are the results."""
    answer = client.post("/retrieve", json={"queries": queries, "topk": 3, "return_scores": False}).json()
    assert answer == {"result": [documents(query, 3) for query in queries]}
    assert client.post("/retrieve", json={"queries": queries, "topk": 3}).json() == answer


def test_skyrl_sends_one_query(client: InProcess) -> None:
    answer = client.post("/retrieve", json={"query": "drummer", "topk": 3, "return_scores": True}).json()
    assert [item["document"] for item in answer["result"][0]] == documents("drummer", 3)


def test_zerosearch_gets_a_bare_list_of_texts(client: InProcess) -> None:
    answer = client.post("/retrieve", json={"query": "rock band", "top_k": 2}).json()
    assert answer == [{"text": document["contents"]} for document in documents("rock band", 2)]


@pytest.mark.parametrize("size", ["topk", "top_k", "k"])
def test_the_number_of_hits_has_three_names(client: InProcess, size: str) -> None:
    assert len(client.post("/retrieve", json={"queries": ["rock"], size: 1}).json()["result"][0]) == 1
    unset = client.post("/retrieve", json={"queries": ["rock"], size: None}).json()
    assert unset == {"result": [documents("rock", 3)]}


def test_no_hit_is_an_empty_list(client: InProcess) -> None:
    assert client.post("/retrieve", json={"queries": ["zebra"]}).json() == {"result": [[]]}
    assert client.post("/retrieve", json={"query": "zebra", "top_k": 3}).json() == []


def test_health_tells_what_is_served(client: InProcess) -> None:
    assert client.get("/health").json() == {"status": "ok", "fingerprint": INDEX.fingerprint, "passages": 3}


# --- Bad requests ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "wanted JSON"),
        (b"\xff", "wanted JSON"),
        (b'{"queries": ["a"', "wanted JSON"),
        (b"[]", "wanted JSON"),
        (b"{}", "wanted either queries"),
        (b'{"queries": ["a"], "query": "a"}', "wanted either queries"),
        (b'{"queries": "a"}', "Expected `array`"),
        (b'{"queries": [1]}', "Expected `str`"),
        (b'{"query": ["a"]}', "Expected `str`"),
        (b'{"queries": ["a"], "topk": "3"}', "Expected `int"),
        (b'{"queries": ["a"], "topk": 0}', "wanted a topk of 1 to 1000, got 0"),
        (b'{"queries": ["a"], "k": -1}', "got -1"),
        (b'{"queries": ["a"], "topk": 1001}', "got 1001"),
        (b'{"queries": ["a"], "topk": 3, "k": 3}', "one of topk"),
        (b'{"queries": ["a"], "return_scores": "yes"}', "Expected `bool`"),
        (json.dumps({"queries": ["a"] * 10_001}).encode(), "at most 10000 queries"),
        (json.dumps({"queries": ["a"] * 51, "topk": 1_000}).encode(), "at most 50000 hits"),
        (b'{"z": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "maximum recursion depth"),
    ],
)
def test_a_bad_body_gets_422_and_one_line(client: InProcess, body: bytes, said: str) -> None:
    answer = client.post("/retrieve", content=body)
    assert answer.status_code == 422
    assert said in answer.json()["detail"] and "\n" not in answer.json()["detail"]


def test_a_body_that_is_too_long_is_not_read(client: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MAX_BODY", 100)
    answer = client.post("/retrieve", json={"queries": ["x" * 200]})
    assert answer.status_code == 422 and "at most 100 bytes" in answer.json()["detail"]


def test_other_places_and_methods_are_refused(client: InProcess) -> None:
    assert client.get("/retrieve").status_code == 405
    assert client.post("/elsewhere").status_code == 404


# --- A full house ------------------------------------------------------------------------------------------


class Slow:
    """A retriever that waits until it is let go."""

    fingerprint = "slow"

    def __init__(self) -> None:
        self.entered, self.released = threading.Event(), threading.Event()

    def search(self, queries: Sequence[str], k: int) -> list[tuple[Hit, ...]]:
        self.entered.set()
        assert self.released.wait(60)
        return INDEX.search(queries, k)


class Broken:
    fingerprint = "broken"

    def search(self, queries: Sequence[str], k: int) -> list[tuple[Hit, ...]]:
        raise RetrieverError("the server behind it\nis down")


def test_a_full_server_says_when_to_come_back() -> None:
    slow = Slow()

    async def play() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app(slow, max_pending=1))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            first = asyncio.create_task(client.post("/retrieve", json={"query": "drummer"}))
            await asyncio.to_thread(slow.entered.wait, 60)
            second = await client.post("/retrieve", json={"query": "drummer"})
            health = await client.get("/health")
            slow.released.set()
            third = await first
            return [second, health, third, await client.post("/retrieve", json={"query": "drummer"})]

    full, health, first, later = asyncio.run(play())
    assert (full.status_code, full.headers["Retry-After"]) == (503, "1")
    assert full.json() == {"detail": "full: 1 requests in work; come back in 1 s"}
    assert health.status_code == first.status_code == later.status_code == 200


def test_a_retriever_that_failed_is_a_503() -> None:
    answer = InProcess(app(Broken())).post("/retrieve", json={"query": "drummer"})
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    assert answer.json() == {"detail": "the server behind it is down"}


# --- As a process ------------------------------------------------------------------------------------------


@contextmanager
def process(*command: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server process and its address, taken from the line that says it is ready."""
    started = subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert started.stdout is not None
        line = started.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+", line)
        assert found, (line, started.stderr and started.stderr.read())
        yield started, found.group()
    finally:
        started.kill()
        started.communicate()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "corpus.jsonl").write_bytes(b"".join(msgspec.json.encode(p) + b"\n" for p in PASSAGES))
    return tmp_path


CLI = ("-c", "import sys; from mempo_env.cli import main; sys.exit(main())", "retriever", "serve")


def _ask(client: HTTPRetriever) -> list[tuple[Hit, ...]]:
    return client.search(["rock band", "drummer", "zebra", "\x00\ud800"], 3)


def test_it_serves_what_the_index_finds_until_it_is_told_to_stop(data: Path) -> None:
    """The client's hits are the index's own, ids, rows, scores and texts; also in threads and forks."""
    with process(*CLI, str(data), "--port", "0") as (server, url):
        client = HTTPRetriever(url, Patience(tries=1))
        assert client.fingerprint == INDEX.fingerprint
        wanted = _ask(INDEX)  # type: ignore[arg-type]
        assert _ask(client) == wanted
        with ThreadPoolExecutor(8) as threads:
            assert all(got == wanted for got in threads.map(_ask, [client] * 50))
        with multiprocessing.get_context("fork").Pool(2) as forked:
            assert forked.map(_ask, [client] * 20) == [wanted] * 20
        assert _ask(client) == wanted
        server.send_signal(signal.SIGTERM)
        rest, complaints = server.communicate(timeout=60)
        assert (server.returncode, rest) == (0, "")
        assert "Traceback" not in complaints and "POST" not in complaints  # nor a line a request


SLOW_SERVER = """
import sys, time
from mempo_env.retrieval.server import app, listen, serve
class Slow:
    fingerprint = "slow"
    def search(self, queries, k):
        print("searching", flush=True)
        time.sleep(0.5)
        return [() for _ in queries]
sock = listen("127.0.0.1", 0)
print(f"http://127.0.0.1:{sock.getsockname()[1]}", flush=True)
serve(app(Slow()), sock)
"""


def test_a_request_in_work_is_answered_before_the_end() -> None:
    with process("-c", SLOW_SERVER) as (server, url), ThreadPoolExecutor(1) as threads:
        asked = threads.submit(HTTPRetriever(url, Patience(tries=1)).search, ["q"], 3)
        assert server.stdout is not None and server.stdout.readline() == "searching\n"
        server.send_signal(signal.SIGTERM)
        assert asked.result(timeout=60) == [()]
        server.wait(timeout=60)


def test_a_server_killed_under_the_client_ends_in_a_retriever_error(data: Path) -> None:
    with process(*CLI, str(data), "--port", "0") as (server, url):
        client = HTTPRetriever(url, Patience(tries=2, pause=0.01))
        assert _ask(client) == _ask(INDEX)  # type: ignore[arg-type]
        server.kill()
        server.wait()
        with pytest.raises(RetrieverError, match="connection refused"):
            _ask(client)


def test_a_taken_port_gets_one_line(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sock = server_module.listen("127.0.0.1", 0)
    with sock:
        port = sock.getsockname()[1]
        assert main(["retriever", "serve", str(data), "--port", str(port)]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert (
        said
        == f"mempo: cannot listen on 127.0.0.1, port {port}: Address already in use; choose another --port"
    )


def test_a_folder_without_a_corpus_gets_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["retriever", "serve", str(tmp_path)]) == 2
    assert "corpus.jsonl: wanted a corpus" in capsys.readouterr().err


def half(url: str) -> socket.socket:
    """A connection whose request stops within its body."""
    host, port = url.removeprefix("http://").split(":")
    sock = socket.create_connection((host, int(port)), timeout=60)
    sock.sendall(b"POST /retrieve HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\n{")
    return sock


def test_clients_that_send_half_a_body_keep_nobody_waiting_and_leave_no_traceback(data: Path) -> None:
    with process(*CLI, str(data), "--port", "0", "--max-pending", "2") as (server, url), ExitStack() as held:
        for _ in range(8):
            held.callback(half(url).close)
        client = HTTPRetriever(url, Patience(tries=1))
        assert _ask(client) == _ask(INDEX)  # type: ignore[arg-type]
        held.close()
        assert _ask(client) == _ask(INDEX)  # type: ignore[arg-type]
        server.send_signal(signal.SIGTERM)
        assert "Traceback" not in server.communicate(timeout=60)[1]


def test_half_a_body_is_given_up_after_a_while() -> None:
    hurried = "from mempo_env.retrieval import server\nserver.BODY_S = 0.1\n" + SLOW_SERVER
    with process("-c", hurried) as (_, url), half(url) as sock:
        assert sock.recv(1_000).startswith(b"HTTP/1.1 408 ")
