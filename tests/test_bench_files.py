"""The files of a run: of another run, in use, or changed by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mempo_benchmarks.journal import discard, open_run
from mempo_benchmarks.results import (
    PLAN,
    RESULTS,
    FullRow,
    Row,
    differences,
    encode_plan,
    read_plan,
    read_rows,
)
from mempo_benchmarks.run import bench
from mempo_env.cli import main
from mempo_env.errors import MempoError, ResultsError
from mempo_env.files import digest
from runs import RUN, copy, ended, mempo, rows, small_plan


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing disturbed."""
    run = tmp_path_factory.mktemp("whole") / "run"
    assert main([*RUN, str(run)]) == 0
    return run


@pytest.mark.parametrize(
    ("agents", "told"),
    [
        (
            "react,mempo,window,no_memory",
            "(added: window; added: no_memory); run it as it was begun, or choose another --out, with "
            "no_memory, window alone, and report both together",
        ),
        ("mem1,mempo", "(added: mem1; left out: react)"),
        ("mempo,react", "(agents in another order: empty, random, react, mempo, oracle)"),
    ],
)
def test_other_agents_are_named_one_by_one(
    agents: str, told: str, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both lists were cut where they were still alike."""
    assert main([*RUN, str(copy(whole, tmp_path)), "--agents", agents]) == 2
    assert told in capsys.readouterr().err


def test_runs_that_no_report_takes_together_are_not_advised(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*RUN, str(copy(whole, tmp_path)), "--agents", "react,mempo,window", "--top-k", "5"]) == 2
    told = capsys.readouterr().err
    assert "(added: window; there / here: top_k 3 / 5)" in told and told.endswith("choose another --out\n")


def test_long_values_are_told_from_where_they_differ() -> None:
    one, other = "alike " * 20 + "here", "alike " * 20 + "there, " + "and much more " * 9
    (told,) = differences({"x": one}, {"x": other})
    assert told.startswith("x ...alike alike here / ...alike alike there, and much")
    assert differences({"x": "a" * 50, "y": 1}, {"x": "b" + "a" * 49, "y": 1}) == [
        f"x {'a' * 40}... [{digest('a' * 50, size=4)}] / b{'a' * 39}... [{digest('b' + 'a' * 49, size=4)}]"
    ]


def test_other_settings_are_refused_and_named(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copy(whole, tmp_path)
    before = (run / RESULTS).read_bytes()
    assert main([*RUN, str(run), "--top-k", "5", "--seed", "7"]) == 2
    assert "there / here: seed 0 / 7; top_k 3 / 5)" in capsys.readouterr().err
    assert main([*RUN, str(run), "--episodes", "13"]) == 2
    assert "episodes 12 [" in capsys.readouterr().err
    assert main([*RUN, str(run), "--agents", "react"]) == 2
    assert "(left out: mempo); run it as it was begun, or choose another --out\n" in capsys.readouterr().err
    assert (run / RESULTS).read_bytes() == before


@pytest.mark.parametrize("field", ["data", "index", "scorer", "code"])
def test_other_data_or_code_is_refused_and_named(whole: Path, tmp_path: Path, field: str) -> None:
    run = copy(whole, tmp_path)
    (run / PLAN).write_bytes(encode_plan(msgspec.structs.replace(read_plan(run), **{field: "00ff"})))
    with pytest.raises(ResultsError, match=f"there / here: {field} 00ff / "), open_run(run, read_plan(whole)):
        pass


def test_a_second_process_is_refused(whole: Path, tmp_path: Path) -> None:
    run = copy(whole, tmp_path)
    with open_run(run, read_plan(run)):
        code, error = ended(mempo(*RUN, run))
    assert code == 2
    assert error == (
        f"mempo: {run}: another process is writing to this run; wait until it ends, or choose another --out\n"
    )
    assert ended(mempo(*RUN, run))[0] == 0


def test_of_two_processes_that_start_together_one_writes_the_run(whole: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    codes = sorted(ended(process)[0] for process in [mempo(*RUN, run), mempo(*RUN, run)])
    assert codes in ([0, 2], [0, 0])  # the second may come after the first is done
    assert rows(run) == rows(whole)


def edit_value(lines: list[bytes]) -> None:
    assert b'"em":0.0' in lines[2]
    lines[2] = lines[2].replace(b'"em":0.0', b'"em":1.0', 1)


def edit_check(lines: list[bytes]) -> None:
    lines[2] = lines[2][:-5] + (b"0" if lines[2][-5:-4] != b"0" else b"1") + lines[2][-4:]


def cut(lines: list[bytes]) -> None:
    lines[2] = lines[2][: len(lines[2]) // 2] + b"\n"


def empty(lines: list[bytes]) -> None:
    lines[2] = b"\n"


def binary(lines: list[bytes]) -> None:
    lines[2] = b"\xff\x00\n"


@pytest.mark.parametrize("damage", [edit_value, edit_check, cut, empty, binary])
def test_an_edited_line_is_refused_by_its_number(
    whole: Path, tmp_path: Path, damage: Callable[[list[bytes]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    run = copy(whole, tmp_path)
    lines = (run / RESULTS).read_bytes().splitlines(keepends=True)
    damage(lines)
    (run / RESULTS).write_bytes(b"".join(lines))
    for command in ([*RUN, str(run)], ["bench", "report", str(run)], ["view", str(run)]):
        assert main(command) == 2
        error = capsys.readouterr().err
        assert f"{run / RESULTS}:3: wanted a result as it was written" in error
        assert "remove the line and run the same" in error
        assert error.count("\n") == 1
    assert (run / RESULTS).read_bytes() == b"".join(lines)
    del lines[2]  # what the message says
    (run / RESULTS).write_bytes(b"".join(lines))
    assert main([*RUN, str(run)]) == 0
    assert rows(run) == rows(whole)


def test_a_line_twice_is_refused(whole: Path, tmp_path: Path) -> None:
    run = copy(whole, tmp_path)
    lines = (run / RESULTS).read_bytes().splitlines(keepends=True)
    (run / RESULTS).write_bytes(b"".join([*lines, lines[4]]))
    with pytest.raises(ResultsError, match=rf":{len(lines) + 1}: a second result .* the first is in line 5"):
        list(read_rows(run, read_plan(run), Row))


def test_a_line_of_another_run_is_refused(whole: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    bench(small_plan(objectives=4, top_k=2), other)
    run = copy(whole, tmp_path)
    lines = (run / RESULTS).read_bytes().splitlines(keepends=True)
    lines[0] = (other / RESULTS).read_bytes().splitlines(keepends=True)[0]
    (run / RESULTS).write_bytes(b"".join(lines))
    with pytest.raises(ResultsError, match=r":1: 'empty', episode 0 .* is not of the run that run.json"):
        list(read_rows(run, read_plan(run), FullRow))


def test_results_without_a_plan_are_refused(whole: Path, tmp_path: Path) -> None:
    run = copy(whole, tmp_path)
    (run / PLAN).unlink()
    with (
        pytest.raises(ResultsError, match=r"holds results.jsonl without run.json"),
        open_run(run, read_plan(whole)),
    ):
        pass
    with pytest.raises(ResultsError, match=r"found no run.json"):
        read_plan(run)


@pytest.mark.parametrize("text", [b"", b"{", b"null", b'{"dataset": 3}', b"\xff", b"[" * 100_000])
def test_what_is_no_plan_is_refused(whole: Path, tmp_path: Path, text: bytes) -> None:
    run = copy(whole, tmp_path)
    (run / PLAN).write_bytes(text)
    with pytest.raises(ResultsError, match=r"run.json: wanted the plan as it was written, .* run again"):
        read_plan(run)


def edits(value: Any) -> Iterator[Any]:
    """The value with one part of it replaced, emptied or doubled, for each part."""
    if isinstance(value, dict):
        yield {}
        for key, part in value.items():
            yield {name: kept for name, kept in value.items() if name != key}
            yield from ({**value, key: other} for other in edits(part))
    elif isinstance(value, list):
        yield from ([], value + value, value[1:], value[::-1])
        for i, part in enumerate(value):
            yield from ([*value[:i], other, *value[i + 1 :]] for other in edits(part))
    elif isinstance(value, bool):
        yield not value
    else:
        yield from ("zzz", None if value is not None else 1)
        yield from [value + 1] if isinstance(value, (int, float)) else []


def test_a_plan_that_was_edited_anywhere_is_refused(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copy(whole, tmp_path)
    plan = json.loads((run / PLAN).read_text())
    changed = [edit for edit in edits(plan) if edit != plan]
    assert len(changed) > 150
    for edit in changed:
        (run / PLAN).write_text(json.dumps(edit))
        with pytest.raises(ResultsError, match=r"run.json: wanted the plan as it was written"):
            read_plan(run)
    (run / PLAN).write_text(json.dumps({**plan, "settings": {}}))
    for command in ([*RUN, str(run)], ["bench", "report", str(run)], ["view", str(run)]):
        assert main(command) == 2
        error = capsys.readouterr().err
        assert "put it back as it was, or choose another --out and run again" in error
        assert error.count("\n") == 1
    (run / PLAN).write_text(json.dumps(plan))  # white space says nothing
    assert read_plan(run) == read_plan(whole)


def test_a_run_that_is_discarded_is_gone_unless_it_is_in_use(whole: Path, tmp_path: Path) -> None:
    run = copy(whole, tmp_path)
    with open_run(run, read_plan(run)), pytest.raises(MempoError, match="another process"):
        discard(run)
    discard(run)
    assert list(run.iterdir()) == []
    discard(run)
