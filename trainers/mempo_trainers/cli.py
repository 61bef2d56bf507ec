"""`mempo train`: teach a policy, and go on where a killed run stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from msgspec import Struct

from mempo_env.errors import ConfigError, lookup
from mempo_trainers.llm.cli import TRACK, llm, sft
from mempo_trainers.sb3 import sb3

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)

_TASK, _CREDIT, _SIZE = "Task", "Credit and loss", "Budget"


@app.callback()
def train() -> None:
    """Teach a policy by GRPO or PPO; `mempo train compare` puts runs side by side."""


@app.command()
def toy(
    out: Annotated[Path, typer.Option(help="Folder of the run; an unfinished one is gone on with.")],
    credit: Annotated[str, typer.Option(help="Estimator of advantages.", rich_help_panel=_CREDIT)] = "mempo",
    algo: Annotated[str, typer.Option(help="grpo, or ppo with a critic.", rich_help_panel=_CREDIT)] = "grpo",
    policy: Annotated[str, typer.Option(help="pointer, tabular or tiny_lm.")] = "pointer",
    seed: Annotated[int, typer.Option(help="Of everything drawn at random.")] = 0,
    option: Annotated[
        list[str] | None,
        typer.Option(help="NAME=VALUE of the estimator, e.g. objectives=geometric.", rich_help_panel=_CREDIT),
    ] = None,
    objectives: Annotated[
        int | None, typer.Option(help="Questions in an episode: 4; tiny_lm 2.", rich_help_panel=_TASK)
    ] = None,
    hops: Annotated[
        int | None, typer.Option(help="Articles a question leads through: 1.", rich_help_panel=_TASK)
    ] = None,
    capacity: Annotated[
        int | None, typer.Option(help="Facts in memory; 2 more than needed.", rich_help_panel=_TASK)
    ] = None,
    max_rounds: Annotated[
        int | None,
        typer.Option(help="Twice as many as needed; tiny_lm one more.", rich_help_panel=_TASK),
    ] = None,
    retriever_noise: Annotated[
        float | None, typer.Option(help="Chance that a search shows a random article.", rich_help_panel=_TASK)
    ] = None,
    reward: Annotated[
        str | None,
        typer.Option(help="A preset: em_all (the default), em_mean, f1_mean, bank.", rich_help_panel=_TASK),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Updates: 240; tiny_lm 30.", rich_help_panel=_SIZE)
    ] = None,
    questions: Annotated[
        int | None, typer.Option(help="Groups a step: 8; tiny_lm 16.", rich_help_panel=_SIZE)
    ] = None,
    rollouts: Annotated[int, typer.Option(help="Rollouts a group.", rich_help_panel=_SIZE)] = 8,
    epochs: Annotated[int, typer.Option(help="Passes over a step's rollouts.", rich_help_panel=_SIZE)] = 1,
    learning_rate: Annotated[
        float | None, typer.Option(help="Of Adam: 0.03; tiny_lm 0.0003.", rich_help_panel=_SIZE)
    ] = None,
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
    track: TRACK = None,
) -> None:
    """Train a policy of a few hundred numbers on the array face; the defaults take half a minute.

    With --policy tiny_lm, train a language model of 400,000 parameters on the text face. It first imitates a
    scripted expert, for about a minute: that warm start is fixed, no option shortens it. The defaults take
    five minutes of one core.
    """
    given = {name: value for name, value in locals().items() if value is not None}
    typer.echo(f"{out}: {_taught(given)}")
    shown = "" if policy == "tiny_lm" else f"mempo credit show {out}, "
    typer.echo(f"next: {shown}mempo doctor {out}")


def _taught(given: dict[str, Any]) -> str:
    """Train as the options that were given say; what came of it, in words.

    Raises:
        ConfigError: for an option that the task of the policy does not have.
    """
    from mempo_trainers import toy as arrays
    from mempo_trainers import toy_text as text
    from mempo_trainers.config import Config, read_options

    out: Path = given.pop("out")
    track: list[str] = given.pop("track", [])
    loop: dict[str, Any] = {"credit_options": read_options(given.pop("option", []))}
    loop |= {name: given.pop(name) for name in Config.__struct_fields__ if name in given}
    if lookup({"pointer": False, "tabular": False, "tiny_lm": True}, given["policy"], "policy"):
        _fits(given, text.ToyText)
        config = msgspec.structs.replace(text.CONFIG, **loop)
        task = text.ToyText(**given).begun(config.seed)
        return text.told(text.train(task, config, out, track=track))
    config = Config(**loop)
    result = arrays.train(arrays.Toy(**given), config, out, track=track)
    return (
        f"{config.steps * config.questions * config.rollouts:,} rollouts; success on {result['episodes']:,} "
        f"new episodes of the test split: {result['success']:.3f}"
    )


def _fits(given: dict[str, Any], task: type[Struct]) -> None:
    for name, value in given.items():
        if name not in task.__struct_fields__:
            raise ConfigError(
                f"--{name}: wanted none with --policy {given['policy']}, whose questions are of one hop and "
                f"whose memory is text, got {value}: leave it out, or choose --policy pointer"
            )


app.command()(sb3)
app.command()(sft)
app.command()(llm)
