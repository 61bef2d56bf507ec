"""The command line: a table of subcommands, each loaded when it is called."""

from __future__ import annotations

import importlib
import io
import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from mempo_env.errors import ConfigError, MempoError, lookup

COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("mempo_benchmarks.demo", "compare the agents on the synthetic Wikipedia, with a report"),
    "data": ("mempo_env.questions.cli", "prepare | show: questions and corpora in one checked form"),
    "index": ("mempo_env.retrieval.index_cli", "build: the search index of a prepared data set"),
    "retriever": ("mempo_env.retrieval.server_cli", "serve: an index over HTTP, in the Search-R1 protocol"),
    "train": ("mempo_trainers.cli", "toy | sft | llm | sb3: teach a policy by imitation, GRPO or PPO"),
    "train compare": (
        "mempo_benchmarks.toy.compare",
        "training runs side by side, with intervals",
    ),
    "credit": ("mempo_benchmarks.credit.cli", "show | lab: what estimators say of a run, and the truth"),
    "doctor": ("mempo_trainers.doctor.cli", "what is wrong with a training run, and what to do next"),
    "memory": ("mempo_benchmarks.memory.cli", "simulate: memory banks under other settings, without a model"),
    "bench": ("mempo_benchmarks.cli", "run | report: compare agents, with intervals"),
    "view": ("mempo_benchmarks.view", "the episodes of a run as one HTML file"),
}
"""Name: (module whose `app` is a typer application, help). As strings, so nothing is imported upwards; a
name of two words is a command of a group that is defined elsewhere."""

_CREATOR = re.compile(r" was raised from the environment creator for \S+ with kwargs \(.*\)", re.DOTALL)
"""What `gymnasium.make` writes behind errors of ours, which have said what is wrong."""

INTERRUPTED = 130
"""The exit code of what ctrl-C ended, as shells have it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code: 2, with one line, for anything that the user can mend."""
    _settle_streams()
    try:
        code = _run(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
    except MempoError as error:
        return _fail(f"mempo: {_CREATOR.sub('', str(error))}")
    except BrokenPipeError:  # whoever read the output has seen enough
        _drop_output()
        return 1
    except OSError as error:
        _drop_output()
        names = [str(name) for name in (error.filename, error.filename2) if name is not None]
        return _fail(": ".join(("mempo", *names, error.strerror or str(error))))
    except UnicodeEncodeError as error:  # streams replace, so this is the name of a file
        return _fail(f"mempo: wanted names of files in UTF-8, got {error.object!r}; rename it")
    except KeyboardInterrupt:
        code = INTERRUPTED
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 2
    if code == INTERRUPTED:
        _fail("mempo: interrupted; what was finished is kept")
    return code


def _run(args: list[str]) -> int:
    if not args or args[0] in ("-h", "--help"):
        sys.stdout.write(_usage())
        return 0 if args else 2
    if args[0] == "--version":
        from mempo_env import __version__

        sys.stdout.write(f"mempo {__version__}\n")
        return 0
    two = " ".join(args[:2])
    name = two if two in COMMANDS else args[0]
    module, _ = lookup(COMMANDS, name, "command")
    _no_empty(args)
    import typer

    app = importlib.import_module(module).app
    try:
        return int(app(args[len(name.split()) :], prog_name=f"mempo {name}", standalone_mode=False) or 0)
    except typer.Abort:
        return INTERRUPTED
    except Exception as error:
        if not hasattr(
            error, "format_message"
        ):  # what click's errors have, whichever click typer brings along
            raise
        return _misused(error, f"mempo {name}")


def _no_empty(args: Sequence[str]) -> None:
    """Refuse an empty text: as a path, which most are, it would be the working folder."""
    parts = [part for arg in args for part in (arg.split("=", 1) if arg.startswith("--") else (arg,))]
    if "" in parts:
        before = " ".join(parts[: parts.index("")])
        raise ConfigError(f"{before}: wanted a text behind it, got an empty one; is a variable not set?")


def _misused(error: Any, command: str) -> int:
    """Say in one line how a command was misused; a bare group asks for its help."""
    command = error.ctx.command_path if error.ctx else command
    if type(error).__name__ == "NoArgsIsHelpError":
        sys.stderr.write(f"{error.format_message()}\n")
        return 2
    return _fail(f"{command}: {error.format_message().rstrip('.')}; see `{command} --help`")


def _usage() -> str:
    width = max(map(len, COMMANDS))
    rows = "\n".join(f"  {name:<{width}}  {text}" for name, (_, text) in COMMANDS.items())
    return f"usage: mempo COMMAND [ARGUMENTS]\n\n{rows}\n\n`mempo COMMAND --help` says more.\n"


def _fail(line: str) -> int:
    """Print one line of printable characters on stderr; returns the exit code of what a user can mend."""
    from mempo_env.ansi import printable

    sys.stderr.write(printable(" ".join(line.split())) + "\n")
    return 2


def _settle_streams() -> None:
    """Give closed streams a place to go to, and characters that stdout does not know a substitute."""
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):  # stderr has substitutes already
        sys.stdout.reconfigure(errors="replace")


def _drop_output() -> None:
    """Where stdout cannot take what it holds, send it to nowhere: it would fail once more at the very end."""
    try:
        sys.stdout.flush()
    except OSError:
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
