"""The client of retrieval servers, against servers that do everything wrong over real sockets."""

from __future__ import annotations

import copy
import json
import pickle
import random
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mempo_env.errors import ConfigError, RetrieverError
from mempo_env.retrieval import open_retriever
from mempo_env.retrieval.http import HTTPRetriever, Patience
from mempo_env.retrieval.wire import Malformed, read_rankings
from scripted import ONE, Asked, Behaviour, drip, hang, hit, ok, raw, serving, status

IMPATIENT = Patience(connect=1.0, read=0.3, tries=3, pause=0.001, total=5.0)


def ask(
    urls: str | Sequence[str], queries: Sequence[str] = ("q",), patience: Patience = IMPATIENT
) -> list[Any]:
    """Search in a thread of its own, so that a client that hangs fails its test instead of the whole run."""
    threads = ThreadPoolExecutor(1)
    try:
        return threads.submit(HTTPRetriever(urls, patience).search, queries, 3).result(timeout=60)
    finally:
        threads.shutdown(wait=False)


# --- What it asks and understands --------------------------------------------------------------------------


def test_all_queries_go_into_one_request_that_asks_for_scores() -> None:
    """With `return_scores: false` some servers mix up hits and queries when there are exactly two."""
    with serving(ok({"result": [[hit("7")], []]})) as server:
        found = ask(server.url, ["one", "two \ud800 é"])
    assert [[h.id for h in hits] for hits in found] == [["7"], []]
    (request,) = server.requests
    head, _, body = request.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /retrieve HTTP/1.1\r\n")
    assert json.loads(body) == {"queries": ["one", "two ? é"], "topk": 3, "return_scores": True}


def test_nothing_to_ask_asks_nothing() -> None:
    with serving(ONE) as server:
        assert ask(server.url, []) == []
        assert HTTPRetriever(server.url, IMPATIENT).search(["q"], 0) == [()]
    assert server.connections == 0


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        ({"result": [[hit("7", 2.0)]]}, ("7", "Title 7", "text 7", 7, 2.0)),
        ({"result": [[hit("7", 2.0, title="T", text="x", contents='"no"\nno')]]}, ("7", "T", "x", 7, 2.0)),
        ({"result": [[hit("b", 2.0, title="T", text="x", row=5)]]}, ("b", "T", "x", 5, 2.0)),
        ({"result": [[{"id": "b", "contents": '"A "B" C"\nx\ny'}]]}, ("b", 'A "B" C', "x\ny", 0, 1.0)),
        ({"result": [[hit("b", None, contents="no title")]]}, ("b", "", "no title", 0, 1.0)),
        ([{"text": '"T"\nx'}], ("0", "T", "x", 0, 1.0)),
        ([{"text": "x"}], ("0", "", "x", 0, 1.0)),
        ([], None),
        ({"result": [[]]}, None),
        ([[hit("7", 2)]], ("7", "Title 7", "text 7", 7, 2.0)),
    ],
)
def test_answers_in_every_spelling_are_understood(answer: Any, wanted: tuple[Any, ...] | None) -> None:
    with serving(ok(answer)) as server:
        (hits,) = ask(server.url)
    found = [(hit.id, hit.title, hit.text, hit.row, hit.score) for hit in hits]
    assert found == ([] if wanted is None else [wanted])


def test_hits_are_ordered_by_score_and_row_and_cut_to_k() -> None:
    hits = [hit("5", 1.0), hit("9", 3.0), hit("2", 1.0), hit("1", 0.5)]
    with serving(ok({"result": [hits]})) as server:
        (found,) = ask(server.url)
    assert [h.row for h in found] == [9, 2, 5]


def test_the_filling_of_faiss_is_no_hit() -> None:
    """With fewer than k hits faiss says -1, and `corpus[-1]` is the last passage."""
    filled = [hit("4", 0.9), hit("-1", 0.1), hit("99", -3.4028234663852886e38)]
    with serving(ok({"result": [filled]})) as server:
        ((found,),) = ask(server.url)
    assert found.id == "4"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["result", "document", "id", "score", "text", "contents", "row"]), inner
        )
    ),
    max_leaves=20,
)


@settings(max_examples=300)
@given(json_values | st.lists(st.lists(json_values)).map(lambda rows: {"result": rows}) | st.binary())
def test_whatever_is_answered_gives_hits_or_a_malformed(answer: Any) -> None:
    body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    try:
        rankings = read_rankings(body, 1, 3)
    except Malformed as error:
        assert "\n" not in str(error)
    else:
        assert len(rankings) == 1 and len(rankings[0]) <= 3


NESTED = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize(
    "body", [b"[" * 200_000, NESTED, b'{"result": [[{"text": "x", "z": ' + NESTED + b"}]]}"]
)
def test_an_answer_that_is_nested_too_deep_is_malformed(body: bytes) -> None:
    with pytest.raises(Malformed, match="not JSON"):
        read_rankings(body, 1, 3)


@pytest.mark.parametrize(
    "row", ["9" * 5_000, "9" * 400, 10**30, 2**64, 10**18, "\u0663" * 19, -1, True, None, 1.5, [1], "\xb2"]
)
@pytest.mark.parametrize("key", ["id", "row"])
def test_a_row_that_no_corpus_has_is_the_rank(key: str, row: Any) -> None:
    body = json.dumps({"result": [[{"document": {"id": "a", "text": "x", key: row}, "score": 1.0}] * 2]})
    (hits,) = read_rankings(body.encode(), 1, 3)
    if key == "id" and row == -1:
        assert hits == ()
    else:
        assert [hit.row for hit in hits] == [0, 1]
        msgspec.json.encode(hits)


# --- Faults ------------------------------------------------------------------------------------------------

GOOD = json.dumps({"result": [[hit()]]}).encode()
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: "

FAULTS: dict[str, tuple[Behaviour, str]] = {
    "hangs before the answer": (hang, "no answer in time"),
    "hangs within the head": (drip(b"HTTP/1.1 200 OK\r\n", b""), "no answer in time"),
    "closes at once": (raw(b""), "connection closed"),
    "a chunk of negative length": (
        raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n{}\r\n0\r\n\r\n"),
        "not HTTP",
    ),
    "JSON nested too deep": (status(200, body=b"[" * 200_000), "not JSON"),
    "is no HTTP": (raw(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"), "not HTTP"),
    "status 500": (status(500), "status 500"),
    "status 502": (status(502), "status 502"),
    "status 429": (status(429), "status 429"),
    "status 503": (status(503, "Retry-After: 0\r\n"), "status 503"),
    "dies half way through the body": (raw(HEAD + b"%d\r\n\r\n" % len(GOOD) + GOOD[:20]), "half way"),
    "dies half way through a chunk": (
        raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n40\r\n" + GOOD[:20]),
        "half way",
    ),
    "cut off JSON": (status(200, body=GOOD[:20]), "not JSON"),
    "garbage": (status(200, body=b"\xff\x00<html>"), "not JSON"),
    "nothing": (status(200, body=b""), "not JSON"),
    "not a number": (
        status(200, body=b'{"result": [[{"document": {"text": ""}, "score": NaN}]]}'),
        "not JSON",
    ),
    "no result": (ok({"error": "index not loaded: /srv/secret"}), "no list of results"),
    "too few results": (ok({"result": []}), "results for 1 queries, got 0"),
    "too many results": (ok({"result": [[hit()], [hit()]]}), "results for 1 queries, got 2"),
    "results that are no lists": (ok({"result": [7]}), "list of hits"),
    "hits that are no documents": (ok({"result": [["x"]]}), "hit with a document"),
    "documents without text": (ok({"result": [[{"document": {"id": "7"}}]]}), "text or contents"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_server_that_stays_faulty_ends_in_a_retriever_error(fault: str) -> None:
    behaviour, said = FAULTS[fault]
    with serving(behaviour) as server, pytest.raises(RetrieverError, match=said) as caught:
        ask(server.url)
    assert len(server.requests) == 3
    assert "secret" not in str(caught.value) and "Traceback" not in str(caught.value)
    assert f"http://127.0.0.1:{server.port}" in str(caught.value)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_server_that_recovers_is_asked_again(fault: str) -> None:
    with serving(FAULTS[fault][0], ONE) as server:
        ((found,),) = ask(server.url)
    assert found.id == "7" and len(server.requests) == 2


@pytest.mark.parametrize("code", [301, 400, 401, 404, 405, 422])
def test_what_will_not_pass_is_not_asked_again(code: int) -> None:
    with serving(status(code)) as server, pytest.raises(RetrieverError, match=f"status {code}"):
        ask(server.url)
    assert len(server.requests) == 1


def test_a_server_that_is_down_is_refused_in_bounded_tries() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    with pytest.raises(
        RetrieverError, match=rf"in 3 of 3 tries \(http://127.0.0.1:{port}: connection refused"
    ):
        ask(f"http://127.0.0.1:{port}")


def test_a_host_that_does_not_exist_is_named() -> None:
    with pytest.raises(RetrieverError, match=r"http://nowhere\.invalid:80: no such host"):
        ask("http://nowhere.invalid")


def test_a_server_that_accepts_and_never_reads_is_left() -> None:
    """The backlog accepts connections of a process that has stopped."""
    with (
        socket.create_server(("127.0.0.1", 0)) as stuck,
        pytest.raises(RetrieverError, match="no answer in time"),
    ):
        ask(f"http://127.0.0.1:{stuck.getsockname()[1]}")


@pytest.mark.parametrize(
    "prefix",
    [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nX: ", HEAD + b"99999999\r\n\r\n"],
    ids=["status line", "headers", "header", "body"],
)
def test_a_server_that_drips_cannot_exceed_the_total(prefix: bytes) -> None:
    """Each byte comes in time, the answer never: one neighbour waited 345 s for a step."""
    patience = Patience(connect=1.0, read=1.0, tries=1, total=0.5)
    with serving(drip(prefix, b"0")) as server, pytest.raises(RetrieverError, match="no answer in time"):
        ask(server.url, patience=patience)


def test_an_answer_without_end_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mempo_env.retrieval.link.MAX_BODY", 1_000)
    endless = drip(HEAD + b"99999999\r\n\r\n", b"0" * 2_000)
    with serving(endless) as server, pytest.raises(RetrieverError, match="an answer of more than"):
        ask(server.url)


# --- Waiting -----------------------------------------------------------------------------------------------


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    seconds: list[float] = []
    monkeypatch.setattr("mempo_env.retrieval.http.time.sleep", seconds.append)
    return seconds


def test_pauses_double_with_jitter_and_leave_the_global_chance_alone(waits: list[float]) -> None:
    before = random.getstate()
    with serving(status(500)) as server, pytest.raises(RetrieverError):
        HTTPRetriever(server.url, Patience(tries=4, pause=0.1)).search(["q"], 3)
    assert all(0.5 * base <= wait <= 1.5 * base for wait, base in zip(waits, (0.1, 0.2, 0.4), strict=True))
    assert random.getstate() == before


@pytest.mark.parametrize("code", [429, 503])
def test_retry_after_is_obeyed_within_the_total(waits: list[float], code: int) -> None:
    with serving(status(code, "Retry-After: 7\r\n"), ONE) as server:
        HTTPRetriever(server.url, Patience(pause=0.001)).search(["q"], 3)
    assert waits == [7.0]


def test_retry_after_beyond_the_total_gives_up_at_once(waits: list[float]) -> None:
    with (
        serving(status(503, "Retry-After: 3600\r\n")) as server,
        pytest.raises(RetrieverError, match="status 503"),
    ):
        HTTPRetriever(server.url, IMPATIENT).search(["q"], 3)
    assert waits == [] and len(server.requests) == 1


@pytest.mark.parametrize(
    "header",
    [
        "soon",
        "Mon, 01 Jan 99999999999999999999 00:00:00 GMT",
        "Mon, 01 Jan 0001 00:00:00 GMT",
        "-1",
        "1.5",
        "",
    ],
)
def test_retry_after_may_be_nonsense(waits: list[float], header: str) -> None:
    with serving(status(503, f"Retry-After: {header}\r\n"), ONE) as server:
        HTTPRetriever(server.url, Patience(pause=0.001)).search(["q"], 3)
    assert waits[0] < 0.01


@pytest.mark.parametrize("header", ["9" * 400, "9" * 5_000])
def test_retry_after_may_be_for_ever(waits: list[float], header: str) -> None:
    with serving(status(503, f"Retry-After: {header}\r\n")) as server, pytest.raises(RetrieverError):
        HTTPRetriever(server.url, IMPATIENT).search(["q"], 3)
    assert waits == []


def test_retry_after_may_be_a_date(waits: list[float]) -> None:
    date = formatdate(time.time() + 10, usegmt=True)
    with serving(status(503, f"Retry-After: {date}\r\n"), ONE) as server:
        HTTPRetriever(server.url, Patience(pause=0.001)).search(["q"], 3)
    assert 5 < waits[0] <= 10


# --- Several servers ---------------------------------------------------------------------------------------


def test_another_server_stands_in_and_is_asked_first_from_then_on(waits: list[float]) -> None:
    with serving(status(500)) as bad, serving(ONE) as good:
        client = HTTPRetriever([bad.url, good.url], IMPATIENT)
        for _ in range(3):
            assert client.search(["q"], 3)[0][0].id == "7"
    assert len(bad.requests) == 1 and len(good.requests) == 3 and waits == []


def test_all_servers_are_named_when_all_fail() -> None:
    with serving(status(500)) as one, serving(hang) as other:
        said = f"{one.url}: status 500; {other.url}: no answer in time"
        with pytest.raises(RetrieverError, match=said):
            ask([one.url, other.url])
    assert len(one.requests) == len(other.requests) == 3


# --- Connections -------------------------------------------------------------------------------------------


def test_a_connection_stays_open() -> None:
    with serving(ONE) as server:
        client = HTTPRetriever(server.url, IMPATIENT)
        for _ in range(5):
            client.search(["q"], 3)
    assert server.connections == 1 and len(server.requests) == 5


def test_a_connection_closed_while_idle_is_no_failure() -> None:
    with serving(ok({"result": [[hit()]]}, stay=False)) as server:
        client = HTTPRetriever(server.url, Patience(tries=1))
        for _ in range(3):
            client.search(["q"], 3)
    assert server.connections == 3


def test_threads_do_not_share_a_connection_at_a_time() -> None:
    def echo(asked: Asked) -> bool:
        time.sleep(0.002)
        return ok({"result": [[hit(query)] for query in json.loads(asked.body)["queries"]]})(asked)

    with serving(echo) as server:
        client = HTTPRetriever(server.url, Patience(tries=1))
        names = [str(i) for i in range(100)]
        with ThreadPoolExecutor(8) as threads:
            found = threads.map(lambda name: client.search([name], 1)[0][0].id, names)
            assert list(found) == names
    assert 1 < server.connections <= 8


# --- Names -------------------------------------------------------------------------------------------------


def test_a_password_is_sent_and_never_shown() -> None:
    with serving(status(500)) as server:
        client = HTTPRetriever(f"http://ann:s%40cret@127.0.0.1:{server.port}/find", IMPATIENT)
        with pytest.raises(RetrieverError) as caught:
            client.search(["q"], 3)
    assert not {"ann", "s%40cret", "s@cret"} & set(
        str(caught.value).replace(":", " ").replace("@", " ").split()
    )
    assert "cret" not in str(caught.value)
    assert server.requests[0].startswith(b"POST /find HTTP/1.1\r\n")
    assert b"Authorization: Basic YW5uOnNAY3JldA==\r\n" in server.requests[0]  # base64 of ann:s@cret


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
        "http://[zz]:1",
        "http://\u2100:1",
        "http://a..b",
        "http://" + "a" * 64,
        "http://h/\udce9",
    ],
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="wanted the address of a retrieval server"):
        HTTPRetriever(url)


@pytest.mark.parametrize(
    ("rest", "sent"),
    [
        ("/find?key=a%20b&x=1#part", b"/find?key=a%20b&x=1"),
        ("?key=1", b"/retrieve?key=1"),
        ("/é /x", b"/%C3%A9%20/x"),
        ("/find;v=1/~ann", b"/find;v=1/~ann"),
    ],
)
def test_an_address_is_sent_whole_and_encoded(rest: str, sent: bytes) -> None:
    with serving(ONE) as server:
        client = open_retriever(server.url.upper() + rest)  # schemes and hosts have no case
        assert len(client.search(["q"], 3)) == 1
    assert server.requests[0].startswith(b"POST " + sent + b" HTTP/1.1\r\n")


def test_the_fingerprint_is_what_the_server_says() -> None:
    with serving(ok({"status": "ok", "fingerprint": "abc"})) as server:
        assert HTTPRetriever(server.url, IMPATIENT).fingerprint == "abc"
    assert server.requests[0].startswith(b"GET /health HTTP/1.1\r\n")
    for silent in (status(404), ok({"status": "ok"}), ok([1]), raw(b""), status(200, body=b"fine")):
        with serving(silent) as server:
            assert HTTPRetriever(server.url, IMPATIENT).fingerprint == "http:unknown"


def test_it_is_made_by_name_copies_to_itself_and_pickles_by_its_addresses() -> None:
    with serving(ONE) as server:
        client = open_retriever(f"{server.url},{server.url}/retrieve")
        assert isinstance(client, HTTPRetriever) and len(client.urls) == 2
        assert copy.copy(client) is client and copy.deepcopy(client) is client
        client.search(["q"], 3)
        again = pickle.loads(pickle.dumps(client))
        assert again.search(["q"], 3) == client.search(["q"], 3)
    with pytest.raises(ConfigError, match="at least one address"):
        HTTPRetriever([])
