"""The servers that all systems ask: one that searches an index, and one whose cost is known.

    python -m mempo_benchmarks.speed.server index DIR
    python -m mempo_benchmarks.speed.server slow

Both are `mempo_env.retrieval.server` in a process of its own, with one more route, `/msgpack`, for gem-llm's
client, which speaks that and no JSON. The first line of the output is the address.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from mempo_benchmarks.speed.retrieval import passages
from mempo_env.retrieval.base import Retriever
from mempo_env.retrieval.bm25 import BM25Index
from mempo_env.retrieval.corpus import CORPUS_FILE, Corpus
from mempo_env.retrieval.server import app, listen, serve
from mempo_env.types import Hit

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

CALL_S, QUERY_S = 0.002, 0.00005
"""What a call and each query in it cost the slow server."""


class Slow:
    """A retriever that finds the same passages for every query, and takes exactly as long as it says."""

    fingerprint = "slow"

    def __init__(self) -> None:
        self._hits = tuple(
            Hit(passage.id, passage.title, passage.text, row, 3.0 - row)
            for row, passage in enumerate(passages(3))
        )

    def search(self, queries: Sequence[str], k: int) -> list[tuple[Hit, ...]]:
        """Wait for what the call and its queries cost."""
        until = time.perf_counter() + CALL_S + QUERY_S * len(queries)
        time.sleep(until - time.perf_counter() - 0.0002)  # sleep is some 0.1 ms late
        while time.perf_counter() < until:
            pass
        return [self._hits[:k] for _ in queries]


def application(retriever: Retriever) -> Any:
    """Our server for a retriever, which understands gem-llm's client as well."""
    from starlette.concurrency import run_in_threadpool
    from starlette.responses import Response
    from starlette.routing import Route

    async def packed(request: Request) -> Response:
        asked = msgspec.msgpack.decode(await request.body())
        (hits,) = await run_in_threadpool(retriever.search, (asked["query"],), asked["topk"])
        found = [{"document": {"contents": f'"{hit.title}"\n{hit.text}'}, "score": hit.score} for hit in hits]
        return Response(msgspec.msgpack.encode({"result": found}), media_type="application/msgpack")

    made = app(retriever)
    made.router.routes.append(Route("/msgpack", packed, methods=["POST"]))
    return made


@contextmanager
def running(*arguments: str) -> Iterator[str]:
    """Run a server in a process of its own while the block runs; yields its address."""
    command = [sys.executable, "-m", "mempo_benchmarks.speed.server", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def main(arguments: Sequence[str]) -> int:
    """Listen on a free port, print the address, and serve until SIGTERM."""
    retriever: Retriever = Slow()
    if arguments[0] == "index":
        folder = Path(arguments[1])
        retriever = BM25Index.open(folder / "index", Corpus.open(folder / CORPUS_FILE))
    sock = listen("127.0.0.1", 0)
    sys.stdout.write(f"http://127.0.0.1:{sock.getsockname()[1]}\n")
    sys.stdout.flush()
    serve(application(retriever), sock)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
