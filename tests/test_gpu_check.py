"""The check of a GPU: all of it on a CPU with a tiny network, what it brings along, and faults."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import zipfile
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from mempo_benchmarks.gpu_check.report import Report, Row, guarded

SCRIPT = Path(__file__).resolve().parents[1] / "benchmarks" / "mempo_benchmarks" / "gpu_check"
main: Any = import_module("mempo_benchmarks.gpu_check.__main__")


def script(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The script in a process of its own; two threads on busy cores would wait for each other."""
    command = [sys.executable, str(SCRIPT), *arguments]
    environment = {"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.mark.slow
def test_all_of_it_runs_on_a_cpu(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="needs mempo[llm]")
    out = tmp_path / "found.json"
    done = script("--device", "cpu", "--size", "tiny", "--out", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(out.read_bytes())
    assert all(row["ok"] for row in rows) and rows[-1]["name"] == "failed"
    checked = {(row["part"], row["name"]) for row in rows if row["bound"]}
    assert {
        ("tree in float32", "largest difference (nats)"),
        ("tree in bfloat16", "largest difference (nats)"),
        ("sampler", "bfloat16, largest gap to the trainer (nats)"),
        ("gradients", "batches, relative difference"),
        ("gradients", "trees, relative difference"),
        ("training", "KL of the first step"),
        ("environment", "steps"),
    } <= checked
    lines = done.stdout.splitlines()
    assert len(lines) == len(rows) and lines[-1] == "all, failed: 0 (at most 0) ok"


@pytest.fixture(autouse=True)
def _paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))


def test_without_a_device_it_is_skipped(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main.main([]) == 0
    assert capsys.readouterr().out == "SKIP: no CUDA device\n"


def test_without_torch_it_is_skipped(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(main, "find_spec", lambda name: None)
    assert main.main([]) == 0
    assert capsys.readouterr().out == "SKIP: no CUDA device (torch is not installed)\n"


def test_what_is_missing_is_told_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path
) -> None:
    monkeypatch.setattr(main, "NEEDED", ("json", "not_anywhere"))
    assert main.main(["--device", "cpu", "--wheels", str(tmp_path / "none")]) == 2
    assert "wanted not_anywhere, found neither here nor in" in capsys.readouterr().err


def wheel(folder: Path, name: str, *files: str) -> Path:
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as held:
        for file in (*files, f"{name}-1.0.dist-info/METADATA"):
            held.writestr(file, "")
    return path


def test_only_wheels_of_what_is_missing_are_unpacked(tmp_path: Path) -> None:
    """A package, a module, a compiled module beside its libraries; one that is here already."""
    wheels = [
        wheel(tmp_path, "absent", "absent/__init__.py"),
        wheel(tmp_path, "lonely", "lonely.py"),
        wheel(tmp_path, "compiled", "compiled.cpython-312.so", "compiled.libs/a.so"),
        wheel(tmp_path, "numpy", "numpy/__init__.py"),
    ]
    main.unpack(wheels, tmp_path / "site")
    unpacked = {path.name for path in (tmp_path / "site").iterdir() if "dist-info" not in path.name}
    assert unpacked == {"absent", "lonely.py", "compiled.cpython-312.so", "compiled.libs"}


# --- The report --------------------------------------------------------------------------------------------


def test_bounds_are_kept_or_failed(capsys: Any) -> None:
    report = Report()
    report.tell("a", "told", "words")
    report.tell("a", "low", 1.0, most=1.0)
    report.tell("a", "high", 2.0, most=1.0)
    report.tell("a", "few", 2.0, least=3.0)
    report.tell("a", "nan", float("nan"), most=1.0)
    assert [row.ok for row in report.rows] == [True, True, False, False, False]
    assert capsys.readouterr().out.splitlines()[:3] == [
        "a, told: words",
        "a, low: 1 (at most 1) ok",
        "a, high: 2 (at most 1) FAILED",
    ]


def test_a_part_that_hangs_or_raises_fails_alone(capsys: Any) -> None:
    report = Report()

    def hangs() -> None:
        while True:
            time.sleep(0.01)

    def raises() -> None:
        raise RuntimeError("no\nkernel")

    guarded(report, "slow", 0.2, hangs)
    guarded(report, "broken", 5.0, raises)
    guarded(report, "late", 0.0, raises)
    guarded(report, "good", 5.0, lambda: report.tell("good", "sum", 2.0, most=2.0))
    failed = [row for row in report.rows if not row.ok]
    assert failed == [
        Row("slow", "stopped", "Late: 0 s were over", "none", False),
        Row("broken", "stopped", "RuntimeError: no kernel", "none", False),
        Row("late", "left out", "no time is left", "in time", False),
    ]
    assert [row.name for row in report.rows if row.part == "good"] == ["sum", "seconds"]


def test_the_findings_are_written(tmp_path: Path, capsys: Any) -> None:
    report = Report()
    report.tell("a", "b", 1.5, least=1.0)
    report.write(tmp_path / "new" / "found.json")
    assert json.loads((tmp_path / "new" / "found.json").read_bytes()) == [
        {"part": "a", "name": "b", "value": 1.5, "bound": "at least 1", "ok": True}
    ]
