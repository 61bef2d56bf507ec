"""Benchmark runs for tests: played by the command, read back, and written by hand without playing."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import structs

from mempo_benchmarks.journal import open_run
from mempo_benchmarks.results import Arm, FullRow, Plan, read_plan, read_rows, row_of
from mempo_benchmarks.run import make_plan
from mempo_env.types import Episode

MEMPO = (sys.executable, "-c", "from mempo_env.cli import main; raise SystemExit(main())")
EPISODES = 12
COMMAND = ("bench", "run", "--dataset", "synthetic", "--agents", "react,mempo", "--objectives", "4")
RUN = (*COMMAND, "--episodes", str(EPISODES), "--out")
AGENTS_RUN = ["empty", "random", "react", "mempo", "oracle"]


def mempo(*args: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*MEMPO, *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit code and standard error."""
    _, err = process.communicate(timeout=120)
    return process.returncode, err


def small_plan(**kwargs: object) -> Plan:
    return make_plan("synthetic", ["mempo"], episodes=6, **kwargs)  # type: ignore[arg-type]


def copy(run: Path, folder: Path) -> Path:
    return Path(shutil.copytree(run, folder / "copy"))


def rows(run: Path) -> list[FullRow]:
    """All rows by agent and index, without the time they took."""
    found = [structs.replace(row, seconds=0.0) for row in read_rows(run, read_plan(run), FullRow)]
    return sorted(found, key=lambda row: (row.agent, row.index))


def write_run(
    run: Path, played: Mapping[str, Sequence[Episode]], planned: int | None = None, **changes: Any
) -> Plan:
    """Write a run whose episodes are given; question i of every agent is called qi."""
    count = max(map(len, played.values())) if planned is None else planned
    plan = structs.replace(
        Plan(
            dataset="synthetic",
            corpus=None,
            retriever="bm25",
            data="d0",
            index="i0",
            scorer="s0",
            code="c0",
            settings={
                "split": "dev",
                "objectives": 1,
                "top_k": 3,
                "tokenizer": "words",
                "system_prompt": "x",
            },
            questions=tuple(f"q{i}" for i in range(count)),
            seed=0,
            arms=tuple(Arm(name, f"{name}-1", {}, "e0") for name in played),
            version="0",
        ),
        **changes,
    )
    with open_run(run, plan) as append:
        for arm in plan.arms:
            for i, episode in enumerate(played[arm.agent]):
                named = structs.replace(episode, question_id=f"q{i}")
                append(row_of(plan, arm, i, named, seconds=0.5))
    return plan
