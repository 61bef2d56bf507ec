"""`mempo retriever`: a search index over HTTP."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from mempo_env.questions.prepared import open_corpus
from mempo_env.retrieval import open_retriever
from mempo_env.retrieval.server import app as application
from mempo_env.retrieval.server import listen
from mempo_env.retrieval.server import serve as run

app = typer.Typer(help="A search index over HTTP.", pretty_exceptions_enable=False, add_completion=False)


@app.callback()
def _main() -> None:
    """A search index over HTTP."""


@app.command()
def serve(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A data folder with corpus.jsonl and index.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8000,
    retriever: Annotated[str, typer.Option(help="bm25 or rank_bm25.")] = "bm25",
    max_pending: Annotated[int, typer.Option(min=1, help="Requests in work at the same time.")] = 64,
) -> None:
    """Serve the index of DIR in the Search-R1 protocol until SIGTERM or ctrl-C."""
    corpus = open_corpus(folder)
    opened = open_retriever(retriever, corpus, folder)
    served = application(opened, max_pending)
    sock = listen(host, port)
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(0)
    )  # what the server hands the signal on to when it is done
    typer.echo(
        f"serving {len(corpus):,} passages on http://{host}:{sock.getsockname()[1]}/retrieve "
        f"(fingerprint {opened.fingerprint}); ctrl-C stops"
    )
    sys.stdout.flush()
    run(served, sock)
