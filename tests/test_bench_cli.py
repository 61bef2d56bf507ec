"""What `mempo bench run` says beside the run itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from answering import chat
from mempo_agents import AGENTS
from mempo_env.cli import main
from scripted import ok, serving

OWN = """
from mempo_agents.models.table import make_model
from mempo_agents.rounds import ModelAgent, one_call

def deaf():
    return ModelAgent(name="deaf", play=one_call, model=make_model("scripted"), env_kwargs={})
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_help_lists_the_agents(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "run", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert all(name in shown for name in AGENTS)


def prepare(folder: Path, *split: str) -> None:
    """Ten HotpotQA questions, of which each goes into a split by a hash of its id."""
    row = {"answer": "x", "supporting_facts": [["A", 0]], "context": [["A", ["It is x."]]], "type": "bridge"}
    rows = [{**row, "_id": f"id{i}", "question": f"What is {i}?", "level": "easy"} for i in range(10)]
    (folder / "ten.json").write_text(json.dumps(rows))
    assert main(["data", "prepare", "hotpotqa", "ten.json", "--out", f"hp{''.join(split)}", *split]) == 0


def test_few_questions_in_a_split_are_told_of(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ten questions of one's own: the dev split has one of them, and nothing said why."""
    prepare(folder)
    assert "--split dev puts all of them into dev" in capsys.readouterr().out.replace("\n", " ")
    run = ["bench", "run", "--agents", "react", "--dataset", "hp", "--out", "few", "--split", "train"]
    assert main(run) == 0
    told = capsys.readouterr()
    assert "note: split 'train' has few questions (" in told.err
    prepare(folder, "--split", "dev")
    assert "few questions" not in capsys.readouterr().out


def test_one_s_own_without_its_module_is_told_how_it_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All agents were listed, and not how to name one of one's own, whose file lay there."""
    (folder / "copycat.py").write_text("def helper():\n    pass\n\nclass Copycat:\n    name = 'c'\n")
    run = ["bench", "run", "--dataset", "synthetic", "--episodes", "1", "--out", "run"]
    for option in ("--agents", "--model"):
        assert main([*run, option, "copycat"]) == 2
        error = capsys.readouterr().err
        assert error.endswith("; one of your own is named module:thing, as in copycat:Copycat\n")
        assert main([*run, option, "mmpo"]) == 2
        assert capsys.readouterr().err.endswith("; one of your own is named module:thing\n")
    (folder / "copycat.py").write_text("class :")
    assert main([*run, "--agents", "copycat"]) == 2
    assert capsys.readouterr().err.endswith("; one of your own is named module:thing\n")


def test_one_episode_is_an_episode(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = ["bench", "run", "--agents", "react", "--dataset", "synthetic", "--episodes", "1", "--out", "one"]
    assert main(run) == 0
    told = capsys.readouterr()
    assert "one: 4 agents, 1 episode each" in told.out
    assert told.err.count("note: ") == 1 and "note: add no_memory to know what memory is worth" in told.err
    assert main([*run, "--agents", "react,no_memory", "--out", "both"]) == 0
    assert "note: " not in capsys.readouterr().err


def test_agents_of_ones_own_that_ask_another_model_are_told_of(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "own_deaf.py").write_text(OWN)
    run = ["bench", "run", "--dataset", "synthetic", "--episodes", "1", "--out", "run"]
    with serving(ok(chat())) as server:
        model = ["--model", f"endpoint:m@{server.url}/v1"]
        assert main([*run, "--agents", "own_deaf:deaf,react", *model]) == 0
    assert "note: own_deaf:deaf asks scripted" in capsys.readouterr().err
