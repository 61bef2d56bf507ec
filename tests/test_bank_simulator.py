"""Streams of operations replayed on banks: what is found, held and lost, by hand and by properties."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mempo_benchmarks.memory.plot import WARNED, plot
from mempo_benchmarks.memory.sweep import Cell, sweep, warning
from mempo_benchmarks.stats import Interval
from mempo_env.cli import main
from mempo_env.errors import ConfigError, DataError
from mempo_env.memory.bank import BankConfig
from mempo_env.memory.simulator import Replayed, replay, vectors_of
from mempo_env.memory.streams import Event, StreamSpec, made_up, recorded
from mempo_env.scoring import contains, normalise
from small import make

BORN, TOWN = "Aldo Verne was born in Marrow Bay.", "Bela Quist works for the Kettle Works."


def write(round: int, text: str, *holds: str) -> Event:
    return Event(round=round, kind="write", text=text, holds=holds)


def read(round: int, text: str, *needs: str) -> Event:
    return Event(round=round, kind="read", text=text, needs=needs)


# --- By hand ---


def test_counts_typed_by_hand() -> None:
    """A bank of one entry: the second write evicts the first, so its fact is neither held nor found."""
    stream = (
        write(1, BORN, "Marrow Bay"),
        read(1, "Aldo Verne", "Marrow Bay"),
        write(2, TOWN, "Kettle Works"),
        read(2, "Aldo Verne", "Marrow Bay"),
        read(3, "Bela Quist", "Kettle Works", "Marrow Bay"),
        write(3, TOWN, "Kettle Works"),
    )
    got = replay(stream, BankConfig(capacity=1))
    assert (got.operations, got.writes, got.evictions) == (6, 3, 1)
    assert got.recall == got.held == 2 / 4, "of four needs, the first and the third's first"
    assert got.hits == 2 / 3 and got.stale is None, "nothing had changed"
    assert got.reading == 7, "each read brought back the one entry"
    assert got.merges == 1 / 3, "the last write was refused"
    assert got.entries == 1 and got.tokens == 7


def test_a_fact_that_is_held_may_not_be_found() -> None:
    texts = [f"{name} was born in {name}ville." for name in ("Aldo", "Bela", "Cora", "Dora")]
    stream = (*(write(1, text, text.split()[-1]) for text in texts), read(2, "Aldo", texts[-1].split()[-1]))
    got = replay(stream, BankConfig(k=1, duplicate=2.0))
    assert (got.held, got.recall, got.hits) == (1.0, 0.0, 0.0)


def test_a_value_of_before_that_a_read_brings_back_is_stale() -> None:
    """Only the bank with room for both brings back the old value with the new one."""
    old, new = BORN, "Aldo Verne was born in Sandport."
    stream = (
        write(1, old, "Marrow Bay"),
        read(1, "Where was Aldo Verne born?", "Marrow Bay"),
        write(2, new, "Sandport"),
        Event(
            round=2,
            kind="read",
            text="Where was Aldo Verne born?",
            needs=("Sandport",),
            outdated=("Marrow Bay",),
        ),
    )
    both, newest = (
        replay(stream, BankConfig(duplicate=2.0)),
        replay(stream, BankConfig(duplicate=2.0, capacity=1)),
    )
    assert (both.recall, both.stale, both.reading) == (1.0, 1.0, (7 + 13) / 2)
    assert (newest.recall, newest.stale, newest.reading) == (1.0, 0.0, (7 + 6) / 2)
    refused = replay(stream, BankConfig(duplicate=0.7))
    assert (refused.recall, refused.stale) == (0.5, 1.0), "what is refused leaves the old value in force"


def test_what_few_large_entries_find_shows_in_what_a_read_costs() -> None:
    """A low threshold with merging finds nearly all, for a read brings back a large share of the memory."""
    streams = [made_up(StreamSpec(writes=300), seed) for seed in (0, 1)]
    for stream in streams:
        plain = replay(stream, BankConfig(capacity=16))
        joined = replay(stream, BankConfig(capacity=16, duplicate=0.6, on_duplicate="merge"))
        assert joined.recall > 2 * plain.recall and joined.merges > 0.8  # type: ignore[operator]
        assert joined.reading > 3 * plain.reading  # type: ignore[operator]


def test_merges_and_discards_follow_what_stands_for_their_entries() -> None:
    stream = (
        write(1, BORN, "Marrow Bay"),
        write(1, TOWN, "Kettle Works"),
        Event(round=2, kind="merge", of=(0, 1)),
        read(2, "Aldo", "Marrow Bay", "Kettle Works"),
        Event(round=3, kind="discard", of=(0,)),
        Event(round=3, kind="discard", of=(1,)),
        read(4, "Aldo", "Marrow Bay"),
    )
    got = replay(stream, BankConfig())
    assert got.recall == 2 / 3, "the merged entry held both facts, and went with either of them"
    assert got.lost == 1, "the second discard found it gone"


def test_an_entry_that_stands_for_two_is_lost_for_neither() -> None:
    """What was merged is there: merging it again, or discarding both, finds it."""
    two = (
        write(1, BORN, "Marrow Bay"),
        write(1, TOWN, "Kettle Works"),
        Event(round=2, kind="merge", of=(0, 1)),
    )
    again = Event(round=3, kind="merge", of=(0, 1))
    both = Event(round=4, kind="discard", of=(0, 1))
    got = replay((*two, again, both, read(5, "Aldo", "Marrow Bay")), BankConfig())
    assert (got.lost, got.held) == (0, 0.0), "nothing was lost before the discard, which took it"
    got = replay((*two, both, both), BankConfig())
    assert got.lost == 1, "the second time nothing stands for either"


def test_what_was_evicted_or_refused_is_lost() -> None:
    stream = (
        write(1, BORN, "Marrow Bay"),
        write(2, TOWN, "Kettle Works"),
        Event(round=3, kind="discard", of=(0, 1)),
    )
    assert replay(stream, BankConfig(capacity=1)).lost == 1, "one of the two had been evicted"
    refused = (write(1, BORN), write(1, BORN), Event(round=2, kind="discard", of=(1,)))
    assert replay(refused, BankConfig()).lost == 1
    assert replay(refused, BankConfig(on_duplicate="merge")).lost == 0


def test_a_merge_that_drops_the_sentence_loses_the_fact() -> None:
    stream = (
        write(1, BORN, "Marrow Bay"),
        write(1, TOWN, "Kettle Works"),
        Event(round=2, kind="merge", of=(0, 1)),
        read(2, "Aldo Verne of Marrow Bay", "Marrow Bay"),
    )
    assert replay(stream, BankConfig(merge_tokens=20)).recall == 1.0
    assert replay(stream, BankConfig(merge_tokens=7)).recall == 0.0


def test_nothing_needed_is_no_recall_of_zero() -> None:
    got = replay((write(1, BORN),), BankConfig())
    assert got.recall is got.held is got.hits is got.stale is got.reading is None and got.merges == 0.0
    assert replay((), BankConfig()).operations == 0


# --- Streams that are made up ---

SPECS = st.builds(
    StreamSpec,
    writes=st.integers(1, 60),
    reads=st.sampled_from([0.0, 0.5, 1.5]),
    repeats=st.sampled_from([0.0, 0.3]),
    noise=st.sampled_from([0.0, 0.3]),
    drift=st.sampled_from([0.0, 0.3]),
)


@settings(max_examples=40, deadline=None)
@given(SPECS, st.integers(0, 99))
def test_a_stream_says_the_truth_of_itself(spec: StreamSpec, seed: int) -> None:
    stream = made_up(spec, seed)
    assert stream == made_up(spec, seed)
    assert sum(event.kind == "write" for event in stream) == spec.writes
    written: set[str] = set()
    for event in stream:
        assert all(contains(normalise(event.text), normalise(phrase)) for phrase in event.holds)
        written |= set(event.holds)
        assert set(event.needs) <= written, "no read needs what was never written"
        assert set(event.outdated) <= written - set(event.needs) and (spec.drift or not event.outdated)


@settings(max_examples=25, deadline=None)
@given(SPECS, st.integers(0, 99), st.integers(1, 30), st.sampled_from(["refuse", "merge"]))
def test_replays_agree_with_a_plain_replay(
    spec: StreamSpec, seed: int, capacity: int, on_duplicate: Any
) -> None:
    """The same bank driven one by one, its texts searched for the phrases, without any bookkeeping."""
    from mempo_env.memory.bank import Bank
    from mempo_env.tokens import count_words

    stream = made_up(spec, seed)
    config = BankConfig(capacity=capacity, on_duplicate=on_duplicate)
    got = replay(stream, config, embed=vectors_of([stream], "ngrams"))
    bank, needed, found, held, shown = Bank(config, count_words), 0, 0, 0, 0
    changed: list[bool] = []
    for event in stream:
        if event.kind == "write":
            bank.write(event.text, event.round)
        else:
            texts = "\n".join(e.text for e in bank.read(event.text, event.round))
            needed += 1
            shown += count_words(texts)
            if event.outdated:
                changed.append(any(contains(normalise(texts), normalise(old)) for old in event.outdated))
            found += contains(normalise(texts), normalise(event.needs[0]))
            held += contains(normalise(bank.text()), normalise(event.needs[0]))
    assert got.held == (held / needed if needed else None)
    assert got.recall == (pytest.approx(found / needed) if needed else None)
    assert got.reading == (shown / needed if needed else None)
    assert got.stale == (sum(changed) / len(changed) if changed else None)


def test_a_large_bank_without_gates_holds_all() -> None:
    stream = made_up(StreamSpec(writes=300, drift=0.2), 0)
    got = replay(stream, BankConfig(capacity=1000, duplicate=2.0))
    assert got.held == 1.0 and got.evictions == 0 and got.merges == 0.0


def test_more_room_never_loses_on_average() -> None:
    stream = made_up(StreamSpec(writes=600), 1)
    held = [
        replay(stream, BankConfig(capacity=n, duplicate=2.0, eviction="oldest")).held
        for n in (8, 32, 128, 600)
    ]
    assert held == sorted(held) and held[-1] == 1.0  # type: ignore[type-var]


def test_shares_that_are_more_than_all_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"wanted at most 1.*0.5 \+ 0.4 \+ 0.2"):
        StreamSpec(repeats=0.5, noise=0.4, drift=0.2)


# --- Recorded ---


def test_a_recorded_stream_replays_to_what_was_recorded() -> None:
    env = make(memory="bank")
    env.reset(seed=0, options={"question_id": "q0"})
    fact = "The mayor of Marrow Bay is Ines Calder."
    env.step(f"<memory_write>{fact}</memory_write><memory_write>Idle talk.</memory_write><search>x</search>")
    env.step(
        '<memory_read k="1">mayor of Marrow Bay</memory_read><memory_discard ids="9"/><search>x</search>'
    )
    env.step(
        '<memory_read k="1">mayor of Marrow Bay</memory_read><memory_discard ids="2"/><search>x</search>'
    )
    env.step('<memory_merge ids="1">Ines Calder governs.</memory_merge><answer>Ines Calder</answer>')
    stream = recorded(env.episode())
    assert [event.kind for event in stream] == ["write", "write", "read", "discard", "merge"], (
        "invalid rounds left out"
    )
    assert stream[2].needs == ("marrow bay", "ines calder") or set(stream[2].needs) == {
        "marrow bay",
        "ines calder",
    }
    assert stream[3].of == (1,) and stream[4].of == (0,)
    got = replay(stream, BankConfig())
    assert got.recall == got.held == got.hits == 1.0 and got.lost == 0
    tight = replay(stream, BankConfig(capacity=1))
    assert tight.recall == 0.0, "with room for one entry the fact had gone before the read"


def test_a_bank_that_counted_otherwise_is_refused() -> None:
    env = make(memory="bank", tokenizer=len)
    env.reset(seed=0)
    one = "The harbour of Marrow Bay was built by Aldo Verne in the year of the storm. "
    one += "It has three piers and a lighthouse."
    other = "Ines Calder is the mayor of Telmark since nineteen eighty. She studied law at Quint college."
    env.step(f"<memory_write>{one}</memory_write><memory_write>{other}</memory_write><search>x</search>")
    env.step('<memory_merge ids="1,2"/><search>x</search>')
    env.step(f"<memory_write>{one} {other}</memory_write><search>x</search>")
    env.step('<memory_discard ids="4"/><answer>x</answer>')
    with pytest.raises(DataError, match="counted tokens by"):
        recorded(env.episode())


def test_an_episode_without_a_bank_is_refused() -> None:
    env = make()
    env.reset(seed=0)
    env.step("<answer>x</answer>")
    with pytest.raises(DataError, match="wanted one that was played with a memory bank, got memory='inline'"):
        recorded(env.episode())


# --- The sweep and its command ---


def cell(merges: float) -> Cell:
    values = dict.fromkeys(
        ("recall", "held", "hits", "stale", "reading", "entries", "tokens", "seconds"), 0.5
    )
    made = Replayed(operations=1, writes=1, merges=merges, evictions=0, lost=0, **values)  # type: ignore[arg-type]
    return Cell({"duplicate": 0.7}, (made, made))


def test_the_warning_comes_above_thirty_percent() -> None:
    assert warning([cell(0.30)]) == ""
    assert warning([cell(0.30), cell(0.31)]).startswith(
        "1 of 2 banks merge or refuse more than 30% of the writes, at"
    )


def test_a_sweep_covers_its_grid_and_reads_what_is_done(tmp_path: Path) -> None:
    axes = {"noise": [0.0, 0.4], "capacity": [4, 64]}
    kwargs: dict[str, Any] = {"bank": BankConfig(), "spec": StreamSpec(writes=80), "seeds": [0, 1]}
    first = sweep(axes, tmp_path, **kwargs)
    assert [c.settings for c in first] == [{"noise": n, "capacity": c} for n in (0.0, 0.4) for c in (4, 64)]
    assert all(len(c.replays) == 2 for c in first)
    again = sweep(axes, tmp_path, **kwargs)
    assert again == first, "seconds too: nothing was done again"
    held = [found.value for c in first if (found := c.interval("held"))]
    assert held[0] < held[1] and held[2] < held[3]


def test_a_cell_of_another_grid_has_the_settings_of_this_one(tmp_path: Path) -> None:
    kwargs: dict[str, Any] = {"bank": BankConfig(), "spec": StreamSpec(writes=20), "seeds": [0]}
    sweep({"capacity": [8]}, tmp_path, **kwargs)
    axes = {"capacity": [8], "eviction": ["least_used", "oldest"]}
    assert [c.settings["eviction"] for c in sweep(axes, tmp_path, **kwargs)] == ["least_used", "oldest"]
    assert warning([Cell({"capacity": 8}, cell(0.9).replays)]).startswith("1 of 1 banks")


def test_a_damaged_cell_is_named(tmp_path: Path) -> None:
    axes = {"capacity": [4]}
    kwargs: dict[str, Any] = {"bank": BankConfig(), "spec": StreamSpec(writes=20), "seeds": [0]}
    sweep(axes, tmp_path, **kwargs)
    (file,) = (tmp_path / "cells").iterdir()
    file.write_bytes(file.read_bytes()[:30])
    from mempo_env.errors import ResultsError

    with pytest.raises(ResultsError, match=f"{file.name}.*delete it"):
        sweep(axes, tmp_path, **kwargs)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--capacity", "4,x"], "--capacity: wanted numbers joined by commas"),
        (["--capacity", "4,4"], "each once"),
        (["--eviction", "odlest"], "did you mean 'oldest'"),
        (["--duplicate", "0"], "duplicate: wanted a number above 0"),
        (["--noise", "0.9", "--drift", "0.9"], "wanted at most 1"),
        (["--streams", "0"], "at least 1 stream"),
        (["--embed", "ngram"], "did you mean 'ngrams'"),
        (["--embed", "ngrams,ngram"], "did you mean 'ngrams'"),
        (["--agent", "bank"], "--agent: it names agents of a run; give --run too"),
        (
            ["--run", "anything"],
            "--writes: the streams of a run are as they were recorded; leave it out, or --run",
        ),
    ],
)
def test_what_cannot_be_simulated_is_one_line(
    arguments: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["memory", "simulate", "--out", str(tmp_path / "out"), "--writes", "20", *arguments]) == 2
    error = capsys.readouterr().err
    assert says in error and len(error.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists(), "and nothing is written"


def test_the_command_tells_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "--writes",
        "200",
        "--streams",
        "2",
        "--capacity",
        "8,64",
        "--duplicate",
        "0.5,0.95",
        "--drift",
        "0.3",
    ]
    assert main(["memory", "simulate", "--out", str(tmp_path), *arguments]) == 0
    out = capsys.readouterr().out
    assert "streams each: 2; intervals over streams that differ" in out and "at duplicate=0.5." in out
    assert f"table: {tmp_path / 'simulate.csv'}\nplot: {tmp_path / 'simulate.png'}" in out
    assert " old " in out and " hit " not in out, "a read of a stream that is made up needs one fact"
    assert (tmp_path / "simulate.png").read_bytes()[:4] == b"\x89PNG"
    rows = list(csv.DictReader((tmp_path / "simulate.csv").open()))
    grid = [(row["capacity"], row["duplicate"], row["streams"], row["drift"]) for row in rows]
    assert grid == [(c, d, "2", "0.3") for c in ("8", "64") for d in ("0.5", "0.95")]
    for row in rows:
        assert row["recall"] == row["hits"] and 0 < float(row["stale"]) < 1 < float(row["reading"])
        assert 0 <= float(row["recall_low"]) < float(row["recall"]) < float(row["recall_high"]) <= 1


def test_another_sweep_does_not_replace_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["memory", "simulate", "--out", str(tmp_path / "out"), "--writes", "60", "--streams", "2"]
    assert main([*command, "--capacity", "8"]) == 0
    files = {file: file.read_bytes() for file in (tmp_path / "out").iterdir() if file.is_file()}
    assert {file.name for file in files} == {"simulate.csv", "simulate.png", "sweep.json"}
    assert main([*command, "--capacity", "8"]) == 0, "the same one is shown again"
    capsys.readouterr()
    for changes, told in (
        (["--capacity", "8,16"], "capacity [8] / [8, 16]"),
        (["--capacity", "8", "--seed", "7"], "seeds [0, 1] / [7, 8]"),
        (["--capacity", "8", "--drift", "0.2"], "drift [0.1] / [0.2]"),
    ):
        assert main([*command, *changes]) == 2
        error = capsys.readouterr().err
        assert f"holds another sweep (there / here: {told}); choose another --out" in error
    assert files == {file: file.read_bytes() for file in (tmp_path / "out").iterdir() if file.is_file()}
    (tmp_path / "out" / "sweep.json").unlink()
    assert main([*command, "--capacity", "8"]) == 2
    assert "holds simulate.csv without sweep.json" in capsys.readouterr().err


def test_intervals_are_students_of_streams_that_differ() -> None:
    """0.5 -+ 4.3027 * 0.1 / sqrt(3), the 0.975 quantile at 2 degrees of freedom; within [0, 1]."""
    one = cell(0.3).replays[0]
    assert Cell({}, (one,) * 5).interval("recall") == Interval(0.5, None, None)

    def over(*recalls: float) -> Interval | None:
        return Cell({}, tuple(msgspec.structs.replace(one, recall=recall) for recall in recalls)).interval(
            "recall"
        )

    half = 4.3027 * 0.1 / 3**0.5
    assert over(0.4, 0.5, 0.6) == Interval(
        pytest.approx(0.5), pytest.approx(0.5 - half, abs=1e-4), pytest.approx(0.5 + half, abs=1e-4)
    )
    assert over(0.8, 1.0) == Interval(pytest.approx(0.9), 0.0, 1.0)


def test_similarities_are_swept_too(tmp_path: Path) -> None:
    axes = {"embed": ["ngrams", "test_bank_simulator:by_length"], "capacity": [8]}
    cells = sweep(axes, tmp_path, bank=BankConfig(), spec=StreamSpec(writes=40), seeds=[0])
    ngrams, by_length = (found.value for c in cells if (found := c.interval("merges")))
    assert by_length > 0.9 > ngrams, "texts of one length are alike, and nearly so those of others"


def by_length(texts: Any) -> Any:
    return [[1.0, len(text) / 1000] for text in texts]


def test_the_plot_shows_every_bank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of panels for each value of what is swept beyond an axis and its lines; each cell is a point."""
    from matplotlib.figure import Figure

    figures: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, out, format: figures.append(figure))
    axes = {
        "drift": [0.0, 0.2],
        "capacity": [4, 64],
        "duplicate": [0.6, 0.9],
        "on_duplicate": ["refuse", "merge"],
    }
    cells = sweep(axes, tmp_path, bank=BankConfig(), spec=StreamSpec(writes=60), seeds=[0])
    plot(cells, tmp_path / "plot.png")
    panels = np.array(figures[0].axes).reshape(4, -1)
    assert [row[0].get_ylabel() for row in panels] == [
        f"on duplicate {on}\ndrift {drift}" for drift in (0.0, 0.2) for on in ("refuse", "merge")
    ]
    assert figures[0].get_figwidth() < 9, "it fits on a page"
    for axis in figures[0].axes:
        low, high = axis.get_ylim()
        drawn = [float(y) for line in axis.lines for y in line.get_ydata() if y == y]
        assert not drawn or low <= min(drawn), axis.get_title()
        assert not drawn or max(drawn) + 0.02 * (high - low) < high, "no point is cut"
    warned = [axis for axis in figures[0].axes if any(line.get_gid() == WARNED for line in axis.lines)]
    assert {axis.get_title() for axis in warned} == {"writes merged or refused"} and len(warned) == 4
    assert panels[0, 0].get_title() == "needed facts found" and panels[0, 0].get_xlabel() == "capacity"
    shown = sorted(float(y) for axis in panels[:, 0] for line in axis.lines for y in line.get_ydata())
    assert shown == sorted(found.value for c in cells if (found := c.interval("recall")))


def test_the_operations_of_a_real_run_are_replayed_by_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Agents that keep a bank play; with the bank that they had all is found again, with less room less."""
    bench = [
        "bench",
        "run",
        "--dataset",
        "synthetic",
        "--agents",
        "bank,rag_memory,mem1",
        "--objectives",
        "4",
    ]
    assert main([*bench, "--episodes", "3", "--out", str(tmp_path / "run")]) == 0
    out = tmp_path / "sweep"
    command = ["memory", "simulate", "--run", str(tmp_path / "run"), "--duplicate", "2", "--out", str(out)]
    assert main([*command, "--capacity", "2,1000"]) == 0
    told = capsys.readouterr().out
    assert "streams each: 3; intervals" in told, "three episodes of each agent that has a bank"
    assert [
        line.split()[:2] for line in told.splitlines() if line.startswith((" bank ", " rag_memory "))
    ] == [[agent, capacity] for agent in ("bank", "rag_memory") for capacity in ("2", "1000")]
    assert " old " not in told and " hit " in told, "a recorded stream does not say what has changed"
    assert (out / "simulate.png").read_bytes()[:4] == b"\x89PNG"
    cells = [msgspec.json.decode(path.read_bytes(), type=Cell) for path in (out / "cells").iterdir()]
    assert len(cells) == 4 and all(len(cell.replays) == 3 for cell in cells)
    recall = {
        tuple(cell.settings[axis] for axis in ("agent", "capacity")): cell.interval("recall")
        for cell in cells
    }
    for agent in ("bank", "rag_memory"):
        assert recall[agent, 2].value < 0.9 and recall[agent, 1000].value == 1.0  # type: ignore[union-attr]
    assert all(r.lost == 0 for cell in cells if cell.settings["capacity"] == 1000 for r in cell.replays)
    command[-1] = str(tmp_path / "alone")
    assert main([*command, "--agent", "rag_memory", "--capacity", "2,1000"]) == 0
    table = (tmp_path / "alone" / "simulate.csv").open()
    assert {row["agent"] for row in csv.DictReader(table)} == {"rag_memory"}
    capsys.readouterr()
    for option, says in {
        ("--agent", "rag_memroy"): "did you mean 'rag_memory'",
        ("--noise", "0.2"): "--noise: the streams of a run are as they were recorded",
    }.items():
        assert main([*command, *option]) == 2
        assert says in capsys.readouterr().err


def test_a_run_without_a_bank_has_nothing_to_replay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(
            [
                "bench",
                "run",
                "--dataset",
                "synthetic",
                "--agents",
                "mem1",
                "--episodes",
                "1",
                "--out",
                str(tmp_path / "run"),
            ]
        )
        == 0
    )
    capsys.readouterr()
    assert main(["memory", "simulate", "--run", str(tmp_path / "run"), "--out", str(tmp_path / "sweep")]) == 2
    assert "wanted episodes with operations on a memory bank" in capsys.readouterr().err
    assert not (tmp_path / "sweep").exists()


def test_a_killed_sweep_goes_on(tmp_path: Path) -> None:
    """Killed for real once some cells are there: these are not done again, and the rest is as it would be."""
    command = [
        sys.executable,
        "-c",
        "from mempo_env.cli import main; import sys; sys.exit(main(sys.argv[1:]))",
    ]
    rest = [
        "memory",
        "simulate",
        "--writes",
        "1500",
        "--streams",
        "2",
        "--capacity",
        "8,16,32,64,128,256,512",
    ]
    killed = subprocess.Popen([*command, *rest, "--out", str(tmp_path / "a")], stderr=subprocess.DEVNULL)
    cells = tmp_path / "a" / "cells"
    while not (cells.exists() and len(list(cells.glob("*.json"))) >= 2):
        assert killed.poll() is None
        time.sleep(0.01)
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    there = {file.name: file.read_bytes() for file in cells.glob("*.json")}
    assert 2 <= len(there) < 7
    for folder in ("a", "b"):
        subprocess.run([*command, *rest, "--out", str(tmp_path / folder)], check=True, capture_output=True)
    assert all((cells / name).read_bytes() == data for name, data in there.items())
    assert not list(cells.glob("*tmp*")) and len(list(cells.iterdir())) == 7

    def content(folder: str) -> dict[str, Any]:
        files = sorted((tmp_path / folder / "cells").iterdir())
        read = {file.name: msgspec.json.decode(file.read_bytes(), type=Cell) for file in files}
        return {
            name: [msgspec.structs.replace(r, seconds=0.0) for r in found.replays]
            for name, found in read.items()
        }

    assert content("a") == content("b")
