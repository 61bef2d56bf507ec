"""`mempo demo`: what a newcomer sees first, and what it is to show."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from mempo_benchmarks.demo import RUNS
from mempo_benchmarks.summary import ArmSummary, compare
from mempo_env.cli import main

HEAVY = ("torch", "matplotlib", "scipy", "pyarrow", "transformers", "faiss")
DEMO = f"""
import json, sys
from mempo_env.cli import main
code = main(["demo", "--out", sys.argv[1]])
print(json.dumps([code, [name for name in {HEAVY} if name in sys.modules]]))
"""


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The demo's folder and what it printed, run in a process of its own."""
    out = tmp_path_factory.mktemp("demo")
    done = subprocess.run(
        [sys.executable, "-c", DEMO, str(out)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return out, done.stdout


def figure(arm: ArmSummary, key: str) -> float:
    interval = arm.metrics[key]
    assert interval is not None
    return interval.value


def test_it_succeeds_without_anything_heavy(shown: tuple[Path, str]) -> None:
    assert json.loads(shown[1].splitlines()[-1]) == [0, []]


def test_it_prints_the_tables_and_names_pages_that_are_there(shown: tuple[Path, str]) -> None:
    out, text = shown
    for word in ("EM", "F1", "peak", "dependency", "evidence", "gained", "mempo", "oracle", "ceiling"):
        assert word in text
    named = [Path(line.strip()) for line in text.splitlines() if line.strip().endswith(".html")]
    assert named == [out / run / page for run in RUNS for page in ("report.html", "episodes.html")]
    for page in named:
        assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_it_can_be_run_again(shown: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    out, _ = shown
    monkeypatch.setattr("mempo_benchmarks.demo.RUNS", {"one-question": (1, 2)})
    again = out / "again"
    assert main(["demo", "--out", str(again)]) == 0
    monkeypatch.setattr("mempo_benchmarks.demo.RUNS", {"one-question": (1, 3)})
    assert main(["demo", "--out", str(again)]) == 0
    assert compare([again / "one-question"]).arms[0].planned == 3


@pytest.mark.parametrize("run", RUNS)
def test_the_ceiling_is_1_and_the_floor_0(shown: tuple[Path, str], run: str) -> None:
    arms = {arm.agent: arm for arm in compare([shown[0] / run]).arms}
    assert all(arm.complete for arm in arms.values())
    assert figure(arms["oracle"], "em") == 1.0
    assert figure(arms["empty"], "em") == figure(arms["empty"], "f1") == 0.0


def test_at_eight_questions_the_prompt_grows_with_the_history_and_stays_flat_with_a_memory(
    shown: tuple[Path, str],
) -> None:
    arms = {arm.agent: arm for arm in compare([shown[0] / "eight-questions"]).arms}

    react, mempo = ([point.mean for point in arms[name].steady] for name in ("react", "mempo"))
    assert len(react) >= 8 and len(mempo) >= 8
    assert all(later > earlier for earlier, later in pairwise(react))
    assert react[-1] > 4 * react[0]
    assert all(0.8 * mempo[0] <= mean <= 1.2 * mempo[0] for mean in mempo)
    assert max(mempo) <= 1.2 * min(mempo)
    assert figure(arms["mempo"], "em") >= figure(arms["react"], "em") - 0.05
