"""`mempo data`: questions and corpora in one checked form."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from mempo_env.ansi import printable
from mempo_env.console import console
from mempo_env.errors import ConfigError
from mempo_env.questions.formats import KINDS, Summary, prepare
from mempo_env.questions.prepared import FEW, Manifest, read_manifest
from mempo_env.questions.set import QuestionSet
from mempo_env.questions.world import WorldSpec, prepare_world
from mempo_env.types import Question

app = typer.Typer(
    help="Questions and corpora in one checked form.", pretty_exceptions_enable=False, add_completion=False
)

SYNTHETIC = "synthetic"
_KINDS = "; ".join(f"{name} ({kind.help})" for name, kind in KINDS.items())


@app.command("prepare")
def prepare_command(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=f"{SYNTHETIC}; {_KINDS}.")],
    out: Annotated[Path, typer.Option(help="The folder to make.")],
    files: Annotated[list[Path] | None, typer.Argument(metavar="[FILE]...", help="Are joined.")] = None,
    corpus: Annotated[
        list[Path] | None, typer.Option(help="Further passages: wiki-18, BEIR or plain, jsonl or .gz.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="The split of all questions: train, dev or test.")] = None,
    articles: Annotated[int | None, typer.Option(help="Articles of the synthetic world.")] = None,
    questions: Annotated[int | None, typer.Option(help="Questions on the synthetic world.")] = None,
    seed: Annotated[int | None, typer.Option(help="Which synthetic world.")] = None,
) -> None:
    """Read files of KIND, or make a synthetic world: questions.jsonl and corpus.jsonl in a new folder."""
    numbers = {"articles": articles, "questions": questions, "seed": seed}
    given = {name: value for name, value in numbers.items() if value is not None}
    if kind == SYNTHETIC:
        if files or corpus or split:
            raise ConfigError(f"{SYNTHETIC}: wanted --articles, --questions and --seed only, no files")
        prepare_world(WorldSpec(**given), out)
        _show(read_manifest(out), {})
        return
    if given:
        raise ConfigError(f"{kind}: --{', --'.join(given)} belong to {SYNTHETIC!r} alone; leave them out")
    summary = prepare(kind, files or [], out, corpus or [], split)
    _show(summary.manifest, _losses(summary))
    if split is None and any(count < FEW for count in summary.manifest.splits.values()):
        typer.echo("a split with so few questions tells little: --split dev puts all of them into dev")


@app.command("show")
def show_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A prepared folder.")],
    id: Annotated[str | None, typer.Option(help="Only the question with this id.")] = None,
    n: Annotated[int, typer.Option(min=0, help="How many questions to show.")] = 3,
) -> None:
    """Show what a prepared folder holds, with some of its questions."""
    questions = QuestionSet.load(folder)
    if id is not None:
        _show_question(questions.by_id(id))
        return
    _show(read_manifest(folder), {})
    step = max(1, len(questions) // max(n, 1))
    for question in questions[::step][:n]:
        _show_question(question)


def _losses(summary: Summary) -> dict[str, int]:
    """What a user should know was left out or is missing, where there is any."""
    counts = {
        "repeated questions, written once": summary.repeated,
        "rows without an answer, left out": summary.unanswerable,
        "supporting facts that point nowhere, left out": summary.lost_facts,
        "questions without evidence": summary.without_evidence,
    }
    return {name: count for name, count in counts.items() if count}


def _show(manifest: Manifest, losses: dict[str, int]) -> None:
    table = Table(title=_plain(f"{manifest.name} ({manifest.kind})"), title_justify="left")
    table.add_column("what")
    table.add_column("count", justify="right")
    for split, count in manifest.splits.items():
        table.add_row(_plain(f"questions, {split}"), f"{count:,}")
    table.add_row("passages", f"{manifest.passages:,}")
    for name, count in losses.items():
        table.add_row(name, f"{count:,}")
    console().print(table, f"fingerprint {manifest.fingerprint}")


def _plain(text: str) -> Text:
    """Text of the data as it is: neither markup in brackets nor control characters do anything."""
    return Text("\n".join(map(printable, text.split("\n"))))


def _show_question(question: Question) -> None:
    about = (question.split, question.kind, question.level, f"{question.hops} hops" if question.hops else "")
    rows = [
        ("question", question.text),
        ("answers", "\n".join(question.answers)),
        ("about", ", ".join(filter(None, (*about, question.source)))),
        *((each.title, "\n".join(each.sentences) or "the whole passage") for each in question.evidence),
    ]
    table = Table(title=_plain(question.id), title_justify="left", show_header=False)
    table.add_column(style="bold", overflow="fold")
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*map(_plain, row))
    console().print(table)
