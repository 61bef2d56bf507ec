"""`mempo index`: search indexes of prepared data."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from mempo_env.questions.prepared import open_corpus
from mempo_env.retrieval import INDEX_FOLDER
from mempo_env.retrieval.bm25 import build_index

app = typer.Typer(
    help="Search indexes of prepared data.", pretty_exceptions_enable=False, add_completion=False
)


@app.callback()
def _main() -> None:
    """Search indexes of prepared data."""


@app.command()
def build(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A data folder with a corpus.jsonl.")],
) -> None:
    """Build DIR/index from DIR/corpus.jsonl; a build that was killed goes on where it stood."""
    start = time.monotonic()
    corpus = open_corpus(folder)
    index = folder / INDEX_FOLDER
    if build_index(corpus, index):
        typer.echo(f"indexed {len(corpus):,} passages in {time.monotonic() - start:.1f} s: {index}")
    else:
        typer.echo(f"already up to date: {index}, {len(corpus):,} passages")
