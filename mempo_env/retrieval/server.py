"""A retrieval server: any retriever over HTTP, in the Search-R1 protocol and its dialects."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import TYPE_CHECKING, Any

import msgspec

from mempo_env.errors import ConfigError, MissingExtra, RetrieverError
from mempo_env.retrieval.base import Retriever
from mempo_env.retrieval.wire import Malformed, read_request, write_rankings

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

MAX_BODY = 16 * 2**20
"""Bytes of a request at most."""

BODY_S = 30
"""Seconds for a request's body to come; who sends half of one keeps nobody waiting meanwhile."""

RETRY_AFTER_S = 1


def app(retriever: Retriever, max_pending: int = 64) -> Starlette:
    """Make an ASGI application: `POST /retrieve` and `GET /health`.

    A bad request is answered by 422 and a line that says what is wrong with it, 408 says that its body took
    too long; 503 with Retry-After means that the server is full, or that a retriever behind it failed.

    Args:
        retriever: What ranks.
        max_pending: Requests in work at the same time, at least 1; further ones are told to come back.
    """
    try:
        from starlette.applications import Starlette
        from starlette.concurrency import run_in_threadpool
        from starlette.requests import ClientDisconnect
        from starlette.responses import Response
        from starlette.routing import Route
    except ImportError:
        raise MissingExtra("starlette", "server") from None

    def answer(content: bytes, status: int = 200) -> Response:
        headers = {"Retry-After": str(RETRY_AFTER_S)} if status == 503 else {}
        return Response(content, status, headers, media_type="application/json")

    def refuse(status: int, line: str) -> Response:
        return answer(msgspec.json.encode({"detail": " ".join(line.split())}), status)

    pending = 0

    async def retrieve(request: Request) -> Response:
        nonlocal pending
        try:
            asked = read_request(await asyncio.wait_for(_body(request), BODY_S))
        except Malformed as error:
            return refuse(422, str(error))
        except TimeoutError:
            return refuse(408, f"wanted the whole body within {BODY_S} s")
        except ClientDisconnect:
            return Response(status_code=400)  # to nobody
        if pending >= max_pending:
            return refuse(503, f"full: {max_pending} requests in work; come back in {RETRY_AFTER_S} s")
        pending += 1
        try:
            rankings = await run_in_threadpool(retriever.search, asked.queries, asked.k)
        except RetrieverError as error:
            return refuse(503, str(error))
        finally:
            pending -= 1
        return answer(write_rankings(asked, rankings))

    async def health(request: Request) -> Response:
        corpus = getattr(retriever, "corpus", None)
        told: dict[str, Any] = {"status": "ok", "fingerprint": retriever.fingerprint}
        return answer(msgspec.json.encode(told | ({"passages": len(corpus)} if corpus is not None else {})))

    return Starlette(
        routes=[Route("/retrieve", retrieve, methods=["POST"]), Route("/health", health, methods=["GET"])]
    )


async def _body(request: Request) -> bytes:
    """The body of a request; Malformed if it is too long, before it is all read."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_BODY:
            raise Malformed(f"wanted a body of at most {MAX_BODY:,} bytes")
        parts.append(part)
    return b"".join(parts)


def listen(host: str, port: int) -> socket.socket:
    """Open the socket of a server; port 0 takes a free one. ConfigError if the port is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        sock = socket.create_server((host, port), family=family, backlog=1024)
    except OverflowError:
        reason = "no such port"
    except OSError as error:
        number = error.errno or 0  # negative for names that mean nothing
        reason = os.strerror(number) if number > 0 else "no such host"
    else:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else answers wait 40 ms for the last ACK
        return sock
    raise ConfigError(f"cannot listen on {host}, port {port}: {reason}; choose another --port")


def serve(application: Starlette, sock: socket.socket) -> None:
    """Answer requests until SIGTERM or SIGINT; those in work are finished first, for at most 5 s."""
    try:
        import uvicorn
    except ImportError:
        raise MissingExtra("uvicorn", "server") from None
    config = uvicorn.Config(
        application,
        access_log=False,  # a line a request on a terminal costs more than a search
        log_level="warning",
        lifespan="off",
        timeout_keep_alive=75,
        timeout_graceful_shutdown=5,
    )
    asyncio.run(uvicorn.Server(config).serve(sockets=[sock]))
