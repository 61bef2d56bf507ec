"""`mempo memory`: memory banks without a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from mempo_env.console import console

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)

LOG_WIDTH = 160  # columns of a table that goes to a file

MADE_UP: dict[str, Any] = {"noise": "0.2", "drift": "0.1", "writes": 1000, "streams": 5, "seed": 0}
"""What streams are like that are made up, where no option says otherwise; those of a run are as they are."""


@app.callback()
def memory() -> None:
    """Look at memory banks without a model."""


@app.command()
def simulate(
    out: Annotated[Path, typer.Option(help="Folder of one sweep; an unfinished one is gone on with.")],
    run: Annotated[
        Path | None,
        typer.Option(help="Replay the episodes of a run of `mempo bench run` with a bank; none: made up."),
    ] = None,
    agent: Annotated[
        str | None, typer.Option(help="Agents of the run.", show_default="all with a bank")
    ] = None,
    capacity: Annotated[str, typer.Option(help="Entries that a bank may hold.")] = "16,64,256",
    eviction: Annotated[str, typer.Option(help="Who goes: least_used, least_recent, oldest.")] = "least_used",
    duplicate: Annotated[
        str, typer.Option(help="Threshold: similarity from which a write is a duplicate.")
    ] = "0.86",
    on_duplicate: Annotated[str, typer.Option(help="What becomes of one: refuse, merge.")] = "refuse",
    embed: Annotated[
        str, typer.Option(help="Similarity: ngrams, sentence-transformers/NAME, module:function.")
    ] = "ngrams",
    noise: Annotated[
        str | None, typer.Option(help="Share of writes that no read needs.", show_default=MADE_UP["noise"])
    ] = None,
    drift: Annotated[
        str | None,
        typer.Option(help="Share of writes that change an earlier fact.", show_default=MADE_UP["drift"]),
    ] = None,
    writes: Annotated[
        int | None,
        typer.Option(help="Writes in a stream that is made up.", show_default=str(MADE_UP["writes"])),
    ] = None,
    streams: Annotated[
        int | None, typer.Option(help="Streams that are made up.", show_default=str(MADE_UP["streams"]))
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Of the first stream.", show_default=str(MADE_UP["seed"]))
    ] = None,
) -> None:
    """Sweep settings of a memory bank over streams of operations; several values are joined by commas."""
    from mempo_benchmarks.memory.sweep import SWEEP, begin, sweep
    from mempo_env.files import atomic_file
    from mempo_env.memory.bank import BankConfig

    banks: dict[str, Sequence[Any]] = {
        "embed": _words(embed),
        "capacity": _numbers("capacity", capacity, int),
        "eviction": _words(eviction),
        "duplicate": _numbers("duplicate", duplicate, float),
        "on_duplicate": _words(on_duplicate),
    }
    given = {"noise": noise, "drift": drift, "writes": writes, "streams": streams, "seed": seed}
    axes, of_streams = _streams(run, agent, {name: v for name, v in given.items() if v is not None})
    settings = begin({**axes, **banks}, out, **of_streams)
    cells = sweep({**axes, **banks}, out, bank=BankConfig(), **of_streams)
    with atomic_file(out / SWEEP) as file:
        file.write(settings)
    _show(cells, out)


def _streams(
    run: Path | None, agent: str | None, given: dict[str, Any]
) -> tuple[dict[str, Sequence[Any]], dict[str, Any]]:
    """The axes that decide the streams, and what else a sweep needs to know of them."""
    from mempo_env.errors import ConfigError

    if run is None:
        if agent is not None:
            raise ConfigError("--agent: it names agents of a run; give --run too")
        return _made_up(**{**MADE_UP, **given})
    if given:
        raise ConfigError(
            f"--{next(iter(given))}: the streams of a run are as they were recorded; leave it out, or --run"
        )
    return _recorded(run, agent)


def _made_up(
    noise: str, drift: str, writes: int, streams: int, seed: int
) -> tuple[dict[str, Sequence[Any]], dict[str, Any]]:
    """Of streams that are made up."""
    from mempo_env.errors import ConfigError
    from mempo_env.memory.streams import StreamSpec

    if streams < 1 or seed < 0:
        raise ConfigError(f"wanted at least 1 stream and a seed of 0 or more, got {streams} and {seed}")
    axes: dict[str, Sequence[Any]] = {
        "noise": _numbers("noise", noise, float),
        "drift": _numbers("drift", drift, float),
    }
    return axes, {"spec": StreamSpec(writes=writes), "seeds": range(seed, seed + streams)}


def _recorded(run: Path, agent: str | None) -> tuple[dict[str, Sequence[Any]], dict[str, Any]]:
    """Of those of a run."""
    from mempo_benchmarks.memory.recorded import streams_of
    from mempo_env.errors import lookup

    found = streams_of(run)
    chosen = list(found) if agent is None else _words(agent)
    return {"agent": chosen}, {"streams": {name: lookup(found, name, "agent with a bank") for name in chosen}}


def _show(cells: Sequence[Any], out: Path) -> None:
    """Print a sweep, and write it as a table and a plot."""
    from mempo_benchmarks.memory.plot import plot
    from mempo_benchmarks.memory.sweep import PLOT, TABLE, swept, telling, warning, write_table
    from mempo_benchmarks.report import table

    axes, measures = swept(cells), telling(cells)
    rows = [
        [
            *(str(cell.settings[name]) for name in axes),
            *(_told(cell.interval(measure), measure) for measure in measures),
        ]
        for cell in cells
    ]
    heads = [*(name.replace("_", " ") for name in axes), *measures.values()]
    sizes = sorted({len(cell.replays) for cell in cells})
    each = " to ".join(str(size) for size in dict.fromkeys((sizes[0], sizes[-1])))
    screen = console(LOG_WIDTH)
    screen.print(
        table(f"Memory banks, streams each: {each}; intervals over streams that differ", heads, rows)
    )
    if text := warning(cells):
        screen.print(f"warning: {text}")
    write_table(cells, out / TABLE)
    plot(cells, out / PLOT)
    typer.echo(f"table: {out / TABLE}\nplot: {out / PLOT}")


def _words(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def _numbers(name: str, text: str, kind: type) -> list[Any]:
    from mempo_env.errors import ConfigError

    try:
        return [kind(part) for part in _words(text)]
    except ValueError:
        raise ConfigError(f"--{name}: wanted numbers joined by commas, got {text!r}") from None


def _told(interval: Any, measure: str) -> str:
    if interval is None:
        return "–"
    from mempo_benchmarks.figures import figure
    from mempo_benchmarks.memory.sweep import IN_TOKENS

    digits = 0 if measure in IN_TOKENS else 2
    value = figure(interval.value, digits)
    if interval.low is None or interval.high is None:
        return value
    return f"{value}\n{figure(interval.low, digits)}–{figure(interval.high, digits)}"
