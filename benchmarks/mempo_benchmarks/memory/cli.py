"""`mempo memory`: memory banks without a model."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)

LOG_WIDTH = 120  # columns of a table that goes to a file


@app.callback()
def memory() -> None:
    """Look at memory banks without a model."""


@app.command()
def simulate(
    out: Annotated[Path, typer.Option(help="Folder of the results; an unfinished sweep is gone on with.")],
    run: Annotated[
        Path | None,
        typer.Option(help="Replay the episodes of a run of `mempo bench run` with a bank; none: made up."),
    ] = None,
    capacity: Annotated[str, typer.Option(help="Entries that a bank may hold.")] = "16,64,256",
    eviction: Annotated[str, typer.Option(help="Who goes: least_used, least_recent, oldest.")] = "least_used",
    duplicate: Annotated[str, typer.Option(help="Similarity from which a write is a duplicate.")] = "0.86",
    on_duplicate: Annotated[str, typer.Option(help="What becomes of one: refuse, merge.")] = "refuse",
    noise: Annotated[str, typer.Option(help="Share of writes that no read needs.")] = "0.2",
    drift: Annotated[str, typer.Option(help="Share of writes that change an earlier fact.")] = "0.1",
    writes: Annotated[int, typer.Option(help="Writes in a stream that is made up.")] = 1000,
    streams: Annotated[int, typer.Option(help="Streams that are made up.")] = 5,
    embed: Annotated[
        str, typer.Option(help="Similarity: ngrams, sentence-transformers/NAME, module:function.")
    ] = "ngrams",
    seed: Annotated[int, typer.Option(help="Of the first stream.")] = 0,
) -> None:
    """Sweep settings of a memory bank over streams of operations; several values are joined by commas."""
    from rich.console import Console

    from mempo_benchmarks.memory.plot import plot, swept
    from mempo_benchmarks.memory.recorded import streams_of
    from mempo_benchmarks.memory.sweep import MEASURES, sweep, warning
    from mempo_benchmarks.report import table
    from mempo_env.errors import ConfigError
    from mempo_env.memory.bank import BankConfig
    from mempo_env.memory.streams import StreamSpec

    if streams < 1 or seed < 0:
        raise ConfigError(f"wanted at least 1 stream and a seed of 0 or more, got {streams} and {seed}")
    of_bank: dict[str, Sequence[Any]] = {
        "capacity": _numbers("capacity", capacity, int),
        "eviction": _words(eviction),
        "duplicate": _numbers("duplicate", duplicate, float),
        "on_duplicate": _words(on_duplicate),
    }
    of_stream = {"noise": _numbers("noise", noise, float), "drift": _numbers("drift", drift, float)}
    cells = sweep(
        of_bank if run else {**of_stream, **of_bank},
        out,
        bank=BankConfig(embed=embed),
        spec=None if run else StreamSpec(writes=writes),
        seeds=() if run else range(seed, seed + streams),
        streams=streams_of(run) if run else (),
    )
    axes = swept(cells)
    rows = [
        [
            *(str(cell.settings[name]) for name in axes),
            *(_told(cell.interval(measure), measure) for measure in MEASURES),
        ]
        for cell in cells
    ]
    heads = [*(name.replace("_", " ") for name in axes), *MEASURES.values()]
    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else LOG_WIDTH)
    console.print(table(f"Memory banks, {len(cells[0].replays)} streams each", heads, rows))
    if text := warning(cells):
        console.print(f"warning: {text}")
    told = plot(cells, out / "simulate.png")
    typer.echo(f"plot: {out / 'simulate.png'}{f' (at {told})' if told else ''}")


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
    digits = 0 if measure == "tokens" else 2
    value = f"{interval.value:,.{digits}f}"
    if interval.low is None or interval.high is None:
        return value
    return f"{value}\n({interval.low:,.{digits}f} to {interval.high:,.{digits}f})"
