"""`mempo demo`: every agent on the embedded synthetic Wikipedia, one question at a time and eight."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

RUNS = {"one-question": (1, 200), "eight-questions": (8, 50)}
"""Folder: (questions in an episode, episodes an agent)."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the two runs, which are made anew.")] = Path(
        "runs/demo"
    ),
) -> None:
    """Play all agents, print what came of it, and write a report and the episodes as HTML."""
    from mempo_benchmarks.cli import AGENTS, show
    from mempo_benchmarks.journal import discard
    from mempo_benchmarks.report import EPISODES, REPORT, report_page, write_page
    from mempo_benchmarks.run import bench, make_plan
    from mempo_benchmarks.summary import compare
    from mempo_benchmarks.view import entries_of
    from mempo_env.viewer import episodes_page

    pages = []
    for name, (objectives, episodes) in RUNS.items():
        run = out / name
        discard(run)
        bench(make_plan("synthetic", AGENTS.split(","), objectives=objectives, episodes=episodes), run)
        write_page(run / EPISODES, episodes_page(entries_of(run), title=f"Episodes of {name}"))
        comparison = compare([run])
        write_page(run / REPORT, report_page(comparison, run))
        show(comparison)
        pages += [run / REPORT, run / EPISODES]
    typer.echo("Open in a browser:\n" + "\n".join(f"  {page.resolve()}" for page in pages))
