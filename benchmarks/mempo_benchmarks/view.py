"""`mempo view`: the episodes of a run as one HTML file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from mempo_benchmarks.report import EPISODES, write_page
from mempo_benchmarks.results import PLAN, FullRow, read_plan, read_rows
from mempo_benchmarks.run import CEILING, FLOORS
from mempo_env.errors import ConfigError, lookup
from mempo_env.files import read_jsonl
from mempo_env.types import Episode
from mempo_env.viewer import SAMPLES, SETTINGS, Entry, episodes_page

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)


@app.command()
def view(
    run: Annotated[Path, typer.Argument(help="The folder of a run of mempo bench or mempo train.")],
    agent: Annotated[str | None, typer.Option(help="Only this agent's episodes, or evaluation's.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first episodes of each agent.")] = None,
    out: Annotated[Path | None, typer.Option(help="The page; by default episodes.html of the run.")] = None,
) -> None:
    """Write all episodes of a run into one self-contained HTML file."""
    page = out or run / EPISODES
    entries = entries_of(run, agent, limit)
    write_page(page, episodes_page(entries, title=f"Episodes of {run.resolve().name}"))
    counts = Counter(entry.label for entry in entries)
    typer.echo(f"{', '.join(f'{name} {count:,}' for name, count in counts.items())} episodes")
    typer.echo(f"episodes: {page}")


def entries_of(run: Path, agent: str | None = None, limit: int | None = None) -> list[Entry]:
    """The episodes of a run, agent by agent (floors and ceiling last), question by question.

    Of a training run they are those that its evaluations left, which are called by their step or split.

    Args:
        run: Its folder.
        agent: Only those of this agent.
        limit: Only the first ones of each agent.

    Raises:
        ResultsError: if it is no run, or was changed by hand.
        ConfigError: if there is no such agent, or no episode.
    """
    if trained := sorted(run.glob(f"{SAMPLES}-*.jsonl")):
        return _of_training(trained, agent, limit)
    if (run / SETTINGS).is_file() and not (run / PLAN).is_file():
        raise ConfigError(
            f"{run}: wanted episodes to show, found a training run that has none yet: `mempo train llm` and "
            "`sft` leave some at each evaluation (evaluate_every) and at the end, `mempo train toy` none"
        )
    plan = read_plan(run)
    names = sorted((arm.agent for arm in plan.arms), key={*FLOORS, CEILING}.__contains__)
    order = {name: i for i, name in enumerate(names)}
    if agent is not None:
        order = {agent: lookup(order, agent, "agent of the run")}
    most = len(plan.questions) if limit is None else limit
    rows = [row for row in read_rows(run, plan, FullRow) if row.agent in order and row.index < most]
    if not rows:
        raise ConfigError(f"{run}: wanted episodes to show, found none; play them by `mempo bench run`")
    rows.sort(key=lambda row: (order[row.agent], row.index))
    return [Entry(label=row.agent, episode=row.episode) for row in rows]


def _of_training(files: Sequence[Path], agent: str | None, limit: int | None) -> list[Entry]:
    """The episodes in files of a training run, one for each evaluation; at least one."""
    names = [file.stem.removeprefix(f"{SAMPLES}-") for file in files]
    labels = [f"step {int(name)}" if name.isdigit() else name for name in names]
    named = dict(zip(labels, files, strict=True))
    if agent is not None:
        named = {agent: lookup(named, agent, "evaluation of the run")}
    return [
        Entry(label=name, episode=episode)
        for name, file in named.items()
        for _, episode in islice(read_jsonl(file, Episode), limit)
    ]
