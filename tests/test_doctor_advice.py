"""What the doctor advises can be done: in settings of the run's own command, and none that are so already."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from mempo_trainers import doctor
from mempo_trainers.cli import app
from mempo_trainers.config import Config
from mempo_trainers.doctor.credit import denser, pays_memory
from mempo_trainers.doctor.figures import option
from mempo_trainers.llm.settings import Setup, SftSetup, Task, read_setup
from mempo_trainers.policies.huggingface.settings import PolicySettings
from mempo_trainers.toy import Toy

SOURCES = {file.name: file.read_text() for file in Path(doctor.__file__).parent.glob("*.py")}
ADVISED = sorted(set(re.findall(r"option\(settings, [\"'](\w+)", "".join(SOURCES.values()))))
"""Every setting that any advice names."""

POLICY = PolicySettings(model="m")


def toy(task: dict[str, Any] | None = None, **config: Any) -> dict[str, Any]:
    """Settings as `mempo train toy` writes them."""
    told: dict[str, Any] = msgspec.to_builtins({"task": Toy(**(task or {})), "config": Config(**config)})
    return told


def llm(task: dict[str, Any] | None = None, **config: Any) -> dict[str, Any]:
    """Settings as `mempo train llm` writes them."""
    told: dict[str, Any] = msgspec.to_builtins(
        Setup(policy=POLICY, task=Task(**(task or {})), config=Config(**config))
    )
    return told


def test_no_advice_names_a_flag_of_one_command_only() -> None:
    assert len(ADVISED) >= 8
    for name, text in SOURCES.items():
        said = re.findall(
            r"--[a-z][a-z-]*", re.sub(r'"""[^"]*"""|typer\..*|--(against|set|json)\b', "", text)
        )
        assert not said, (name, said)


@pytest.mark.parametrize("name", ADVISED)
def test_what_is_advised_is_a_setting_of_the_command(name: str) -> None:
    value = {"credit": "grpo", "algo": "grpo", "reward": "em_mean"}.get(name, "2")
    change = option(llm(), name, value).removeprefix("--set ")
    assert change.endswith(f"{option(llm(), name)}={value}")
    read_setup(Setup, None, ["policy.model=m", change])
    if name != "max_new":  # of language models alone
        assert (
            option(toy(), name) in CliRunner().invoke(app, ["toy", "--help"], env={"COLUMNS": "200"}).output
        )


def test_what_is_advised_to_imitation_is_its_own() -> None:
    settings = msgspec.to_builtins(SftSetup(policy=POLICY))
    assert option(settings, "learning_rate", "1") == "--set sft.learning_rate=1"
    read_setup(SftSetup, None, ["policy.model=m", "sft.learning_rate=1"])


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (toy(credit="grpo"), "--credit mempo, --reward em_mean, or fewer --objectives"),
        (toy(credit="mempo"), "--reward em_mean or fewer --objectives"),
        (toy({"reward": "em_mean"}, credit="mempo"), "fewer --objectives"),
        (toy({"objectives": 1}, credit="grpo"), "--credit mempo"),
        (
            llm(credit="grpo"),
            "--set config.credit=mempo, --set task.environment.reward=em_mean, or fewer task.objectives",
        ),
        (llm({"environment": {"reward": "f1_mean"}}), "fewer task.objectives"),
    ],
)
def test_a_denser_signal_is_what_the_run_does_not_have_yet(settings: dict[str, Any], told: str) -> None:
    assert denser(settings) == f"give a denser signal: {told}"


def test_where_no_setting_is_left_a_better_start_is() -> None:
    assert denser(llm({"objectives": 1}, credit="mempo")).startswith("no setting makes the signal denser")


@pytest.mark.parametrize("agent", ["react", "selfask"])
def test_no_credit_for_memory_is_advised_where_an_agent_has_none(agent: str) -> None:
    assert "mempo" not in denser(llm({"agent": agent}, credit="grpo"))
    assert "config.credit=mempo" in denser(llm({"agent": "memagent"}, credit="grpo"))
    assert "config.credit=mempo" in denser(llm(credit="memory_only"))  # it weighs the outcome, no more


@pytest.mark.parametrize(("credit", "pays"), [("mempo", True), ("placebo", True), ("grpo", False)])
def test_only_a_credit_for_memory_misses_it(credit: str, pays: bool) -> None:
    assert pays_memory(llm(credit=credit)) is pays


def test_an_agent_of_ones_own_whose_module_is_elsewhere_is_no_obstacle() -> None:
    assert "config.credit=mempo" in denser(llm({"agent": "nowhere:agent"}, credit="grpo"))
