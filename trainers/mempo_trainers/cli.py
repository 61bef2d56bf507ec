"""`mempo train`: teach a policy, and go on where a killed run stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mempo_trainers.sb3 import sb3

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)

_TASK, _CREDIT, _SIZE = "Task", "Credit and loss", "Budget"


@app.callback()
def train() -> None:
    """Teach a policy by GRPO or PPO."""


@app.command()
def toy(
    out: Annotated[Path, typer.Option(help="Folder of the run; an unfinished one is gone on with.")],
    credit: Annotated[str, typer.Option(help="Estimator of advantages.", rich_help_panel=_CREDIT)] = "mempo",
    algo: Annotated[str, typer.Option(help="grpo, or ppo with a critic.", rich_help_panel=_CREDIT)] = "grpo",
    policy: Annotated[str, typer.Option(help="pointer or tabular.")] = "pointer",
    seed: Annotated[int, typer.Option(help="Of everything drawn at random.")] = 0,
    option: Annotated[
        list[str] | None,
        typer.Option(help="NAME=VALUE of the estimator, e.g. objectives=geometric.", rich_help_panel=_CREDIT),
    ] = None,
    objectives: Annotated[int, typer.Option(help="Questions in an episode.", rich_help_panel=_TASK)] = 4,
    hops: Annotated[int, typer.Option(help="Articles a question leads through.", rich_help_panel=_TASK)] = 1,
    capacity: Annotated[
        int | None, typer.Option(help="Facts in memory; 2 more than needed.", rich_help_panel=_TASK)
    ] = None,
    max_rounds: Annotated[
        int | None, typer.Option(help="Twice as many as needed.", rich_help_panel=_TASK)
    ] = None,
    retriever_noise: Annotated[
        float, typer.Option(help="Chance that a search shows a random article.", rich_help_panel=_TASK)
    ] = 0.0,
    reward: Annotated[
        str, typer.Option(help="A preset: em_all, em_mean, f1_mean, bank.", rich_help_panel=_TASK)
    ] = "em_all",
    steps: Annotated[int, typer.Option(help="Updates.", rich_help_panel=_SIZE)] = 240,
    questions: Annotated[int, typer.Option(help="Groups a step.", rich_help_panel=_SIZE)] = 8,
    rollouts: Annotated[int, typer.Option(help="Rollouts a group.", rich_help_panel=_SIZE)] = 8,
    epochs: Annotated[int, typer.Option(help="Passes over a step's rollouts.", rich_help_panel=_SIZE)] = 1,
    learning_rate: Annotated[float, typer.Option(help="Of Adam.", rich_help_panel=_SIZE)] = 0.03,
    entropy: Annotated[
        float, typer.Option(help="Weight of the entropy bonus.", rich_help_panel=_CREDIT)
    ] = 0.0,
    kl: Annotated[
        float, typer.Option(help="Weight of the divergence from the start.", rich_help_panel=_CREDIT)
    ] = 0.0,
    aggregation: Annotated[
        str, typer.Option(help="How token losses are summed.", rich_help_panel=_CREDIT)
    ] = "token-mean",
    dynamic_sampling: Annotated[
        int, typer.Option(help="Extra groups a step may draw for dead ones.", rich_help_panel=_SIZE)
    ] = 0,
) -> None:
    """Train a policy of a few hundred numbers on the array face; the defaults take half a minute."""
    from mempo_trainers.config import Config, read_options
    from mempo_trainers.toy import Toy, train

    task = Toy(
        policy=policy,
        objectives=objectives,
        hops=hops,
        capacity=capacity,
        max_rounds=max_rounds,
        retriever_noise=retriever_noise,
        reward=reward,
    )
    config = Config(
        algo=algo,  # type: ignore[arg-type]
        credit=credit,
        credit_options=read_options(option or []),
        seed=seed,
        steps=steps,
        questions=questions,
        rollouts=rollouts,
        epochs=epochs,
        learning_rate=learning_rate,
        entropy=entropy,
        kl=kl,
        aggregation=aggregation,  # type: ignore[arg-type]
        dynamic_sampling=dynamic_sampling,
    )
    result = train(task, config, out)
    typer.echo(
        f"{out}: {config.steps * config.questions * config.rollouts:,} rollouts; success on "
        f"{result['episodes']:,} new episodes of the test split: {result['success']:.3f}"
    )
    typer.echo(f"next: mempo credit show {out}, mempo doctor {out}")


app.command()(sb3)
