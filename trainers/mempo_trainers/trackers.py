"""Metrics for Weights & Biases and trackio, beside the run's own; what fails there never ends a training."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from msgspec import Struct

from mempo_env.errors import MissingExtra, lookup
from mempo_env.files import atomic_file

T = TypeVar("T")

IDENTITY = "tracked-as"
"""The file in a run's folder with the eight letters that tell it from others at the trackers."""

Row: TypeAlias = Mapping[str, float | int | str]


class Opened(Struct, frozen=True):
    """A tracker that takes the rows of a run.

    Attributes:
        log: Takes a row, its step among the fields.
        close: Ends it, with all on disk.
    """

    log: Callable[[dict[str, float | int | str]], Any]
    close: Callable[[], Any]


def _wandb(folder: Path, settings: Mapping[str, Any]) -> Opened:
    """Weights & Biases, in the folder of the run; offline unless WANDB_MODE says otherwise.

    Steps are a metric like others, so that those which a killed run does again are not refused.
    """
    import wandb

    run = wandb.init(
        project="mempo",
        name=folder.resolve().name,
        id=_identity(folder),
        resume="allow",
        dir=folder,
        config=dict(settings),
        mode=os.environ.get("WANDB_MODE") or "offline",
        settings=wandb.Settings(console="off", silent=True),
    )
    run.define_metric("*", step_metric="step")
    return Opened(run.log, run.finish)


def _trackio(folder: Path, settings: Mapping[str, Any]) -> Opened:
    """Trackio, in its own folder on this machine; `trackio show` shows it.

    What it prints goes to stderr.
    """
    import trackio

    name = f"{folder.resolve().name}-{_identity(folder)}"
    with redirect_stdout(sys.stderr):
        run = trackio.init(project="mempo", name=name, config=dict(settings), resume="allow")

    def log(row: dict[str, float | int | str]) -> None:
        run.log({name: value for name, value in row.items() if name != "step"}, step=int(row["step"]))

    def close() -> None:
        with redirect_stdout(sys.stderr):
            trackio.finish()

    return Opened(log, close)


TRACKERS: Mapping[str, Callable[[Path, Mapping[str, Any]], Opened]] = {
    "wandb": _wandb,
    "trackio": _trackio,
}


def check_trackers(names: Sequence[str]) -> None:
    """Refuse trackers that are unknown or not installed.

    Raises:
        ConfigError: for an unknown name.
        MissingExtra: for a package that is not installed.
    """
    for name in names:
        lookup(TRACKERS, name, "tracker")
        if getattr(find_spec(name), "origin", None) is None:  # none at all, or a mere folder of that name
            raise MissingExtra(name, name)


@contextmanager
def tracked(
    names: Sequence[str], folder: Path, settings: Mapping[str, Any]
) -> Iterator[Callable[[int, Row], None]]:
    """Open trackers; yields what takes the row of a step.

    A tracker that fails says so on stderr, once, and gets nothing more.

    Args:
        names: Of `TRACKERS`.
        folder: That of the run, which keeps its identity: a run that goes on is the same at the trackers.
        settings: Of the run.
    """
    going: dict[str, Opened] = {}

    def tried(name: str, act: Callable[..., T], *arguments: Any) -> T | None:
        try:
            return act(*arguments)
        except (Exception, SystemExit) as error:  # theirs, of any kind
            going.pop(name, None)
            told = f"{type(error).__name__}: {error}".splitlines()[0]
            print(f"{folder}: {name} failed, the run goes on without it ({told})", file=sys.stderr)  # noqa: T201
            return None

    def log(step: int, row: Row) -> None:
        for name, tracker in list(going.items()):
            tried(name, tracker.log, {"step": step, **row})

    try:
        for name in names:
            opened = tried(name, TRACKERS[name], folder, settings)
            if opened is not None:
                going[name] = opened
        yield log
    finally:
        for name, tracker in list(going.items()):
            tried(name, tracker.close)


def _identity(folder: Path) -> str:
    """What tells the run from others of the same name, made when it is first asked for."""
    file = folder / IDENTITY
    if not file.exists():
        with atomic_file(file) as out:
            out.write(secrets.token_hex(4).encode())
    return file.read_text(encoding="utf-8")
