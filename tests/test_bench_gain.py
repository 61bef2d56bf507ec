"""What a memory is worth is told of the same model, settings and questions; what failed is no zero."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from answering import chat, unless
from episodes import aborted, right, wrong
from mempo_benchmarks.report import report_page, tables
from mempo_benchmarks.results import Arm
from mempo_benchmarks.stats import mean_interval
from mempo_benchmarks.summary import Comparison, compare
from mempo_env.cli import main
from mempo_env.types import Episode, Failure, StopReason
from runs import write_run
from scripted import Scripted, ok, serving, status


def down() -> Episode:
    """An episode whose model was not there."""
    return replace(
        wrong(), stop_reason=StopReason.MODEL_ERROR, mask_episode=True, failure=(Failure.ENVIRONMENT,)
    )


def written(run: Path, asks: dict[str, str], **kwargs: Any) -> Path:
    """A run of agents, right in all of two episodes but `no_memory`, each with the model that it asks."""
    arms = tuple(Arm(agent, f"{agent}-1", {}, "e0", "qwen", identity) for agent, identity in asks.items())
    played = {agent: [wrong() if agent == "no_memory" else right()] * 2 for agent in asks}
    write_run(run, played | {"random": [wrong()] * 2}, arms=(*arms, Arm("random", "r-1", {}, "e0")), **kwargs)
    return run


def gains(comparison: Comparison) -> dict[str, str]:
    return {pair.a: pair.b for pair in comparison.gains}


# --- What it is paired with --------------------------------------------------------------------------------


def test_runs_that_have_their_own_no_memory_are_each_paired_within(tmp_path: Path) -> None:
    """The same model in both, so that either would do."""
    one = written(tmp_path / "one", {"no_memory": "m", "mem1": "m"})
    two = written(tmp_path / "two", {"no_memory": "m", "mempo": "m"})
    compared = compare([one, two])
    assert gains(compared) == {"mem1": "no_memory (one)", "mempo": "no_memory (two)"}
    assert compared.notes == ()
    titles = {str(made.title): made for made in tables(compared)}
    (title,) = (title for title in titles if title.startswith("Memory-isolated gain"))
    cells = [str(cell) for cell in titles[title].columns[0].cells]
    assert cells == ["mem1\nto no_memory (one)", "mempo\nto no_memory (two)"]


def test_a_run_without_one_is_paired_with_that_of_another_run(tmp_path: Path) -> None:
    one = written(tmp_path / "one", {"no_memory": "m"})
    two = written(tmp_path / "two", {"mempo": "m"})
    assert gains(compare([one, two])) == {"mempo": "no_memory"}


def test_different_models_of_one_name_are_not_paired_and_it_is_said(tmp_path: Path) -> None:
    one = written(tmp_path / "one", {"no_memory": "endpoint-1-qwen http://one"})
    two = written(tmp_path / "two", {"mempo": "endpoint-1-qwen http://two"})
    compared = compare([one, two])
    assert compared.gains == ()
    (note,) = compared.notes
    assert note == (
        "no gain over no_memory for mempo: of no_memory only the name of the model is the same, not weights, "
        "sampling or server"
    )
    assert note in report_page(compared, tmp_path)


def test_other_settings_are_no_pair_and_it_is_said_in_what(tmp_path: Path) -> None:
    one = written(tmp_path / "one", {"no_memory": "m"})
    settings = {"split": "dev", "objectives": 1, "top_k": 5, "tokenizer": "words", "system_prompt": "x"}
    two = written(tmp_path / "two", {"mempo": "m"}, settings=settings)
    compared = compare([one, two], allow_different=True)
    assert compared.gains == ()
    assert compared.notes == (
        "no gain over no_memory for mempo: no_memory has other settings or questions (top_k 3 / 5)",
    )
    assert compared.difference("mempo", "no_memory") is not None, "that was allowed"


def test_a_missing_baseline_is_said(tmp_path: Path) -> None:
    run = written(tmp_path / "run", {"mempo": "m", "mem1": "m"})
    assert compare([run]).notes == (
        "no gain over no_memory for mempo, mem1: it was not run with the model qwen",
    )


def test_runs_of_an_earlier_version_are_paired_within_alone(tmp_path: Path) -> None:
    """They do not say which model it was."""
    one = written(tmp_path / "one", {"no_memory": "", "mem1": ""})
    two = written(tmp_path / "two", {"mempo": ""})
    assert gains(compare([one, two])) == {"mem1": "no_memory"}


# --- What failed -------------------------------------------------------------------------------------------


def test_pairs_in_which_the_model_was_down_are_left_out_and_counted(tmp_path: Path) -> None:
    """Taken as zeros they would be 2 / 5 for `good`, and a worse `bad`."""
    good = [right(), right(), wrong(), down(), right()]
    bad = [wrong(), right(), wrong(), wrong(), down()]
    write_run(tmp_path / "run", {"random": bad, "good": good})
    compared = compare([tmp_path / "run"])
    pair = compared.difference("good", "random")
    assert pair is not None and (pair.episodes, pair.left_out) == (3, 2)
    assert pair.metrics["em"] == mean_interval([1.0, 0.0, 0.0])
    arm = {arm.agent: arm for arm in compared.arms}["good"]
    assert (arm.failed, arm.masked, arm.compares) == (1, 1, True)
    assert arm.metrics["em"] is not None and arm.metrics["em"].value == 3 / 5, "the denominator has it"
    cells = {str(made.title): [list(map(str, c.cells)) for c in made.columns] for made in tables(compared)}
    assert cells["Accuracy"][1] == ["5\n1 failed", "5\n1 failed"]
    assert cells["Paired differences to random"][0] == ["good\n2 of 5 left out"]


@pytest.mark.parametrize("fault", [down, aborted])
def test_an_arm_most_of_which_failed_is_no_baseline_and_it_is_said(tmp_path: Path, fault: Any) -> None:
    played = {"random": [wrong()] * 4, "no_memory": [fault()] * 3 + [right()], "mempo": [right()] * 4}
    arms = tuple(Arm(agent, f"{agent}-1", {}, "e0", "m" * (agent != "random"), "m") for agent in played)
    write_run(tmp_path / "run", played, arms=arms)
    compared = compare([tmp_path / "run"])
    assert compared.gains == ()
    assert compared.difference("mempo", "no_memory") is None
    assert "no_memory" not in compared.front
    assert "3 of 4 no_memory episodes failed by " in compared.notes[0]
    assert compared.notes[1:] == (
        "no_memory did not play: 3 of 4 episodes failed; it has no part in differences and front",
        "no gain over no_memory for mempo: no_memory has no part in differences",
    )


def test_episodes_that_failed_on_either_side_alone_leave_no_pair(tmp_path: Path) -> None:
    played = {"random": [down(), wrong()], "good": [right(), down()]}
    write_run(tmp_path / "run", played)
    assert compare([tmp_path / "run"]).pairs == ()


# --- The command -------------------------------------------------------------------------------------------


@pytest.fixture
def halting() -> Iterator[Scripted]:
    """A server that is out of order for prompts that do not speak of a memory."""
    with serving(unless("<mem>", ok(chat()), status(400, body=b'{"error": "out of order"}'))) as server:
        yield server


def test_a_run_ends_with_who_failed_and_fails_if_all_of_an_arm_did(
    halting: Scripted, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mempo_benchmarks.run.ask_once", lambda model: None)
    command = ["bench", "run", "--dataset", "synthetic", "--agents", "no_memory,mem1", "--episodes", "3"]
    command += ["--model", f"endpoint:m@{halting.url}/v1", "--out", str(tmp_path / "run")]
    for _ in range(2):  # the second time nothing is left to play
        assert main(command) == 1
        err = capsys.readouterr().err
        assert "failed: no_memory, 3 of 3 episodes (3 model_error), 3 by no fault of the agent" in err
        assert "mem1" not in err.partition("failed: ")[2]
    assert main(["bench", "report", str(tmp_path / "run")]) == 0
    out = capsys.readouterr().out
    assert "note: no_memory did not play: 3 of 3 episodes failed" in out
    assert "Memory-isolated gain" not in out


def test_a_run_in_which_some_failed_is_fine_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_moody.py").write_text(
        "from mempo_agents.scripted import Scripted\n"
        "def write(context):\n"
        "    return ValueError('no') if context.question_id.endswith('0') else '<answer>x</answer>'\n"
        "agent = Scripted(write, 'moody', 'moody')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    command = ["bench", "run", "--dataset", "synthetic", "--agents", "own_moody:agent", "--episodes", "12"]
    assert main([*command, "--out", str(tmp_path / "run")]) == 0
    (line,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("failed: "))
    assert line.startswith("failed: own_moody:agent, ") and line.endswith(" agent_error)")
