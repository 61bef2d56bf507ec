"""`mempo credit`: what estimators of credit say of a run, side by side and against the truth."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mempo_env.console import console

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)

LOG_WIDTH = 120  # columns of a table that goes to a file


@app.callback()
def credit() -> None:
    """Look at estimators of credit: side by side on a rollout, or against the true advantages."""


@app.command()
def lab(
    out: Annotated[Path, typer.Option(help="Folder of the results; an unfinished one is gone on with.")],
    run: Annotated[
        list[Path] | None,
        typer.Option(help="A run of `mempo train toy`, several for several stages; none: train three here."),
    ] = None,
    estimator: Annotated[
        list[str] | None, typer.Option(help="module:function of your own, a row more; several for several.")
    ] = None,
    questions: Annotated[
        int, typer.Option(help="Groups of rollouts; 12 operations of each are measured.")
    ] = 24,
    rollouts: Annotated[int, typer.Option(help="Rollouts of a group.")] = 8,
    forks: Annotated[int, typer.Option(help="Pairs of forks of an operation, on average.")] = 192,
    seed: Annotated[int, typer.Option(help="Of everything drawn at random.")] = 0,
) -> None:
    """Rank estimators by the true advantages of memory operations, measured by forking the environment."""
    import torch

    from mempo_benchmarks.credit.lab import run_lab
    from mempo_benchmarks.credit.reading import reading
    from mempo_benchmarks.credit.report import lab_page, tables, write_plot
    from mempo_benchmarks.credit.results import PAGE, PLOT, Plan
    from mempo_benchmarks.report import write_page

    torch.set_num_threads(1)  # the policies are so small that threads cost more than they give
    plan = Plan(questions=questions, rollouts=rollouts, forks=forks, seed=seed)
    found = run_lab(plan, run or [], out, estimator or [])
    write_page(out / PAGE, lab_page(found))
    drawn = write_plot(found, out / PLOT)
    screen = console(LOG_WIDTH)
    screen.print(*tables(found), sep="\n")
    for title, sentences in reading(found):
        screen.print(title, style="bold")
        for sentence in sentences:
            screen.print(f"- {sentence}")
    typer.echo(f"lab: {out / PAGE}{f', {out / PLOT}' if drawn else ''}")


@app.command()
def show(
    run: Annotated[Path, typer.Argument(help="The folder of a run of `mempo train toy`.")],
    question: Annotated[
        int | None, typer.Option(help="Only rollouts of this group, from 0; none: the most instructive one.")
    ] = None,
    reference: Annotated[
        str, typer.Option(help="Estimator that signs are held against; module:function for your own.")
    ] = "grpo",
    seed: Annotated[int, typer.Option(help="Of everything drawn at random.")] = 0,
    html: Annotated[Path | None, typer.Option(help="Write a self-contained HTML page, too.")] = None,
) -> None:
    """Show one rollout of a run's policy with what all estimators say of each of its decisions."""
    import torch

    from mempo_benchmarks.credit.batch import open_run
    from mempo_benchmarks.credit.report import show_page
    from mempo_benchmarks.credit.show import toy_strips
    from mempo_benchmarks.credit.strip_text import render
    from mempo_benchmarks.report import write_page
    from mempo_env.files import check_place

    torch.set_num_threads(1)
    task, config, policy = open_run(run)
    if html is not None:
        check_place(html)
    name = run.resolve().name
    strips = toy_strips(task, config, policy, reference=reference, question=question, seed=seed, name=name)
    screen = console(LOG_WIDTH)
    for line in render(strips, reference, screen.width):
        screen.print(line)
    if html is not None:
        write_page(html, show_page(strips, reference))
        typer.echo(f"page: {html}")
