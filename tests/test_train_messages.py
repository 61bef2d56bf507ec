"""What a user of the training commands is told: which name was meant, what has changed, what comes when."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llm_help import make_network, make_tokenizer, needs_transformers, save
from mempo_benchmarks.toy.compare import grouped
from mempo_env.cli import main
from mempo_trainers.config import PPO_CREDITS, Config
from mempo_trainers.credit import CREDITS
from mempo_trainers.llm.settings import Setup
from mempo_trainers.run_files import METRICS, RESULT, SETTINGS
from train_help import metrics

needs_transformers()

Said = Callable[..., str]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = make_tokenizer()
    return save(tmp_path_factory.mktemp("model"), make_network(tokenizer, window=4096), tokenizer)


@pytest.fixture
def said(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> Said:
    """The last line that a refused command says."""

    def refused(command: str, *changes: str, out: str = "run") -> str:
        made = [f"policy.model={model}", *changes]
        sets = [part for change in made for part in ("--set", change)]
        assert main(["train", command, "--out", str(tmp_path / out), *sets]) == 2
        return capsys.readouterr().err.splitlines()[-1]

    return refused


@pytest.mark.parametrize(
    ("command", "change", "told"),
    [
        ("llm", "lora_rank=3", "did you mean policy.lora_rank?"),
        ("llm", "policy.objectives=3", "did you mean task.objectives?"),
        ("llm", "config.evaluate_every=3", "did you mean evaluate_every?"),
        ("sft", "sft.examples=x", "did you mean examples?"),
        ("sft", "learning_rate=1", "did you mean sft.learning_rate?"),
        ("sft", "config.steps=3", "config.steps: no such setting; did you mean sft.steps?"),
        ("llm", "policy", "'policy': wanted a setting with its value, NAME=VALUE"),
        (
            "llm",
            "policy.model=",
            "model: wanted the name or the folder of a causal language model, got nothing",
        ),
        ("llm", "task.objectives=0", "objectives: wanted a whole number from 1 on, below 2**63, got 0"),
        ("llm", "config.credit=ppo", "did you mean algo=ppo, with credit=gae"),
        ("llm", "sampler.scorer=server", "needs sampler.url"),
        ("llm", "task.agent=oracle", "which asks none: choose from amem, bank"),
        ("sft", "task.agent=random", "which asks none: choose from amem, bank"),
        ("llm", "task.agent=react", "choose config.credit=grpo"),
        ("llm", "policy.lora_rank=100000", "lora_rank: wanted at most 32, the width of the network"),
        ("llm", "task.environment.memory=none", "memory: the agent 'mempo' plays with 'inline', got 'none'"),
        ("sft", "task.environment.context=full", "context: the agent 'mempo' plays with 'last_step'"),
        ("sft", "expert=mempoo", "did you mean 'mempo'?"),
        ("sft", "examples=/nowhere.jsonl", "examples: wanted a file of chats, found none: /nowhere.jsonl"),
        ("llm", "task.sets=1000000000", "sets: wanted a whole number from 1 to 1,000,000"),
        ("sft", "policy.warmup_steps=3", "sft has a schedule of its own"),
        ("llm", "config.credit=attribution", "choose task.agent=bank"),
    ],
)
def test_what_was_meant_is_said(command: str, change: str, told: str, said: Said, tmp_path: Path) -> None:
    assert told in said(command, change)
    assert not (tmp_path / "run").exists()


def test_a_divergence_of_memories_is_refused_where_there_are_none(said: Said) -> None:
    react = ("task.agent=react", "config.credit=grpo", "config.kl_tokens=memory")
    assert "kl_tokens: wanted 'all', as the agent 'react' has no memory" in said("llm", *react)


def test_a_file_that_nests_without_end_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (deep := tmp_path / "deep.toml").write_text(f"x = {'[' * 5_000}")
    assert main(["train", "llm", "--out", str(tmp_path / "run"), "--config", str(deep)]) == 2
    assert f"{deep}: wanted settings in TOML that can be read" in capsys.readouterr().err


def test_a_window_without_room_for_the_first_prompt_ends_the_run_by_saying_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = make_tokenizer()
    small = save(tmp_path / "small", make_network(tokenizer, window=200), tokenizer)
    changes = (f"policy.model={small}", "policy.max_new=8", "task.sets=4", "task.held_out=2")
    sets = [part for change in (*changes, "config.questions=2") for part in ("--set", change)]
    assert main(["train", "llm", "--out", str(tmp_path / "run"), *sets]) == 2
    told = capsys.readouterr().err
    assert "that all ended before their first round, the first one by " in told and "Warning" not in told


@pytest.mark.parametrize("algo", ["grpo", "ppo"])
@pytest.mark.parametrize("credit", sorted(CREDITS))
def test_a_credit_for_memory_is_refused_where_there_is_none(algo: str, credit: str, said: Said) -> None:
    if credit in PPO_CREDITS if algo == "ppo" else credit != "gae":
        told = said(
            "llm",
            f"config.algo={algo}",
            f"config.credit={credit}",
            "task.agent=react",
            "config.questions=9999",
        )
        refused = credit in ("mempo", "placebo", "spread", "mempo_gain", "memory_only")
        assert ("as the agent 'react' has none" in told) == refused, told


def test_a_setting_that_stands_twice_is_named_by_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "twice.toml"
    file.write_text('[policy]\nmodel = "x"\nmodel = "y"\n')
    assert main(["train", "sft", "--out", str(tmp_path / "run"), "--config", str(file)]) == 2
    error = capsys.readouterr().err
    assert str(file) in error and "stands there twice (at line 3," in error


def test_a_prompt_in_the_way_is_cut(said: Said) -> None:
    told = said("sft", "task.agent=memagent", "expert=memagent", "task.environment.system_prompt=")
    assert "system_prompt: the agent 'memagent' plays with 'Answer the question" in told and len(told) < 300
    assert "..." in told


def test_a_name_that_is_nowhere_is_refused_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub is asked once; it is not there."""
    asked: list[Any] = []

    def nowhere(host: Any, *_: Any, **__: Any) -> Any:
        asked.append(host)
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", nowhere)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    code = main(["train", "llm", "--out", str(tmp_path / "run"), "--set", "policy.model=nonesuch-model"])
    error = capsys.readouterr().err.splitlines()[-1]
    assert code == 2 and len(asked) <= 2
    assert (
        "'nonesuch-model': there is no such folder, it is not in the cache, and the hub did not tell" in error
    )


TINY = (
    *("policy.max_new=400", "task.objectives=1", "task.sets=6", "task.held_out=3", "evaluate_every=0"),
    *("task.environment.system_prompt=", "task.environment.max_rounds=6", "sft.batch=2"),
)


def sft(out: Path, model: Path, *changes: str) -> int:
    sets = [part for change in (f"policy.model={model}", *TINY, *changes) for part in ("--set", change)]
    return main(["train", "sft", "--out", str(out), *sets])


def test_more_steps_go_on_with_a_finished_imitation(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert sft(out, model, "sft.steps=2") == 0
    first = metrics(out)
    assert sft(out, model, "sft.steps=4") == 0
    assert metrics(out)[:2] == first and len(metrics(out)) == 4
    assert json.loads((out / SETTINGS).read_text())["sft"]["steps"] == 4
    assert sft(out, model, "sft.steps=3") == 2  # fewer than are done
    told = json.loads((out / RESULT).read_text())
    assert told["expert_right"] <= told["expert_episodes"] == 6 and told["texts_used"] <= told["texts"]


def test_a_file_that_has_changed_is_said_to_have(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "chats.jsonl"
    chat = {"messages": [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "me"}]}
    file.write_text(json.dumps(chat))
    assert sft(tmp_path / "run", model, "sft.steps=1", f"examples={file}") == 0
    file.write_text(json.dumps(chat).replace("Who", "What"))
    assert sft(tmp_path / "run", model, "sft.steps=1", f"examples={file}") == 2
    assert f"{file} has changed" in capsys.readouterr().err
    other = tmp_path / "other.jsonl"
    other.write_text(file.read_text())
    assert sft(tmp_path / "run", model, "sft.steps=1", f"examples={other}", "task.sets=7") == 2
    told = capsys.readouterr().err
    assert f"examples: '{file}' / '{other}'; task.sets: 6 / 7)" in told and "has changed" not in told


def test_more_steps_do_not_hide_what_has_changed(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sft(tmp_path / "run", model, "sft.steps=1") == 0
    settings = json.loads((tmp_path / "run" / SETTINGS).read_text())
    settings["data"]["dev"] = "0" * 16
    (tmp_path / "run" / SETTINGS).write_text(json.dumps(settings))
    assert sft(tmp_path / "run", model, "sft.steps=2") == 2
    told = capsys.readouterr().err
    assert "(there / here: sft.steps: 1 / 2; the choice of questions of 'dev' has changed)" in told


def test_a_line_that_is_no_chat_is_told_what_it_must_be(said: Said, tmp_path: Path) -> None:
    file = tmp_path / "chats.jsonl"
    file.write_text('{"messages": 3}\n')
    told = said("sft", f"examples={file}")
    assert f"{file}:1: " in told and "edited by hand" not in told
    line = told[told.index("such as ") + len("such as ") :]
    assert json.loads(line)["messages"][-1]["role"] == "assistant"


def test_runs_are_compared_by_name_and_by_what_people_set(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, steps in (("short", 2), ("long", 3)):
        out = tmp_path / name
        out.mkdir()
        settings = {
            "policy": {"model": "m"},
            "config": {"seed": 0, "steps": steps},
            "model": f"digest-{name}",
            "data": {"train": f"digest-{name}"},
        }
        (out / SETTINGS).write_text(json.dumps(settings))
        row = {"step": 1, "rollouts": 4, "success": 0.5, "groups": 1, "degenerate_groups": 0, "seconds": 1.0}
        (out / METRICS).write_text(json.dumps(row) + "\n")
        (out / RESULT).write_text(json.dumps({"success": 0.5}))
    assert list(grouped([tmp_path])) == ["steps=3", "steps=2"]
    assert main(["train", "compare", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "in short" in told and "in long" in told and "digest" not in told


def test_a_run_without_episodes_says_when_they_come(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / SETTINGS).write_text("{}")
    assert main(["view", str(tmp_path)]) == 2
    assert "has none yet" in capsys.readouterr().err


def test_the_docs_have_every_field_of_the_loop_with_its_default() -> None:
    page = (Path(__file__).resolve().parents[1] / "docs" / "llm.md").read_text()
    cells = [line.split("|")[1:3] for line in page.splitlines() if line.startswith("| `")]
    rows = [pair for names, held in cells for pair in zip(_parts(names), _parts(held), strict=False)]
    held = next(field.default for field in msgspec.structs.fields(Setup) if field.name == "config")
    for field in msgspec.structs.fields(Config):
        value = getattr(held, field.name)
        default = "none" if value is None else "" if value == {} else str(value)
        assert (f"`{field.name}`", default) in rows


def _parts(cell: str) -> list[str]:
    return [part.strip() for part in cell.split(",")]


def test_no_model_is_said_to_be_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "llm", "--out", str(tmp_path / "run")]) == 2
    assert "policy.model: wanted the name or the folder of a model, got none" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["toy", "llm"])
def test_a_run_of_another_kind_or_a_file_is_no_place_for_one(
    command: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "run.json").write_text("{}")
    more = ["--set", f"policy.model={model}"] if command == "llm" else []
    for name, told in (("file", "found a file"), ("bench", "holds a run of mempo bench (run.json)")):
        assert main(["train", command, "--out", str(tmp_path / name), *more]) == 2
        assert f"{told}; choose another --out" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "bench").iterdir()] == ["run.json"]


def test_agents_are_not_compared_in_the_folder_of_a_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "settings.json").write_text("{}")
    plan = ["bench", "run", "--dataset", "synthetic", "--agents", "random", "--episodes", "1", "--out"]
    assert main([*plan, str(tmp_path)]) == 2
    assert "holds a training run (settings.json); choose another --out" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["settings.json"]
