"""The comparisons, each a story: what is played, by whom, in turn, and what of it is told."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from mempo_benchmarks.speed.peers import PeerError, System, order
from mempo_benchmarks.speed.report import Part
from mempo_benchmarks.speed.server import CALL_S, QUERY_S, running
from mempo_benchmarks.speed.work import SEARCHES, Row

Runs = Mapping[str, Callable[[], list[float]]]
"""For each system a run, which returns the seconds that one unit took in each pass."""


def interleave(runs: Runs, repetitions: int) -> dict[str, list[float]]:
    """Run all in turn, and that several times (A B A B); the median pass of each run."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repetitions):
        for name, run in runs.items():
            seconds[name].append(median(run()))
    return seconds


def inspect(system: System, rows: Sequence[Row]) -> None:
    """Refuse to go on if what our environment tells is not whole, plain and true."""
    if complaint := order(system, "inspect", rows=rows, dataset="synthetic", retriever="canned"):
        raise PeerError(f"{system.name}: {complaint}")


def answering(what: str, rows: Sequence[Row], warm: int, repetitions: int, systems: Sequence[System]) -> Part:
    """Episodes that answer at once: a reset and one step, every key of every info read.

    Args:
        what: How they answer.
        rows: The episodes; the first `warm` are played without a clock.
        warm: How many.
        repetitions: Of every system's run.
        systems: Ours, then peers.
    """
    mine, *peers = systems
    env = {"dataset": "synthetic", "retriever": "canned"}
    new, again = f"{mine.name}, questions new to it", f"{mine.name}, questions that come again"
    runs = {
        again: _player(mine, "play", rows, warm, 9, **env),
        new: _player(mine, "play", rows, warm, 1, **env),
    }
    for peer in peers:
        runs[peer.name] = _player(peer, "play", rows, warm, 9)
        if peer.player == "play_skyrl":
            reused = f"{peer.name}, one object set back by hand"
            runs[reused] = _player(peer, "play_reused", rows, warm, 9)
    title = f"{what} ({len(rows) - warm:,} questions): an episode"
    return Part(title, interleave(runs, repetitions), (again, new), "1.5 times skyrl-gym, at least equal")


def searching(
    rows: Sequence[Row], folder: Path, warm: int, repetitions: int, systems: Sequence[System]
) -> Part:
    """Episodes that search and answer, over one index, in our process or behind one server for all."""
    mine, *peers = systems
    inside, outside = f"{mine.name}, in process", f"{mine.name}, over HTTP"
    data = str(folder)
    with running("index", data) as url:
        runs = {
            inside: _player(mine, "play", rows, warm, 3, dataset=data, retriever="index"),
            outside: _player(mine, "play", rows, warm, 3, dataset=data, retriever=url),
        }
        for peer in peers:
            runs[f"{peer.name}, over HTTP"] = _player(peer, "play", rows, warm, 3, url=url + _path(peer))
        seconds = interleave(runs, repetitions)
    title = f"{SEARCHES} searches and an answer ({len(rows) - warm:,} questions): an episode"
    return Part(title, seconds, (inside, outside), "in process 10 times, over HTTP 1.5 times each peer")


def crowding(environments: int, rounds: int, repetitions: int, systems: Sequence[System]) -> Part:
    """Many environments that search at the same time, at a server whose cost is known."""
    mine, *peers = systems
    queries = [
        [f"what is number {environments * r + i} about?" for i in range(environments)] for r in range(rounds)
    ]
    together, alone = f"{mine.name}, one make_vec", f"{mine.name}, one by one"
    with running("slow") as url:
        runs = {
            together: _crowd(mine, "search_together", queries, url),
            alone: _crowd(mine, "search_each", queries, url),
        }
        for peer in peers:
            runs[f"{peer.name}, one by one"] = _crowd(peer, "search_each", queries, url + _path(peer))
        seconds = interleave(runs, repetitions)
    one, all_ = CALL_S + QUERY_S, CALL_S + environments * QUERY_S
    aim = (
        f"40 times one by one; the server alone allows {environments * one / all_:.1f} times "
        f"({environments} x {one * 1e3:g} ms to {all_ * 1e3:g} ms)"
    )
    return Part(f"{environments} environments at a slow server: a search", seconds, (together,), aim)


def starting(repetitions: int, systems: Sequence[System]) -> list[Part]:
    """The import, the first make and the next make, each time in a new process."""
    mine = systems[0]
    warm, cold, bare = mine.name, f"{mine.name}, nothing in the cache", "python without"
    started: dict[str, list[dict[str, float]]] = {name: [] for name in (*_names(systems), cold)}
    imports: dict[str, list[float]] = {name: [] for name in (*_names(systems), bare)}
    for _ in range(repetitions):
        imports[bare].append(_import(mine, "sys"))
        for system in systems:
            imports[system.name].append(_import(system, system.imports))
            started[system.name].append(order(system, "start"))
        with tempfile.TemporaryDirectory() as empty:
            started[cold].append(order(mine, "start", cache=Path(empty)))
    makes = {
        name: {system: [times[name] for times in each] for system, each in started.items()}
        for name in ("first make", "next make")
    }
    return [
        Part('`python -c "import ..."`', imports, (warm,), "under 0.5 s"),
        Part("The first make in a process", makes["first make"], (warm,), "under 2 s"),
        Part("The next make", makes["next make"], (warm,), "milliseconds"),
    ]


def _names(systems: Sequence[System]) -> list[str]:
    return [system.name for system in systems]


def _import(system: System, module: str) -> float:
    began = time.perf_counter()
    subprocess.run([str(system.python), "-c", f"import {module}"], check=True)
    return time.perf_counter() - began


def _path(peer: System) -> str:
    return "/msgpack" if peer.player == "play_gem" else "/retrieve"


def _player(
    system: System, do: str, rows: Sequence[Row], warm: int, passes: int, **where: Any
) -> Callable[[], list[float]]:
    """A run that plays episodes, checks their rewards, and returns the seconds of one in each pass."""
    played = rows[warm:]

    def run() -> list[float]:
        first = {"rows": rows[:warm], **where}
        told = order(system, do, rows=played, **where, passes=passes, warm=first)
        for rewards in told["results"]:
            wrong = [row["id"] for row, got in zip(played, rewards, strict=True) if got != row["reward"]]
            if wrong:
                raise PeerError(f"{system.name}: wrong rewards for {len(wrong)} questions, {wrong[0]} first")
        return [seconds / len(played) for seconds in told["seconds"]]

    return run


def _crowd(system: System, do: str, queries: list[list[str]], url: str) -> Callable[[], list[float]]:
    """A run in which environments search round by round; the seconds of one search, without the first."""

    def run() -> list[float]:
        told: dict[str, Any] = order(system, do, queries=queries, url=url, passes=len(queries))
        if any(found != len(queries[0]) for found in told["results"]):
            raise PeerError(f"{system.name}: not every environment found something: {told['results']}")
        return [seconds / len(queries[0]) for seconds in told["seconds"][1:]]

    return run
