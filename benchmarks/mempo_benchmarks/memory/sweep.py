"""A grid of banks and streams: each cell replayed, kept on disk, and told with intervals over its streams."""

from __future__ import annotations

import csv
import io
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from mempo_benchmarks.results import differences
from mempo_benchmarks.stats import Interval, runs_interval
from mempo_env.errors import ConfigError, ResultsError
from mempo_env.files import BAD_JSON, atomic_file, digest
from mempo_env.memory.bank import BankConfig
from mempo_env.memory.similarity import embedder
from mempo_env.memory.simulator import TOO_MANY_MERGES, Replayed, replay, vectors_of
from mempo_env.memory.streams import Stream, StreamSpec, made_up
from mempo_env.progress import progress

CELLS = "cells"
TABLE, PLOT, SWEEP = "simulate.csv", "simulate.png", "sweep.json"
VERSION = 3
"""Of what a replay does: cells of another are not taken for this one's."""

BANK_AXES = ("capacity", "eviction", "duplicate", "on_duplicate", "embed")
STREAM_AXES = ("noise", "drift")
AXES = ("agent", *BANK_AXES, *STREAM_AXES)

MEASURES: dict[str, str] = {
    "recall": "needed facts found",
    "held": "needed facts held",
    "hits": "reads that hit",
    "stale": "old values read",
    "merges": "writes merged or refused",
    "reading": "tokens a read",
    "tokens": "memory tokens",
}
"""What a table and a plot show of `Replayed`, and what to call it."""

IN_TOKENS = ("reading", "tokens")


class Cell(Struct, frozen=True):
    """One bank on the same streams: settings by axis, and what came of each stream."""

    settings: dict[str, Any]
    replays: tuple[Replayed, ...]

    def interval(self, measure: str) -> Interval | None:
        """Mean of a measure over the streams with Student's 95 % interval; None where no stream has it.

        Of one stream, or streams that are all equal, it has no bounds.
        """
        values = [value for each in self.replays if (value := getattr(each, measure)) is not None]
        most = math.inf if measure in IN_TOKENS else 1.0
        return runs_interval(values, 0.0, most) if values else None

    @property
    def too_many_merges(self) -> bool:
        """Whether so many writes merge, or are refused, that practice doubts the threshold."""
        merges = self.interval("merges")
        return merges is not None and merges.value > TOO_MANY_MERGES


def grid(axes: dict[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Every combination of the values of the axes, by name."""
    for name, values in axes.items():
        if not values or len(set(values)) != len(values):
            raise ConfigError(f"{name}: wanted one value or more, each once, got {list(values)}")
    for values in itertools.product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def sweep(
    axes: dict[str, Sequence[Any]],
    out: Path,
    *,
    bank: BankConfig,
    spec: StreamSpec | None = None,
    seeds: Sequence[int] = (),
    streams: Mapping[str, Sequence[Stream]] | None = None,
) -> list[Cell]:
    """Replay every cell of a grid; a cell that an earlier call finished is read from `out`.

    Args:
        axes: Values by axis: fields of the bank's settings, and of the stream's spec where it is made up,
            else "agent". Those that decide the streams come first.
        out: Folder.
        bank: The settings that no axis has.
        spec: Of streams that are made up, one for each seed;
        seeds: these.
        streams: Recorded ones of each agent, in place of those.
    """
    recorded = streams or {}
    cells = list(grid(axes))
    made = [
        (settings, *_made(settings, bank, spec)) for settings in cells
    ]  # all are checked before any is run
    found: list[Cell] = []
    at_hand: dict[str, tuple[tuple[Stream, ...], Callable[[Sequence[str]], Any]]] = {}
    with progress("simulate", len(made), unit="banks") as advance:
        for settings, config, made_spec in made:
            played = recorded.get(settings.get("agent", ""), ())
            key = digest(
                msgspec.json.encode((VERSION, config, made_spec, list(seeds), [digest_of(s) for s in played]))
            )
            file = out / CELLS / f"{key}.json"
            cell = _read(file, settings, len(played or seeds))
            if cell is None:
                which = repr((made_spec, settings.get("agent"), config.embed))
                if which not in at_hand:
                    at_hand.clear()  # streams are large, and cells of the same ones come one after the other
                    made_streams = (
                        tuple(played) if made_spec is None else tuple(made_up(made_spec, s) for s in seeds)
                    )
                    at_hand[which] = made_streams, vectors_of(made_streams, config.embed)
                those, embed = at_hand[which]
                cell = Cell(settings, tuple(replay(stream, config, embed=embed) for stream in those))
                file.parent.mkdir(parents=True, exist_ok=True)
                with atomic_file(file) as lines:
                    lines.write(msgspec.json.encode(cell))
            found.append(cell)
            advance(1)
    return found


def begin(axes: Mapping[str, Sequence[Any]], out: Path, **of_streams: Any) -> bytes:
    """What a sweep is, to be kept beside its table; refuses a folder that holds the table of another one.

    Args:
        axes: As for `sweep`, like
        out: the folder and
        of_streams: the streams.

    Raises:
        ResultsError: if another sweep, or one of nobody knows what, was finished there.
    """
    recorded = of_streams.get("streams") or {}
    streams = {f"episodes of {name}": digest(*map(digest_of, each)) for name, each in recorded.items()}
    made = {"spec": of_streams.get("spec"), "seeds": list(of_streams.get("seeds", ()))}
    settings = {name: list(values) for name, values in axes.items()} | (streams or made)
    here = msgspec.json.decode(msgspec.json.encode(settings))
    if not (out / TABLE).exists():
        return msgspec.json.format(msgspec.json.encode(here))
    try:
        there = msgspec.json.decode((out / SWEEP).read_bytes(), type=dict[str, Any])
    except (OSError, *BAD_JSON):
        raise ResultsError(
            f"{out}: holds {TABLE} without {SWEEP}, so it is of nobody knows what; choose another --out"
        ) from None
    if changes := differences(there, here):
        raise ResultsError(
            f"{out}: holds another sweep (there / here: {'; '.join(changes)}); choose another --out"
        )
    return msgspec.json.format(msgspec.json.encode(here))


def digest_of(stream: Stream) -> str:
    """Of a recorded stream."""
    return digest(msgspec.json.encode(stream))


def _made(
    settings: dict[str, Any], bank: BankConfig, spec: StreamSpec | None
) -> tuple[BankConfig, StreamSpec | None]:
    of_bank = {name: value for name, value in settings.items() if name in BANK_AXES}
    of_stream = {name: value for name, value in settings.items() if name in STREAM_AXES}
    if spec is None and of_stream:
        raise ConfigError(
            f"{next(iter(of_stream))}: recorded streams have theirs; sweep it over made-up ones"
        )
    config = msgspec.structs.replace(bank, **of_bank)
    embedder(config.embed)
    return (
        config,
        None if spec is None else msgspec.structs.replace(spec, **of_stream),
    )


def _read(file: Path, settings: dict[str, Any], streams: int) -> Cell | None:
    """A cell that was done before, under the names of this grid; None if there is none."""
    if not file.exists():
        return None
    try:
        replays = msgspec.json.decode(file.read_bytes(), type=Cell).replays
        if len(replays) != streams:
            raise msgspec.ValidationError(f"of {streams} streams, got {len(replays)}")
    except BAD_JSON as error:
        raise ResultsError(
            f"{file}: wanted a cell of a sweep, {error}; delete it to have it done again"
        ) from None
    return Cell(settings, replays)


def swept(cells: Sequence[Cell]) -> list[str]:
    """The axes that have more than one value."""
    given = [name for name in AXES if name in cells[0].settings]
    return [name for name in given if len({cell.settings[name] for cell in cells}) > 1]


def telling(cells: Sequence[Cell]) -> dict[str, str]:
    """The measures that tell something of these cells.

    Not those that no stream has; nor `hits` where it is `recall`, as it is if no read needs several facts.
    """
    replays = [each for cell in cells for each in cell.replays]
    hidden = {m for m in MEASURES if all(getattr(each, m) is None for each in replays)}
    if all(each.hits == each.recall for each in replays):
        hidden.add("hits")
    return {measure: name for measure, name in MEASURES.items() if measure not in hidden}


def write_table(cells: Sequence[Cell], file: Path) -> None:
    """All cells as CSV: settings, number of streams, and each measure with the bounds of its interval."""
    axes = [name for name in AXES if name in cells[0].settings]
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow([*axes, "streams", *(f"{m}{end}" for m in MEASURES for end in ("", "_low", "_high"))])
    for cell in cells:
        row = [*(cell.settings[axis] for axis in axes), len(cell.replays)]
        for measure in MEASURES:
            found = cell.interval(measure)
            row += [None] * 3 if found is None else [found.value, found.low, found.high]
        rows.writerow(row)
    with atomic_file(file) as out:
        out.write(text.getvalue().encode())


def warning(cells: Sequence[Cell]) -> str:
    """What practice would say of a sweep: at which thresholds many writes merge; "" if at none."""
    bad = [cell for cell in cells if cell.too_many_merges]
    if not bad:
        return ""
    thresholds = sorted({cell.settings["duplicate"] for cell in bad if "duplicate" in cell.settings})
    where = f", at duplicate={', '.join(map(str, thresholds))}" if thresholds else ""
    return (
        f"{len(bad)} of {len(cells)} banks merge or refuse more than {TOO_MANY_MERGES:.0%} of the writes"
        f"{where}. Unless that many repeat what is stored, different facts are taken for one: refused ones "
        "are not held, and joined ones make a read long (tokens a read)"
    )
