"""What is seen of a run while it learns: trackers, episodes of evaluations, the doctor."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from mempo_env.cli import main
from mempo_env.errors import ConfigError, MissingExtra
from mempo_trainers import trackers
from mempo_trainers.config import Config
from mempo_trainers.run import Run, read_metrics, read_settings
from mempo_trainers.trackers import IDENTITY, TRACKERS
from train_help import COMMAND, TASK

STEPS = {"config": {"steps": 3}}


class Standin(ModuleType):
    """A package with the two functions that both trackers have, which keeps what it is told."""

    def __init__(self, name: str, fails: str = "") -> None:
        super().__init__(name)
        self.__spec__ = SimpleNamespace(name=name)  # type: ignore[assignment]
        self.fails, self.opened, self.rows, self.closed = fails, [], [], 0  # type: ignore[var-annotated]

    def init(self, **asked: Any) -> Standin:
        self._do("init")
        self.opened.append(asked)
        return self

    def log(self, row: dict[str, Any], step: int | None = None) -> None:
        self._do("log")
        self.rows.append({"step": step, **row})

    def finish(self) -> None:
        self._do("finish")
        self.closed += 1

    def define_metric(self, name: str, step_metric: str) -> None:
        assert (name, step_metric) == ("*", "step")

    def Settings(self, **asked: Any) -> dict[str, Any]:
        return asked

    def _do(self, what: str) -> None:
        if what == self.fails:
            raise RuntimeError(f"no {what} today\nand a second line")


@pytest.fixture(params=sorted(TRACKERS))
def name(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


def stand_in(name: str, monkeypatch: pytest.MonkeyPatch, fails: str = "") -> Standin:
    made = Standin(name, fails)
    monkeypatch.setitem(sys.modules, name, made)
    return made


def logged(out: Path, name: str, steps: int = 3) -> None:
    settings = {"config": {"steps": steps}}
    with Run(out, settings, track=[name]) as run:
        for step in run.steps(TASK.make_policy(Config()), steps, 1):
            run.log(step, success=step / 4, credit="mempo")


# --- Trackers ----------------------------------------------------------------------------------------------


def test_a_tracker_gets_what_is_in_the_rows(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = stand_in(name, monkeypatch)
    logged(tmp_path / "run", name)
    assert package.rows == read_metrics(tmp_path / "run")
    (asked,) = package.opened
    assert asked["config"] == STEPS and asked["resume"] == "allow" and package.closed == 1


def test_a_run_that_goes_on_is_the_same_at_the_tracker(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = stand_in(name, monkeypatch)
    logged(tmp_path / "run", name, steps=2)
    logged(tmp_path / "run", name, steps=4)
    logged(tmp_path / "other" / "run", name, steps=1)
    key = {"wandb": "id", "trackio": "name"}[name]
    first, again, other = (asked[key] for asked in package.opened)
    assert first == again != other and (tmp_path / "run" / IDENTITY).read_text() in first
    assert [row["step"] for row in package.rows] == [1, 2, 3, 4, 1]


@pytest.mark.parametrize(("fails", "rows"), [("init", 0), ("log", 0), ("finish", 3)])
def test_a_tracker_that_fails_is_told_once_and_stops_nothing(
    fails: str,
    rows: int,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    package = stand_in(name, monkeypatch, fails)
    logged(tmp_path / "run", name)
    assert len(read_metrics(tmp_path / "run")) == 3 and len(package.rows) == rows
    told = [line for line in capsys.readouterr().err.splitlines() if name in line]
    assert told == [
        f"{tmp_path / 'run'}: {name} failed, the run goes on without it (RuntimeError: no {fails} today)"
    ]


def test_a_run_that_fails_closes_its_trackers(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = stand_in(name, monkeypatch)
    with pytest.raises(ZeroDivisionError), Run(tmp_path / "run", STEPS, track=[name]) as run:
        for step in run.steps(TASK.make_policy(Config()), 3, 1):
            run.log(step, success=1 / (2 - step))
    assert [row["step"] for row in package.rows] == [1] and package.closed == 1


@pytest.mark.parametrize(("asked", "mode"), [(None, "offline"), ("", "offline"), ("online", "online")])
def test_weights_and_biases_is_offline_unless_somebody_wants_it_otherwise(
    asked: str | None, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = stand_in("wandb", monkeypatch)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    if asked is not None:
        monkeypatch.setenv("WANDB_MODE", asked)
    logged(tmp_path / "run", "wandb")
    assert package.opened[0]["mode"] == mode and package.opened[0]["dir"] == tmp_path / "run"


def test_what_is_unknown_or_missing_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="unknown tracker 'wandbb': did you mean 'wandb'"):
        Run(tmp_path / "run", STEPS, track=["wandbb"])
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install 'mempo\[trackio\]'"):
        Run(tmp_path / "run", STEPS, track=["trackio"])
    assert not (tmp_path / "run").exists()


def test_the_command_tracks(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = stand_in(name, monkeypatch)
    assert main([*COMMAND, "--steps", "2", "--track", name, "--out", str(tmp_path / "run")]) == 0
    assert [row["step"] for row in package.rows] == [1, 2]
    assert "track" not in json.dumps(read_settings(tmp_path / "run"))


@pytest.mark.slow
def test_the_real_trackers_keep_one_run_on_this_machine(name: str, tmp_path: Path) -> None:
    """Two processes, the second of which goes on: one run of trackio, two parts of one of wandb."""
    pytest.importorskip(name, reason=f"needs mempo[{name}]")
    code = (
        "import sys; from test_llm_watch import *; logged(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))"
    )
    there = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TRACKIO_DIR": str(tmp_path / "kept")}
    there.pop("WANDB_MODE", None)
    out = tmp_path / "run"
    for steps in ("2", "3"):
        subprocess.run([sys.executable, "-c", code, out, name, steps], env=there, check=True)
    identity = (out / IDENTITY).read_text()
    if name == "wandb":
        kept = [*(out / "wandb").glob(f"offline-run-*-{identity}/run-{identity}.wandb")]
        assert len(kept) == 2 and all(b"success" in file.read_bytes() for file in kept)
        return
    (file,) = (tmp_path / "kept").glob("*.db")
    asked = "select run_name, step, json_extract(metrics, '$.success') from metrics order by id"
    with closing(sqlite3.connect(file)) as database:
        found = database.execute(asked).fetchall()
    assert found == [(f"run-{identity}", step, step / 4) for step in (1, 2, 3)]
