"""`mempo doctor RUN`: what is wrong with a training run, with evidence and what to do next."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from mempo_env.console import console
from mempo_env.errors import ConfigError
from mempo_trainers.doctor import Diagnosis, diagnose, reproduces
from mempo_trainers.run_files import read_metrics, read_settings
from mempo_trainers.run_settings import differences, endless

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def doctor(
    run: Annotated[Path, typer.Argument(help="Folder of the run.")],
    against: Annotated[
        Path | None, typer.Option(help="A run of the same settings and seed, of any length: are they equal?")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Say what is wrong with a training run.

    Exits with 0 if nothing is found, with 1 if something is, with 2 if nothing could be checked.
    """
    found = examine(run, against)
    if json:
        typer.echo(msgspec.json.encode({"run": str(run), **msgspec.to_builtins(found)}))
    else:
        _show(run, found)
    raise typer.Exit(1 if found.findings else 0 if found.checked else 2)


def examine(run: Path, against: Path | None = None) -> Diagnosis:
    """The diagnosis of a run, and whether another one of the same settings came out the same.

    Raises:
        ResultsError: if there is no run, or it cannot be read.
        ConfigError: if the other run has other settings, beside its number of steps, or is the same one.
    """
    settings, rows = read_settings(run), read_metrics(run)
    found = diagnose(rows, settings)
    if against is None:
        return found
    if against.resolve() == run.resolve():
        raise ConfigError(
            f"--against {against}: wanted another run of the settings of {run}, got that one itself"
        )
    if told := differences(endless(settings), endless(read_settings(against))):
        raise ConfigError(f"--against {against}: wanted a run of the same settings as {run}, got {told}")
    others = read_metrics(against)
    finding = reproduces(rows, others)
    if finding is not None:
        return msgspec.structs.replace(found, findings=(finding, *found.findings))
    fine = {"not_reproduced": f"{min(len(rows), len(others))} steps are equal bit for bit", **found.fine}
    return msgspec.structs.replace(found, fine=fine)


def _show(run: Path, found: Diagnosis) -> None:
    from rich.table import Table
    from rich.text import Text

    screen = console()
    screen.print(Text(f"{run}: {_lead(run, found)}"), soft_wrap=True)
    if found.findings:
        table = Table("symptom", "evidence, threshold, next", show_lines=True)
        for finding in found.findings:
            colour = "red" if finding.severity == "error" else "yellow"
            lines = finding.evidence, f"threshold: {finding.threshold}", f"next: {finding.action}"
            table.add_row(
                Text(f"{finding.symptom}\n{finding.severity}", style=colour), Text("\n".join(lines))
            )
        screen.print(table)
    for name, text in found.fine.items():
        screen.print(Text(f"checked, fine: {name}: {text}"), soft_wrap=True)
    for name, text in _alike(found.unchecked).items():
        screen.print(Text(f"not checked: {name}: {text}"), soft_wrap=True)


def _alike(unchecked: dict[str, str]) -> dict[str, str]:
    """What could not be checked, in one line where that is all for one reason."""
    reasons = set(unchecked.values())
    return {"all others": reasons.pop()} if len(reasons) == 1 < len(unchecked) else unchecked


def _lead(run: Path, found: Diagnosis) -> str:
    """How much of the run there is, and what came of how many checks."""
    steps = f"unfinished, {found.steps:,} of {found.planned:,} steps; " if found.unfinished else ""
    if not found.checked:
        held = ", ".join(name for name in read_metrics(run)[-1] if name != "step")
        return f"{steps}nothing could be checked, for its metrics hold only {held}"
    checks = found.checked + len(found.unchecked)
    return f"{steps}{len(found.findings) or 'nothing'} found by {found.checked} of {checks} checks"
