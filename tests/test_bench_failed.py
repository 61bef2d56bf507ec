"""What failed: told at the end of a run, with its place, and played again where it was no agent's fault."""

from __future__ import annotations

import itertools
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import pytest

from mempo_agents import AGENTS, Context
from mempo_benchmarks import watch
from mempo_benchmarks.results import RESULTS, FullRow, Row, read_plan, read_rows
from mempo_benchmarks.run import bench, make_plan
from mempo_env import progress
from mempo_env.cli import main
from mempo_env.types import Failure, StopReason
from runs import ended, mempo

BROKEN = """
from mempo_agents.scripted import Scripted

def deep(context):
    return {}["key that\\nis not there"]

def write(context):
    return deep(context)

agent = Scripted(write, "broken", "broken-1")
"""

MOODY = """
import os
import signal
from pathlib import Path

from mempo_agents.models.base import ModelError
from mempo_agents.scripted import Scripted

played = 0

def write(context):
    global played
    if Path("down").exists() and context.question_id not in Path("up").read_text():
        return ModelError("nobody listens")
    played += 1
    if Path("kill").exists() and played > 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return "<answer>x</answer>"

agent = Scripted(write, "moody", "moody-1")
"""

COMMAND = ["bench", "run", "--dataset", "synthetic", "--out", "run", "--num-envs", "1"]


def rows_of(agent: str) -> list[FullRow]:
    rows = read_rows(Path("run"), read_plan(Path("run")), FullRow)
    return sorted((row for row in rows if row.agent == agent), key=lambda row: row.index)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_an_agent_that_crashes_is_told_with_its_place(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was an agent that ran out of its budget, and nobody was told why."""
    (folder / "failing_broken.py").write_text(BROKEN)
    assert main([*COMMAND, "--agents", "failing_broken:agent", "--episodes", "3"]) == 1
    line, first = capsys.readouterr().err.splitlines()[-2:]
    assert line == "failed: failing_broken:agent, 3 of 3 episodes (3 agent_error)"
    assert first == "  the first: KeyError: 'key that\\nis not there' (failing_broken.py:5)"
    for row in rows_of("failing_broken:agent"):
        assert (row.failure, row.masked) == ((Failure.AGENT_ERROR,), False)
        assert row.stop_detail == row.episode.stop_detail


def test_what_failed_by_no_fault_of_the_agent_is_played_again_and_nothing_is_lost(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A retry is killed on its way: what failed before stays until it has another result."""
    (folder / "failing_moody.py").write_text(MOODY)
    command = [*COMMAND, "--agents", "failing_moody:agent", "--episodes", "8"]
    ids = read_ids(8)
    (folder / "down").touch()
    (folder / "up").write_text(" ".join(ids[:2]))
    assert ended(mempo(*command))[0] == 0
    before = (folder / "run" / RESULTS).read_bytes()
    assert [row.masked for row in rows_of("failing_moody:agent")] == [False] * 2 + [True] * 6
    assert ended(mempo(*command))[0] == 0
    assert (folder / "run" / RESULTS).read_bytes() == before, "by itself nothing is played again"

    (folder / "down").unlink()
    (folder / "kill").touch()
    assert ended(mempo(*command, "--retry-failed"))[0] == -signal.SIGKILL
    assert (folder / "run" / RESULTS).read_bytes().startswith(before)
    assert [row.masked for row in rows_of("failing_moody:agent")] == [False] * 5 + [True] * 3
    assert main(["bench", "report", "run"]) == 0
    assert "3 failed" in capsys.readouterr().out

    (folder / "kill").unlink()
    assert ended(mempo(*command, "--retry-failed"))[0] == 0
    found = rows_of("failing_moody:agent")
    assert [row.stop_reason for row in found] == [StopReason.ANSWERED] * 8
    assert [row.question_id for row in found] == ids
    after = (folder / "run" / RESULTS).read_bytes()
    assert ended(mempo(*command, "--retry-failed"))[0] == 0
    assert (folder / "run" / RESULTS).read_bytes() == after, "nothing is left to be played again"


DYING = """
import os, sys; sys.path.insert(0, {tests!r})
from answering import chat
from scripted import ok, serving
def last(asked):
    ok(chat())(asked)
    os._exit(0)
with serving(*[ok(chat())] * {answers}, last, port={port}) as server:
    print(server.port, flush=True)
    server.stopped.wait()
"""


def test_a_run_whose_server_is_gone_stops_and_goes_on_when_it_is_back(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A real process that dies halfway: all agents failed to the end, and one error was told six times."""
    command = [*COMMAND[:-1], "10", "--episodes", "30", "--agents", "react,mempo,mem1"]
    with socket.create_server(("127.0.0.1", 0)) as free:  # nobody waits in it, so it is free at once
        port = free.getsockname()[1]  # the same one each time: a run does not go on with another server

    def served(answers: int, *options: str) -> int:
        code = DYING.format(tests=str(Path(__file__).parent), answers=answers, port=port)
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None and int(server.stdout.readline()) == port
            try:
                return main([*command, "--model", f"endpoint:m@http://127.0.0.1:{port}/v1", *options])
            finally:
                server.kill()

    assert served(40) == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith(
        "mempo: run: stopped, for 20 episodes in a row failed by no fault of the agent, the"
    )
    assert "nothing listens there" in line
    assert line.endswith("run the same command with --retry-failed, which plays them again and goes on")
    assert [row.masked for row in rows_of("react")] == [False] * 30
    assert sum(row.masked for row in rows_of("mempo")) == 20
    assert rows_of("mem1") == [], "nothing is asked any more"
    assert served(1_000, "--retry-failed") == 0
    for agent in ("react", "mempo", "mem1"):
        assert [row.masked for row in rows_of(agent)] == [False] * 30


def test_agents_that_failed_for_one_reason_are_told_together(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "failing_moody.py").write_text(MOODY + 'other = Scripted(write, "other", "other-1")\n')
    (folder / "down").touch()
    (folder / "up").touch()
    assert main([*COMMAND, "--agents", "failing_moody:agent,failing_moody:other", "--episodes", "2"]) == 1
    assert capsys.readouterr().err.count("nobody listens") == 1
    assert main(["bench", "report", "run"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    named = "failing_moody:agent", "failing_moody:other"
    assert f"2 of 2 {named[0]}, 2 of 2 {named[1]} episodes failed by no fault of the agent: " in told
    assert told.count("nobody listens") == 1
    assert (
        f"{', '.join(named)} did not play: 2 of 2 episodes failed; they have no part in differences and front"
    ) in told


def test_a_retry_that_fails_again_is_one_result(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "failing_moody.py").write_text(MOODY)
    (folder / "down").touch()
    (folder / "up").touch()
    command = [*COMMAND, "--agents", "failing_moody:agent", "--episodes", "2"]
    for retry in ([], ["--retry-failed"], ["--retry-failed"]):
        capsys.readouterr()
        assert main([*command, *retry]) == 1
        told = capsys.readouterr().err
        assert "2 of 2 episodes (2 model_error), 2 by no fault of the agent" in told
        assert "the first: ModelError: nobody listens" in told.replace("mempo_agents.models.base.", "")
    assert len(rows_of("failing_moody:agent")) == 2


def read_ids(count: int) -> list[str]:
    return list(make_plan("synthetic", [], episodes=count).questions)


# --- Time --------------------------------------------------------------------------------------------------


class Slow:
    """Takes a second of a clock of its own for each batch; searches once, and every second episode twice."""

    name = fingerprint = "slow"
    env_kwargs: Mapping[str, object] = MappingProxyType({"context": "full"})

    def __init__(self, clock: list[float]) -> None:
        self.clock = clock

    def act(self, contexts: Sequence[Context]) -> list[str]:
        self.clock[0] += 12.0
        return [self.write(context) for context in contexts]

    def write(self, context: Context) -> str:
        searched = sum(segment.kind == "call" for segment in context.segments)
        wanted = 1 + int(context.question_id[-1]) % 2
        return "<search> x </search>" if searched < wanted else "<answer> x </answer>"


def test_episodes_that_are_played_together_share_the_time_of_their_rounds(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All of it was booked on the episode that was written first; the others took no time."""
    clock = [0.0]
    monkeypatch.setitem(AGENTS, "slow", lambda *_: Slow(clock))
    monkeypatch.setattr(watch.time, "monotonic", lambda: clock[0])
    plan = make_plan("synthetic", ["slow"], episodes=4)
    bench(plan, Path("run"), num_envs=4)
    longer = [1 + int(question_id[-1]) % 2 == 2 for question_id in plan.questions]
    assert 0 < sum(longer) < 4, "episodes of both lengths"
    both, rest = 2 * 12 / 4, 12 / sum(longer)
    rows = [row for row in read_rows(Path("run"), plan, Row) if row.agent == "slow"]
    assert {row.index: row.seconds for row in rows} == {
        i: pytest.approx(both + rest * late) for i, late in enumerate(longer)
    }
    lines = [line for line in capsys.readouterr().err.splitlines() if "slow" in line]
    assert lines[0].startswith("bench: 8 of 16 episodes") and lines[0].endswith("; slow, 4 rounds")


def test_a_line_tells_of_work_of_which_nothing_is_finished(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    times = itertools.count(0.0, 6.0)
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(times))
    with progress.progress("bench", 3, 0, "episodes") as advance:
        advance(0, "slow, 1 rounds")
        advance(0, "slow, 2 rounds")
    assert "bench: 0 of 3 episodes, 0/s; slow, 2 rounds" in capsys.readouterr().err
