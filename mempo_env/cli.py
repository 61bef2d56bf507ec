"""The command line: a table of subcommands, each loaded when it is called."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from mempo_env.errors import MempoError, lookup

COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("mempo_benchmarks.demo", "compare the agents on the synthetic Wikipedia, with a report"),
    "data": ("mempo_env.questions.cli", "prepare | show: questions and corpora in one checked form"),
    "index": ("mempo_env.retrieval.index_cli", "build: the search index of a prepared data set"),
    "retriever": ("mempo_env.retrieval.server_cli", "serve: an index over HTTP, in the Search-R1 protocol"),
    "bench": ("mempo_benchmarks.cli", "run | report: compare agents, with intervals"),
    "view": ("mempo_benchmarks.view", "the episodes of a run as one HTML file"),
}
"""Name: (module whose `app` is a typer application, help). As strings, so nothing is imported upwards."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code: 2, with one line, for anything that the user can mend."""
    args = list(sys.argv[1:] if argv is None else argv)
    if not args or args[0] in ("-h", "--help"):
        _say(_usage(), sys.stdout)
        return 0 if args else 2
    if args[0] == "--version":
        from mempo_env import __version__

        _say(f"mempo {__version__}", sys.stdout)
        return 0
    try:
        module, _ = lookup(COMMANDS, args[0], "command")
        app = importlib.import_module(module).app
        return int(app(args[1:], prog_name=f"mempo {args[0]}", standalone_mode=True) or 0)
    except MempoError as error:
        _say(f"mempo: {' '.join(str(error).split())}", sys.stderr)
        return 2
    except KeyboardInterrupt:
        _say("mempo: interrupted; what was finished is kept", sys.stderr)
        return 130
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 2


def _usage() -> str:
    width = max(map(len, COMMANDS))
    rows = "\n".join(f"  {name:<{width}}  {text}" for name, (_, text) in COMMANDS.items())
    return f"usage: mempo COMMAND [ARGUMENTS]\n\n{rows}\n\n`mempo COMMAND --help` says more."


def _say(text: str, stream: object) -> None:
    print(text, file=stream)  # type: ignore[call-overload]
