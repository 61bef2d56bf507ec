"""The model behind a run: how it samples, that it is loaded once, and that it answers at all."""

from __future__ import annotations

import itertools
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from answering import chat
from mempo_agents.models.base import ModelError, Sampling
from mempo_agents.models.table import ask_once, make_model
from mempo_benchmarks.results import FullRow, read_plan, read_rows
from mempo_benchmarks.run import bench, make_plan
from mempo_env.cli import main
from mempo_env.errors import ConfigError
from mempo_env.types import Call, StopReason
from scripted import Behaviour, Scripted, ok, serving, status

COMMAND = [
    "bench",
    "run",
    "--dataset",
    "synthetic",
    "--agents",
    "mempo",
    "--episodes",
    "2",
    "--num-envs",
    "1",
]
ANSWERS = ok(chat())


def bodies(server: Scripted) -> list[dict[str, Any]]:
    return [json.loads(request.partition(b"\r\n\r\n")[2]) for request in server.requests]


def test_sampling_is_sent_recorded_and_compared_on_resume(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    with serving(ANSWERS) as server:
        command = [*COMMAND, "--model", f"endpoint:m@{server.url}/v1", "--out", str(out)]
        warm = ["--sampling", "temperature=0.7", "--sampling", "max_tokens=99", "--sampling", "seed=5"]
        assert main([*command, *warm]) == 0
        asked, *played = bodies(server)
        assert (asked["max_tokens"], asked["temperature"]) == (1, 0.7)
        assert [(b["temperature"], b["max_tokens"], b["top_p"]) for b in played] == [(0.7, 99, 1.0)] * 2
        assert played[0]["seed"] == 5 != played[1]["seed"], "each episode draws on its own"
        assert read_plan(out).sampling == {"temperature": 0.7, "top_p": 1.0, "max_tokens": 99, "seed": 5}
        assert main([*command, *warm]) == 0, "the same again is gone on with"
        capsys.readouterr()
        assert main([*command, "--sampling", "temperature=0.2"]) == 2
        told = capsys.readouterr().err
        assert "sampling temperature=0.7, top_p=1.0, max" in told and "temperature=0.2" in told
        assert main(command) == 2
        assert "/ as by default" in capsys.readouterr().err
    assert main(["bench", "report", str(out)]) == 0
    assert "temperature=0.7, top_p=1.0, max_tokens=99, seed=5" in (out / "report.html").read_text()


@pytest.mark.parametrize(
    ("pairs", "model", "told"),
    [
        (["temprature=1"], "endpoint:m@http://127.0.0.1:9/v1", "did you mean 'temperature'"),
        (
            ["temperature=warm"],
            "endpoint:m@http://127.0.0.1:9/v1",
            "temperature: wanted a number from 0 to 100",
        ),
        (["max_tokens=0.5"], "endpoint:m@http://127.0.0.1:9/v1", "max_tokens: wanted a whole number"),
        (["seed"], "endpoint:m@http://127.0.0.1:9/v1", "wanted NAME=VALUE, each name once, got 'seed'"),
        (["seed=1", "seed=2"], "endpoint:m@http://127.0.0.1:9/v1", "each name once, got 'seed=2'"),
        (
            ["seed=1"],
            "scripted",
            "wanted a model that takes it (endpoint, huggingface, sglang), got 'scripted'",
        ),
    ],
)
def test_sampling_that_cannot_be_is_one_line_and_leaves_nothing(
    pairs: list[str], model: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [part for pair in pairs for part in ("--sampling", pair)]
    assert main([*COMMAND, "--model", model, *given, "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert told in said and said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


MODEL = """
from mempo_env.types import Call

made = []

class Counted:
    name, fingerprint = "counted", "counted-1"

    def __init__(self):
        made.append(self)

    def generate(self, prompts):
        return [Call(output="<answer>nobody</answer>") for _ in prompts]
"""


def test_a_model_is_made_once_for_a_plan_and_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan and its run loaded the weights of a model once each."""
    (tmp_path / "counted_model.py").write_text(MODEL)
    monkeypatch.syspath_prepend(tmp_path)
    plan = make_plan("synthetic", ["mempo", "react"], model="counted_model:Counted", episodes=1)
    bench(plan, tmp_path / "run")
    import counted_model  # type: ignore[import-not-found]

    assert len(counted_model.made) == 1


def nobody_listens() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"http://127.0.0.1:{free.getsockname()[1]}"


NO_MODEL = json.dumps({"error": {"message": "no model m"}}).encode()


@pytest.mark.parametrize(
    ("fault", "told", "requests"),
    [
        (status(404, body=NO_MODEL), "status 404: no model m", 1),
        (status(401), "status 401", 1),
        (status(500), "in 2 of 2 tries (status 500", 2),
        (None, "in 2 of 2 tries", 0),
    ],
)
def test_a_model_that_does_not_answer_is_one_line_and_leaves_nothing(
    fault: Behaviour | None,
    told: str,
    requests: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A wrong name, a refused key or a dead server were as many failed rows as there are episodes."""
    with serving(fault or ANSWERS) as server:
        url = nobody_listens() if fault is None else server.url
        assert main([*COMMAND, "--model", f"endpoint:m@{url}/v1", "--out", str(tmp_path / "run")]) == 2
        assert len(server.requests) == requests
    said = capsys.readouterr().err
    assert told in said and said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_fails_later_is_rows(tmp_path: Path) -> None:
    number = itertools.count(1)
    with serving(lambda asked: (ANSWERS if next(number) <= 2 else status(400))(asked)) as server:
        command = [*COMMAND, "--model", f"endpoint:m@{server.url}/v1", "--out", str(tmp_path / "run")]
        assert main(command) == 0
    rows = [
        r for r in read_rows(tmp_path / "run", read_plan(tmp_path / "run"), FullRow) if r.agent == "mempo"
    ]
    assert [row.stop_reason for row in rows] == [StopReason.ANSWERED, StopReason.MODEL_ERROR]


OWN = """
from mempo_agents.models.table import make_model
from mempo_agents.rounds import ModelAgent, one_call

def deaf():
    return ModelAgent(name="deaf", play=one_call, model=make_model("scripted"), env_kwargs={})

def hearing(model):
    return ModelAgent(name="hearing", play=one_call, model=model, env_kwargs={})
"""


def test_a_model_that_no_agent_asks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents of one's own played the scripted model whatever `--model` said, and nobody was told."""
    (tmp_path / "own_hearing.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    dead = f"endpoint:m@{nobody_listens()}/v1"
    for agents in ([], ["own_hearing:deaf"]):
        with pytest.raises(
            ConfigError, match=r"model: none of the agents .* asks 'endpoint:m@.* parameter `model`"
        ):
            make_plan("synthetic", agents, episodes=1, model=dead)
    with pytest.raises(ModelError, match="in 2 of 2 tries"):
        make_plan("synthetic", ["own_hearing:hearing"], episodes=1, model=dead)
    with serving(ANSWERS) as server:
        both = ["own_hearing:deaf", "own_hearing:hearing"]
        plan = make_plan("synthetic", both, episodes=1, model=f"endpoint:m@{server.url}/v1")
    assert {arm.agent: arm.model for arm in plan.arms if arm.model} == dict(
        zip(both, ["scripted", "m"], strict=True)
    )


class Odd:
    name = fingerprint = "odd"

    def __init__(self, answers: list[Any]) -> None:
        self.answers = answers

    def generate(self, prompts: Any) -> Any:
        return self.answers


def test_a_model_that_does_not_do_what_a_model_does_is_refused() -> None:
    ask_once(Odd([Call(output="yes")]))
    with pytest.raises(ModelError, match="broken"):
        ask_once(Odd([ModelError("broken")]))
    for answers in ([], [Call(), Call()], None):
        with pytest.raises(ConfigError, match="model 'odd': wanted an answer to each prompt"):
            ask_once(Odd(answers))  # type: ignore[arg-type]


def test_sampling_decides_what_is_compared() -> None:
    cold, warm = (
        make_model("endpoint:m@http://127.0.0.1:9/v1", sampling)
        for sampling in (None, Sampling(temperature=0.5))
    )
    assert cold.fingerprint != warm.fingerprint
    with pytest.raises(ConfigError, match="one of your own says itself how it samples"):
        make_model("counted_model:Counted", Sampling())
