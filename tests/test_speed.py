"""The speed comparison: its arithmetic by hand, what it refuses, and that it runs."""

from __future__ import annotations

import json
import re
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mempo_benchmarks.speed import __main__ as speed
from mempo_benchmarks.speed import credit, parts
from mempo_benchmarks.speed.peers import (
    HOST,
    PEERS,
    TRAINERS,
    PeerError,
    Recipe,
    System,
    installed,
    order,
    ours,
)
from mempo_benchmarks.speed.players import play_credit, play_mempo
from mempo_benchmarks.speed.report import Part, Spread, ratio, table
from mempo_benchmarks.speed.server import CALL_S, QUERY_S, Slow, running
from mempo_benchmarks.speed.work import row, write_searches
from mempo_env.env import SearchQAEnv
from mempo_env.files import cache_folder
from mempo_env.questions.set import QuestionSet
from mempo_env.questions.world import synthetic
from mempo_env.retrieval.http import HTTPRetriever

PART = Part(
    title="Work: an episode",
    seconds={"ours": [0.001, 0.004, 0.002], "theirs": [0.003, 0.004, 0.010]},
    ours=("ours",),
    aim="1.5 times",
)


def rows(count: int) -> list[dict[str, Any]]:
    asked = synthetic().split("train")[:count]
    return [row(question, right=i % 2 == 0) for i, question in enumerate(asked)]


# --- Arithmetic and tables ---------------------------------------------------------------------------------


def test_ratios_are_taken_within_each_repetition() -> None:
    assert ratio(PART, "ours", "theirs") == Spread(3.0, 1.0, 5.0)  # 3 / 1, 4 / 4, 10 / 2


def test_the_table_shows_medians_ranges_rates_and_ratios() -> None:
    head, _, mine, theirs, _, aim = table(PART).splitlines()
    assert head == "| Work: an episode | time | least to greatest | per second | ours is faster |"
    assert mine == "| ours | 2 ms | 1 ms to 4 ms | 500 |  |"
    assert theirs == "| theirs | 4 ms | 3 ms to 10 ms | 250 | 3.00 times (1.00 to 5.00) |"
    assert aim == "Aim: 1.5 times."


def test_runs_take_turns_and_count_by_their_median_pass() -> None:
    turns: list[str] = []

    def run(name: str) -> Callable[[], list[float]]:
        def passes() -> list[float]:
            turns.append(name)
            return [1.0, 5.0, 2.0 * len(turns)]

        return passes

    assert parts.interleave({"a": run("a"), "b": run("b")}, 3) == {"a": [2.0, 5.0, 5.0], "b": [4.0, 5.0, 5.0]}
    assert turns == ["a", "b", "a", "b", "a", "b"]


# --- Orders ------------------------------------------------------------------------------------------------


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> System:
    (tmp_path / "toy.py").write_text(
        "def add(a, b):\n"
        "    print('chatter')\n"
        "    return a + b\n"
        "def count(start):\n"
        "    seen = []\n"
        "    return lambda: seen.append(start) or [start, len(seen)]\n"
        "def fail():\n"
        "    raise RuntimeError('out of order')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return System("toy", Path(sys.executable), "toy", "json", {})


def test_an_order_is_carried_out_in_another_process_and_chatter_is_no_answer(toy: System) -> None:
    assert order(toy, "add", a=2, b=3) == 5


def test_passes_are_timed_one_by_one_and_warming_is_not_one_of_them(toy: System) -> None:
    told = order(toy, "count", start=7, passes=3, warm={"start": 1})
    assert told["results"] == [[7, 1], [7, 2], [7, 3]]
    assert len(told["seconds"]) == 3 and all(seconds > 0 for seconds in told["seconds"])


def test_a_failed_order_tells_the_last_line(toy: System) -> None:
    with pytest.raises(PeerError, match="RuntimeError: out of order"):
        order(toy, "fail")


@pytest.mark.slow
def test_a_peer_that_cannot_be_installed_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMPO_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setitem(PEERS, "gone", Recipe(("no-such-thing-at-all==1.0",), "play_gone", "gone", ()))
    with pytest.raises(PeerError, match="No matching distribution found for no-such-thing-at-all"):
        installed("gone")
    assert not list(tmp_path.rglob("requirements.json"))  # the next run tries again


# --- Our side ----------------------------------------------------------------------------------------------


def test_rewards_of_our_episodes_are_those_of_what_was_answered() -> None:
    work = rows(8)
    assert play_mempo.play(work, "synthetic", "canned")() == [1.0, 0.0] * 4


def test_wrong_rewards_end_the_comparison() -> None:
    work = rows(4)
    work[3]["reward"] = 1.0
    run = parts._player(ours(), "play", work, 1, 1, dataset="synthetic", retriever="canned")
    with pytest.raises(PeerError, match=f"wrong rewards for 1 questions, {work[3]['id']} first"):
        run()


def test_every_key_that_is_read_is_documented_and_given() -> None:
    documented = SearchQAEnv.__doc__ or ""
    assert all(f"`{key}`" in documented for key in play_mempo.AT_THE_END)
    assert play_mempo.inspect(rows(20), "synthetic", "canned") == ""


class Lazy(dict):  # type: ignore[type-arg]
    def __missing__(self, key: str) -> Any:
        return None


def _drop(info: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in info.items() if key != "diagnostics"}


def _no_tokens(info: dict[str, Any]) -> dict[str, Any]:
    return info | {"tokens": msgspec.structs.replace(info["tokens"], total=0)}


def _no_failure(info: dict[str, Any]) -> dict[str, Any]:
    return info | ({"failure": (None,)} if "failure" in info else {})


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (_drop, "wanted a dict with the documented keys"),
        (Lazy, "wanted a dict with the documented keys, got Lazy"),
        (lambda info: info | {"messages": iter(())}, "wanted plain values, got tuple_iterator"),
        (lambda info: info | {"segments": info["segments"][1:]}, "the segments are not the observation"),
        (_no_tokens, r"wanted \d+ tokens in 1 rounds, got 0"),
        (_no_failure, "wanted reward 0.0"),
    ],
)
def test_an_info_that_leaves_something_out_is_found(
    change: Callable[[dict[str, Any]], dict[str, Any]], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = play_mempo._make

    class Tampered:
        def __init__(self, *arguments: str) -> None:
            self.env = make(*arguments)

        def reset(self, **keywords: Any) -> Any:
            observation, info = self.env.reset(**keywords)
            return observation, change(info)

        def step(self, action: str) -> Any:
            *rest, info = self.env.step(action)
            return *rest, change(info)

    monkeypatch.setattr(play_mempo, "_make", Tampered)
    found = play_mempo.inspect(rows(2), "synthetic", "canned")
    assert found and re.search(complaint, found)


# --- Work and servers --------------------------------------------------------------------------------------


def test_searches_are_all_different_and_find_something(tmp_path: Path) -> None:
    folder = tmp_path / "passages"
    work = write_searches(folder, 120, 40)
    queries = [action for episode in work for action in episode["actions"][:-1]]
    assert len(set(queries)) == len(queries) == 120
    assert [question.id for question in QuestionSet.load(folder)] == [episode["id"] for episode in work]
    assert play_mempo.play(work, str(folder), "index")() == [1.0] * 40
    with running("index", str(folder)) as url:
        assert play_mempo.play(work[:5], str(folder), url)() == [1.0] * 5


def test_the_slow_server_takes_its_time_and_speaks_both_languages() -> None:
    began = time.perf_counter()
    Slow().search(["a"] * 64, 3)
    assert time.perf_counter() - began >= CALL_S + 64 * QUERY_S
    with running("slow") as url:
        (hits,) = HTTPRetriever(url).search(["anything"], 2)
        asked = msgspec.msgpack.encode({"query": "anything", "topk": 2, "return_scores": True})
        with urllib.request.urlopen(f"{url}/msgpack", asked, timeout=10) as answer:
            found = msgspec.msgpack.decode(answer.read())["result"]
    assert [f'"{hit.title}"\n{hit.text}' for hit in hits] == [hit["document"]["contents"] for hit in found]


def test_crowds_search_once_an_environment_a_round() -> None:
    queries = [["one", "two", "three"], ["four", "five", "six"]]
    with running("slow") as url:
        for search in (play_mempo.search_each, play_mempo.search_together):
            run = search(queries, url)
            assert [run(), run()] == [3, 3]


# --- All of it ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_comparison_runs_without_peers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(speed, "PASSAGES", 300)
    monkeypatch.setattr(speed, "ENVIRONMENTS", 4)
    monkeypatch.setattr(credit, "QUESTIONS", 2)
    monkeypatch.setattr(credit, "TOKENS", 16)
    monkeypatch.setattr(speed, "installed", _refuse)
    arguments = ["--out", str(tmp_path), "--repetitions", "1", "--episodes", "20", "--searches", "10"]
    assert speed.main(arguments) == 0
    text = capsys.readouterr().out
    assert text == (tmp_path / "speed.md").read_text()
    for name in (*PEERS, *TRAINERS):
        assert f"Without {name}: no network" in text
    held = json.loads((tmp_path / "speed.json").read_text())
    assert len(held["parts"]) == 8
    assert all(times for part in held["parts"] for times in part["seconds"].values())
    assert "tantivy" in held["systems"][0]["versions"]


def _refuse(name: str) -> System:
    raise PeerError("no network")


@pytest.mark.slow
@pytest.mark.parametrize("name", list(PEERS))
def test_peers_do_the_same_work(name: str, tmp_path: Path) -> None:
    if not (cache_folder() / "speed" / PEERS[name].requirements[0].replace("==", "-")).is_dir():
        pytest.skip(f"{name} is not installed: `python -m mempo_benchmarks.speed` does it")
    peer, work = installed(name), rows(6)
    assert parts._player(peer, "play", work, 2, 2)()
    searches = write_searches(tmp_path / "passages", 60, 4)
    with running("index", str(tmp_path / "passages")) as url:
        assert parts._player(peer, "play", searches, 1, 1, url=url + parts._path(peer))()
    with running("slow") as url:
        assert parts._crowd(peer, "search_each", [["a", "b"], ["c", "d"]], url + parts._path(peer))()


@pytest.mark.slow
def test_verl_gets_the_same_batch_and_gives_the_same_advantages(tmp_path: Path) -> None:
    folder = cache_folder() / "speed" / TRAINERS["verl"].bare[0].replace("==", "-")
    if not (folder / "requirements.json").is_file():
        pytest.skip("verl is not installed: `python -m mempo_benchmarks.speed` does it")
    alone, batch = tmp_path / "alone.npz", tmp_path / "batch.npz"
    credit.write_batch(alone, 1, 8)
    credit.write_batch(batch, 2, 8)
    mine, verl = msgspec.structs.replace(ours(), player=credit.PLAYER), installed("verl")
    credit._agree(mine, verl, alone)
    with pytest.raises(PeerError, match="its advantages are not ours"):  # it takes statistics over segments
        credit._agree(mine, verl, batch)
    assert credit._timed(verl, "grpo_vectorized", batch)()


@pytest.mark.parametrize("estimator", credit.ESTIMATORS)
def test_the_batch_of_the_speed_comparison_has_advantages(estimator: str, tmp_path: Path) -> None:
    batch = tmp_path / "batch.npz"
    credit.write_batch(batch, 3, 8)
    first = play_credit.first_tokens(str(batch), estimator)
    assert len(first) == credit.QUESTIONS * credit.ROLLOUTS * 3 and any(first)
    assert play_credit.advantages(str(batch), estimator)() == pytest.approx(first[0])


def test_the_host_knows_the_standard_library_only() -> None:
    lines = HOST.read_text().splitlines()
    imported = {line.split()[1] for line in lines if line.startswith(("import ", "from "))}
    assert "importlib" in imported and imported <= sys.stdlib_module_names
