"""Data and index of a run: they may be replaced while it is played, and its rows never mix them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import mempo_benchmarks.run as runner
from mempo_agents import make_agent
from mempo_benchmarks.results import RESULTS
from mempo_benchmarks.run import bench, make_plan
from mempo_benchmarks.summary import compare
from mempo_env.cli import main
from mempo_env.errors import ResultsError
from runs import rows


class Index(ThreadingHTTPServer):
    """A retrieval server whose every passage is its name, which it tells unless it is shy."""

    def __init__(self, name: str, shy: bool = False) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.name, self.shy, self.searches = name, shy, 0
        self.later: tuple[int, str] | None = None  # after so many searches it has another name
        self.address = f"127.0.0.1:{self.server_port}"
        self.url = f"http://{self.address}"


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # an answer is one packet
    server: Index

    def do_GET(self) -> None:
        self._send(404 if self.server.shy else 200, {"fingerprint": self.server.name})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        index = self.server
        index.searches += 1
        if index.later and index.searches > index.later[0]:
            index.name = index.later[1]
        found = {"document": {"id": "1", "title": index.name, "text": index.name}, "score": 1.0}
        self._send(200, {"result": [[found] for _ in asked["queries"]]})

    def _send(self, code: int, answer: Any) -> None:
        body = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serving(name: str, shy: bool = False) -> Iterator[Index]:
    index = Index(name, shy)
    Thread(target=index.serve_forever, daemon=True).start()
    try:
        yield index
    finally:
        index.shutdown()
        index.server_close()


def test_an_index_replaced_between_two_agents_stops_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    with serving("apples") as index:
        plan = make_plan("synthetic", ["mempo"], episodes=3, retriever=index.url)
        assert plan.index == "apples"

        def make_and_swap(name: str, questions: Any, model: Any) -> Any:
            index.name = "pears" if name == "mempo" else index.name
            return make_agent(name, questions, model)

        with monkeypatch.context() as patch:
            patch.setattr(runner, "make_agent", make_and_swap)
            with pytest.raises(
                ResultsError,
                match=rf"index apples, got .* index pears: the index behind '{index.url}' changed",
            ):
                bench(plan, run)
        before = (run / RESULTS).read_bytes()
        assert {row.agent for row in rows(run)} == {"empty", "random"}
        with pytest.raises(ResultsError, match="index pears"):  # still another one
            bench(plan, run)
        assert (run / RESULTS).read_bytes() == before
        index.name = "apples"
        bench(plan, run)
    assert (run / RESULTS).read_bytes().startswith(before)
    assert len(rows(run)) == 3 * len(plan.arms)
    assert {row.episode.settings["retriever"] for row in rows(run)} == {"apples"}


@pytest.mark.parametrize("num_envs", [1, 2])
def test_an_index_replaced_within_an_agent_leaves_no_row_of_the_other(tmp_path: Path, num_envs: int) -> None:
    run = tmp_path / "run"
    with serving("apples") as index:
        plan = make_plan("synthetic", ["mempo"], episodes=6, retriever=index.url)
        bench(plan, tmp_path / "undisturbed", num_envs)
        index.later = (index.searches * 3 // 2, "pears")
        with pytest.raises(ResultsError, match="index pears"):
            bench(plan, run, num_envs)
        written = rows(run)
        assert 0 < len(written) < 6 * len(plan.arms)
        assert b"pears" not in (run / RESULTS).read_bytes()
        index.later, index.name = None, "apples"
        bench(plan, run, num_envs)
    assert rows(run) == rows(tmp_path / "undisturbed")


def test_an_index_that_stops_answering_stops_the_run_at_the_next_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    with serving("apples") as index:
        plan = make_plan("synthetic", ["mempo"], episodes=2, retriever=index.url)

        def make_and_hide(name: str, questions: Any, model: Any) -> Any:
            index.shy = name == "mempo"
            return make_agent(name, questions, model)

        monkeypatch.setattr(runner, "make_agent", make_and_hide)
        with pytest.raises(ResultsError, match=f"got .* index http:unknown at {index.url}: "):
            bench(plan, run)
    assert {row.agent for row in rows(run)} == {"empty", "random"}


def test_data_replaced_between_two_agents_stops_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan(prepared(tmp_path, "first"), [], split="train", episodes=1)
    assert len(plan.arms) == 3

    def make_and_swap(name: str, questions: Any, model: Any) -> Any:
        if name == "random":
            shutil.rmtree(tmp_path / "data")
            prepared(tmp_path, "second")
        return make_agent(name, questions, model)

    monkeypatch.setattr(runner, "make_agent", make_and_swap)
    with pytest.raises(ResultsError, match=f"the data {plan.data} and .* got data .* the data in .* changed"):
        bench(plan, tmp_path / "run")
    assert {row.agent for row in rows(tmp_path / "run")} == {"empty"}


def prepared(folder: Path, town: str) -> str:
    rows = [{"id": "a", "question": f"Where is {town}?", "answers": ["here"]}]
    (folder / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "c.jsonl").write_text(json.dumps({"id": "p", "title": "Town", "text": "It is here."}) + "\n")
    command = ["data", "prepare", "jsonl", str(folder / "q.jsonl"), "--corpus", str(folder / "c.jsonl")]
    assert main([*command, "--split", "train", "--out", str(folder / "data")]) == 0
    return str(folder / "data")


def test_two_servers_that_tell_nothing_are_never_of_one_table(tmp_path: Path) -> None:
    with serving("apples", shy=True) as a, serving("pears", shy=True) as b:
        for index, name in ((a, "a"), (b, "b")):
            plan = make_plan("synthetic", [], episodes=2, retriever=index.url)
            assert plan.index == f"http:unknown at {index.url}"
            bench(plan, tmp_path / name)
        with pytest.raises(ResultsError, match=r"index http:unknown at http://.* / http:unknown at"):
            compare([tmp_path / "a", tmp_path / "b"])
        marks = {row.fingerprints.index for name in "ab" for row in rows(tmp_path / name)}
        assert marks == {f"http:unknown at {index.url}" for index in (a, b)}
        with pytest.raises(ResultsError, match=r"begun with other settings .*index http:unknown"):
            bench(make_plan("synthetic", [], episodes=2, retriever=b.url), tmp_path / "a")
        bench(make_plan("synthetic", [], episodes=2, retriever=a.url), tmp_path / "a")


def test_a_password_in_an_address_is_not_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving("apples", shy=True) as index:
        plan = make_plan("synthetic", [], episodes=1, retriever=f"http://me:secret@{index.address}")
        bench(plan, tmp_path / "run")
    assert plan.index == f"http:unknown at {index.url}"
    assert main(["bench", "report", str(tmp_path / "run")]) == 0
    assert index.address in capsys.readouterr().out
    assert "secret" not in (tmp_path / "run" / "report.html").read_text()
