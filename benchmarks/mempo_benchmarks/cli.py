"""`mempo bench`: run agents over questions, and compare what came of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mempo_agents.table import AGENTS as NAMES
from mempo_benchmarks.results import SCRIPTED, WITHOUT, alike, first_line
from mempo_env.console import console
from mempo_env.errors import ConfigError

if TYPE_CHECKING:
    from mempo_agents.models.base import Sampling
    from mempo_benchmarks.results import Plan, Row
    from mempo_benchmarks.summary import Comparison

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)

AGENTS = "react,window,no_memory,mempo"
LOG_WIDTH = 120  # columns of a table that goes to a file


@app.callback()
def bench() -> None:
    """Compare memory agents: play them, then report with intervals."""


@app.command()
def run(
    dataset: Annotated[str, typer.Option(help="'synthetic', or a folder made by `mempo data prepare`.")],
    out: Annotated[Path, typer.Option(help="Folder of the run; an unfinished one is gone on with.")],
    agents: Annotated[
        str,
        typer.Option(
            help=f"With commas, of {', '.join(sorted(NAMES))}, or module:thing of your own; empty, random "
            "and oracle are added."
        ),
    ] = AGENTS,
    model: Annotated[
        str,
        typer.Option(
            help="Behind the agents: scripted, endpoint:MODEL@URL, huggingface:MODEL, sglang:MODEL@URL, or "
            "module:thing of your own."
        ),
    ] = "scripted",
    sampling: Annotated[
        list[str] | None,
        typer.Option(help="NAME=VALUE of how it samples: temperature, top_p, max_tokens or seed."),
    ] = None,
    split: Annotated[str, typer.Option(help="train, dev or test.")] = "dev",
    episodes: Annotated[int | None, typer.Option(help="How many; by default the whole split.")] = None,
    objectives: Annotated[int, typer.Option(help="Questions in one episode, consecutive ones.")] = 1,
    top_k: Annotated[int, typer.Option(help="Passages a search returns.")] = 3,
    max_rounds: Annotated[
        int | None, typer.Option(help="Rounds of an episode; by default the environment's own number.")
    ] = None,
    answers: Annotated[
        str, typer.Option(help="How several answers are asked for: numbered lines, or semicolon (MEM1's).")
    ] = "numbered",
    seed: Annotated[int, typer.Option(help="Of the first episode; the next ones count up.")] = 0,
    num_envs: Annotated[int, typer.Option(help="Episodes at a time; changes nothing but the speed.")] = 16,
    corpus: Annotated[Path | None, typer.Option(help="Folder with another corpus to search.")] = None,
    retriever: Annotated[str, typer.Option(help="bm25, rank_bm25, or the address of a server.")] = "bm25",
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Play again what failed by no fault of the agent.")
    ] = False,
) -> None:
    """Play every agent over the first questions of a split; the same command goes on if interrupted.

    The exit code is 1 if all episodes of an agent failed, and 2 where it stops, as for 20 in a row whose
    model or retriever did not answer.
    """
    from mempo_benchmarks.run import bench as play
    from mempo_benchmarks.run import failures, make_plan

    plan = make_plan(
        dataset,
        [name.strip() for name in agents.split(",") if name.strip()],
        model=model,
        sampling=_sampling(sampling) if sampling else None,
        corpus=None if corpus is None else str(corpus),
        retriever=retriever,
        split=split,
        objectives=objectives,
        top_k=top_k,
        max_rounds=max_rounds,
        answers=answers,
        episodes=episodes,
        seed=seed,
    )
    notes = "\n".join(filter(None, (_few(plan), _asked(plan), _without(plan))))
    play(plan, out, num_envs, retry_failed, lambda: typer.echo(notes, err=True, nl=bool(notes)))
    failed = failures(plan, out)
    count = len(plan.questions)
    typer.echo(f"{out}: {len(plan.arms)} agents, {count:,} episode{'s' * (count != 1)} each")
    for line in _failed(failed, count):
        typer.echo(line, err=True)
    typer.echo(f"next: mempo bench report {out}, mempo view {out}")
    if any(len(rows) == count for rows in failed.values()):
        raise typer.Exit(1)


def _few(plan: Plan) -> str:
    """That a split of a prepared data set has few questions, and what the others have; "" if it has not."""
    from mempo_env.questions.prepared import FEW, read_manifest

    splits = {} if plan.dataset == "synthetic" else read_manifest(Path(plan.dataset)).splits
    split = plan.settings["split"]
    if splits.get(split, FEW) >= FEW:
        return ""
    there = ", ".join(f"{name} {count:,}" for name, count in splits.items())
    return (
        f"note: split {split!r} has few questions ({there}); choose another by --split, or put all questions "
        f"into one by `mempo data prepare --split {split}`"
    )


def _asked(plan: Plan) -> str:
    """Which agents ask another model than the one of the command; "" if none does."""
    models = {arm.agent: arm.model for arm in plan.arms if arm.model}
    own = [f"{agent} asks {model}" for agent, model in models.items() if ":" in agent]
    return f"note: {', '.join(own)}" if own and plan.model != SCRIPTED else ""


def _without(plan: Plan) -> str:
    """That nobody will know what memory is worth; "" if one will, or no agent asks a model."""
    asking = {arm.agent for arm in plan.arms if arm.model}
    return f"note: add {WITHOUT} to know what memory is worth" if asking and WITHOUT not in asking else ""


def _failed(failed: Mapping[str, Sequence[Row]], planned: int) -> list[str]:
    """How many episodes of each agent failed, whose fault that was, and what the first of them says."""
    lines, known = [], set()
    for agent, rows in failed.items():
        reasons = Counter(row.stop_reason for row in rows)
        named = ", ".join(f"{count:,} {reason}" for reason, count in reasons.items())
        innocent = sum(row.masked for row in rows)
        fault = f", {innocent:,} by no fault of the agent" if innocent else ""
        lines.append(f"failed: {agent}, {len(rows):,} of {planned:,} episodes ({named}){fault}")
        first = f"  the first: {first_line(rows[0].stop_detail)}"
        lines += [first] * (alike(first) not in known)
        known.add(alike(first))
    if any(row.masked for rows in failed.values() for row in rows):
        lines.append("--retry-failed plays those again that failed by no fault of the agent")
    return lines


def _sampling(pairs: Sequence[str]) -> Sampling:
    """The settings given as "name=value"; a text that is no number is refused by them."""
    from mempo_agents.models.base import Sampling

    given: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or name in given:
            raise ConfigError(f"sampling: wanted NAME=VALUE, each name once, got {pair!r}")
        given[name] = _number(text)
    return Sampling(**given)


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs; several share one table.")],
    out: Annotated[
        Path | None, typer.Option(help="The HTML page; by default report.html of the first run.")
    ] = None,
    baseline: Annotated[str, typer.Option(help="The agent that differences are shown to.")] = "random",
    allow_different: Annotated[
        bool, typer.Option("--allow-different", help="Compare runs of different data, code or settings.")
    ] = False,
    prices: Annotated[
        Path | None, typer.Option(help="TOML file with the price of each model, for dollars in the tables.")
    ] = None,
    whole: Annotated[
        bool, typer.Option("--all", help="Print every table of the page; with prices, so too.")
    ] = False,
) -> None:
    """Tables in the terminal and one self-contained HTML page, means with their 95 % intervals.

    The terminal shows what one reads first: accuracy, cost, and what memory gained.
    """
    from mempo_benchmarks.costs import read_prices
    from mempo_benchmarks.report import REPORT, report_page, write_page
    from mempo_benchmarks.summary import compare

    paid = {} if prices is None else read_prices(prices)
    comparison = compare(runs, baseline, allow_different, paid)
    page = out or runs[0] / REPORT
    write_page(page, report_page(comparison, page.parent))
    whole = whole or bool(paid)
    show(comparison, whole)
    more = "" if whole else "; it has more tables, as has --all"
    typer.echo(f"report: {page}{more}")


def show(comparison: Comparison, whole: bool = False) -> None:
    """Print a comparison: what was run, what differs, what it comes to, some tables or all."""
    from mempo_benchmarks.conclusion import conclusions
    from mempo_benchmarks.report import leads, tables

    screen = console(LOG_WIDTH)
    for line, models in leads(comparison):
        screen.print(line, style="bold")
        if models:
            screen.print(models)
    for difference in comparison.differing:
        screen.print(f"differs: {difference}", style="yellow")
    for note in comparison.notes:
        screen.print(f"note: {note}", style="yellow")
    screen.print("", *conclusions(comparison), sep="\n")
    screen.print("", *tables(comparison, whole), sep="\n")
