"""`mempo train llm` and `mempo train sft`: a language model of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

_CONFIG = typer.Option(help="TOML with a table for each part: policy, task, ...")
_SET = typer.Option("--set", help="NAME=VALUE of one setting, as in config.steps=3; may be given often.")
TRACK: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(help="Log to wandb or trackio, too: offline and local by default; may be given twice."),
]
_OUT = typer.Option(help="Folder of the run; an unfinished one is gone on with.")


def llm(
    out: Annotated[Path, _OUT],
    config: Annotated[Path | None, _CONFIG] = None,
    change: Annotated[list[str] | None, _SET] = None,
    track: TRACK = None,
) -> None:
    """Train a language model by GRPO or PPO with credit for its memory; policy.model is all that is needed.

    Settings and their defaults: mempo_trainers.llm.settings.Setup; the run's settings.json echoes them.
    """
    from mempo_trainers.llm.settings import Setup, read_setup
    from mempo_trainers.llm.train import train

    _tell(out, train(read_setup(Setup, config, change or ()), out, track=track or ()))
    typer.echo(f"next: mempo doctor {out}")


def sft(
    out: Annotated[Path, _OUT],
    config: Annotated[Path | None, _CONFIG] = None,
    change: Annotated[list[str] | None, _SET] = None,
    track: TRACK = None,
) -> None:
    """Let a language model imitate an expert's episodes, or a file of chats.

    Settings and their defaults: mempo_trainers.llm.settings.SftSetup.
    """
    from mempo_trainers.llm.settings import SftSetup, read_setup
    from mempo_trainers.llm.train import POLICY, imitate

    _tell(out, imitate(read_setup(SftSetup, config, change or ()), out, track=track or ()))
    typer.echo(f"next: mempo train llm --set policy.model={out / POLICY} --out ..., with the same task")


def _tell(out: Path, result: dict[str, float]) -> None:
    typer.echo(
        f"{out}: EM on {result['episodes']:,.0f} episodes of the test split {result['em']:.3f}, F1 "
        f"{result['f1']:.3f}, all right in {result['success']:.3f}; {result['well_formed']:.3f} of the "
        "rounds well-formed"
    )
