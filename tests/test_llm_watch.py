"""What is seen of a run while it learns: trackers, episodes of evaluations, the doctor."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import pytest

from llm_help import make_network, make_tokenizer, needs_transformers, save
from mempo_env.cli import main
from mempo_env.errors import ConfigError, MissingExtra
from mempo_env.files import read_jsonl
from mempo_env.types import Episode
from mempo_trainers import trackers
from mempo_trainers.config import Config
from mempo_trainers.doctor import SYMPTOMS, diagnose
from mempo_trainers.llm.settings import Sampler, Setup, SftSetup, Task, read_setup
from mempo_trainers.llm.train import SHOWN, train
from mempo_trainers.policies.huggingface import PolicySettings
from mempo_trainers.run import Run
from mempo_trainers.run_files import read_metrics, read_settings
from mempo_trainers.sft import SftConfig
from mempo_trainers.trackers import IDENTITY, TRACKERS
from train_help import COMMAND, TASK

needs_transformers()

STEPS = {"config": {"steps": 3}}


class Standin(ModuleType):
    """A package with the two functions that both trackers have, which keeps what it is told."""

    def __init__(self, name: str, fails: str = "") -> None:
        super().__init__(name)
        self.__spec__ = SimpleNamespace(name=name, origin="here")  # type: ignore[assignment]
        self.fails, self.opened, self.rows, self.closed = fails, [], [], 0  # type: ignore[var-annotated]
        self.fault: BaseException = RuntimeError(f"no {fails} today\nand a second line")

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
            raise self.fault


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


@pytest.mark.parametrize("fails", ["init", "log", "finish"])
def test_a_tracker_that_leaves_the_process_does_not(
    fails: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in(name, monkeypatch, fails).fault = SystemExit(3)
    logged(tmp_path / "run", name)
    assert len(read_metrics(tmp_path / "run")) == 3
    assert f"{name} failed, the run goes on without it (SystemExit: 3)" in capsys.readouterr().err


def test_a_mere_folder_of_a_trackers_name_is_no_tracker(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(MissingExtra, match=rf"pip install 'mempo\[{name}\]'"):
        Run(tmp_path / "run", STEPS, track=[name])


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


# --- Episodes ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = make_tokenizer()
    return save(tmp_path_factory.mktemp("model"), make_network(tokenizer, window=4096), tokenizer)


@pytest.fixture(scope="module")
def taught(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with evaluations after steps 2 and 4, and at the end."""
    out = tmp_path_factory.mktemp("taught") / "run"
    environment = {"system_prompt": "", "hint": False, "top_k": 1, "max_rounds": 2}
    task = Task(objectives=1, sets=6, held_out=10, environment=environment)  # type: ignore[arg-type]
    loop = {"steps": 4, "questions": 2, "rollouts": 2, "learning_rate": 1e-3}
    config = msgspec.structs.replace(Setup.__struct_defaults__[2], **loop)
    policy = PolicySettings(model=str(model), max_new=12)
    train(Setup(policy=policy, task=task, config=config, evaluate_every=2), out)
    return out


def test_each_evaluation_leaves_its_first_episodes(taught: Path) -> None:
    files = sorted(taught.glob("episodes-*.jsonl"))
    assert [file.name for file in files] == [f"episodes-{n}.jsonl" for n in ("000002", "000004", "test")]
    for file in files:
        played = [episode for _, episode in read_jsonl(file, Episode)]
        assert len(played) == SHOWN == 8 and len({episode.question_id for episode in played}) == 8
        assert all(round.calls[0].prompt_ids for episode in played for round in episode.rounds)


def test_the_view_command_shows_them(
    taught: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    assert main(["view", str(taught), "--out", str(page)]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "step 2 8, step 4 8, test 8 episodes"
    shown = page.read_text()
    with (taught / "episodes-000002.jsonl").open("rb") as lines:
        first = msgspec.json.decode(next(lines), type=Episode)
    assert msgspec.json.encode(first.questions[0].text).decode().strip('"') in shown
    assert main(["view", str(taught), "--agent", "test", "--limit", "3", "--out", str(page)]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "test 3 episodes"
    assert main(["view", str(taught), "--agent", "stp 2", "--out", str(page)]) == 2
    assert "did you mean 'step 2'" in capsys.readouterr().err


def test_episodes_that_were_edited_are_refused_by_line(
    taught: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = (taught / "episodes-000002.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "episodes-000002.jsonl").write_bytes(b"".join([lines[0], lines[1][:-9], b"\n"]))
    assert main(["view", str(tmp_path)]) == 2
    assert f"{tmp_path}/episodes-000002.jsonl:2: " in capsys.readouterr().err
    assert not (tmp_path / "episodes.html").exists()


# --- The doctor --------------------------------------------------------------------------------------------


def test_a_run_of_a_language_model_logs_all_that_the_doctor_reads(taught: Path) -> None:
    rows, settings = read_metrics(taught), read_settings(taught)
    for symptom in SYMPTOMS.values():
        for field in symptom.needs.split():
            assert all(field in row for row in rows), field
    found = diagnose(rows, settings)
    assert found.planned == 4 and not any("not in the metrics" in why for why in found.unchecked.values())


SICK: dict[str, Callable[[int], dict[str, float]]] = {
    "sampler_gap": lambda step: {"sampler_gap": 0.2 if step == 7 else 0.0},
    "memory_grows": lambda step: {"memory_length": 10.0 * step},
    "retrieval_slow": lambda step: {"environment_seconds": 0.05 * step},
    "memory_empty": lambda step: {"memory_empty": 0.95},
    "guessed": lambda step: {"guessed": 0.5},
    "first_kl": lambda step: {"kl": 0.01},
    "not_finite": lambda step: {"skipped_updates": 1.0 if step == 3 else 0.0},
}


@pytest.mark.parametrize("symptom", SICK)
def test_each_symptom_shows_in_such_a_run(
    symptom: str, taught: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run's own rows, repeated, with one thing wrong."""
    rows = read_metrics(taught)
    well = {
        "invalid": 0.0,
        "memory_empty": 0.0,
        "memory_length": 5.0,
        "environment_seconds": 0.01,
        "guessed": 0.0,
        "kl": 0.0,
    }
    sick = [{**rows[0], **well, "step": step, **SICK[symptom](step)} for step in range(1, 17)]
    (tmp_path / "settings.json").write_bytes((taught / "settings.json").read_bytes())
    (tmp_path / "metrics.jsonl").write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in sick))
    assert main(["doctor", str(tmp_path), "--json"]) == 1
    names = [finding["symptom"] for finding in json.loads(capsys.readouterr().out)["findings"]]
    assert symptom in names and not set(names) & SICK.keys() - {symptom}


def test_the_doctor_says_what_little_it_can_of_imitation(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chats = tmp_path / "chats.jsonl"
    chat = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "<search> who </search>"}]
    chats.write_text(json.dumps({"messages": chat}) + "\n")
    changes = {
        "policy.model": model,
        "policy.max_new": 12,
        "examples": chats,
        "task.objectives": 1,
        "task.held_out": 1,
        "task.environment.max_rounds": 2,
        "sft.steps": 2,
    }
    sets = [part for name, value in changes.items() for part in ("--set", f"{name}={value}")]
    assert main(["train", "sft", *sets, "--out", str(tmp_path / "run")]) == 0
    assert (tmp_path / "run" / "episodes-test.jsonl").exists()
    capsys.readouterr()
    assert main(["doctor", str(tmp_path / "run")]) == 0
    told = capsys.readouterr().out
    assert told.splitlines() == [
        f"{tmp_path / 'run'}: nothing found by 1 of 15 checks",
        "checked, fine: not_finite: all advantages, losses and gradients are finite",
        "not checked: all others: a run of sft has no rollouts",
    ]
    rows = (tmp_path / "run" / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "run" / "metrics.jsonl").write_bytes(rows[0])
    assert main(["doctor", str(tmp_path / "run")]) == 0
    assert "unfinished, 1 of 2 steps; nothing found by 1 of" in capsys.readouterr().out


def test_a_model_that_writes_no_action_is_told_so_in_the_settings_of_the_command(taught: Path) -> None:
    """The model of the tests has learned nothing: what it writes is noise."""
    first, *_ = diagnose(read_metrics(taught), read_settings(taught)).findings
    assert (first.symptom, first.severity) == ("invalid_rounds", "error")
    assert "100% of rounds are invalid" in first.evidence
    assert first.evidence.endswith("tokens are written in a call then, at most 12")
    assert "policy.max_new" in first.action and "mempo train sft" in first.action


# --- The page ----------------------------------------------------------------------------------------------

PAGE = (Path(__file__).parents[1] / "docs" / "llm.md").read_text()


def test_the_settings_that_the_page_shows_and_does_not_run_are_settings(tmp_path: Path) -> None:
    (text,) = re.findall(r"^```text\n(evaluate_every.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    file = tmp_path / "llm.toml"
    file.write_text(text)
    made = read_setup(Setup, file, [])
    assert (made.policy.lora_rank, made.config.questions, made.evaluate_every) == (32, 16, 10)


@pytest.mark.parametrize("kind", [PolicySettings, Task, Sampler, SftConfig, SftSetup])
def test_the_page_names_every_setting(kind: type[msgspec.Struct]) -> None:
    table = PAGE[PAGE.index("## Settings") : PAGE.index("## What is written")]
    assert not [name for name in kind.__struct_fields__ if f"`{name}`" not in table]


def test_tokens_a_second_leave_out_the_time_of_an_evaluation(tmp_path: Path) -> None:
    with Run(tmp_path / "run", {}) as run:
        run._start = time.perf_counter() - 10
        run.log(1, completion_tokens=1_000, dev_seconds=9.5)
        assert run._told.startswith("tokens/s ") and 1_000 < float(run._told.split()[1]) <= 2_000
