"""A model's server behind HTTP: many requests at a time, none of which waits longer than it says."""

from __future__ import annotations

import os
import random
import re
import ssl
from collections.abc import Callable, Sequence
from functools import cache
from typing import Annotated, Generic, TypeAlias, TypeVar

import anyio
import httpx
import msgspec
from anyio.from_thread import start_blocking_portal
from msgspec import Meta, Struct

from mempo_agents.models.base import ModelError, ModelOverflow, ModelTimeout
from mempo_env.errors import ConfigError
from mempo_env.files import BAD_JSON
from mempo_env.retrieval.link import retry_after
from mempo_env.settings import Count, Settings
from mempo_env.types import storable

T = TypeVar("T")
Seconds: TypeAlias = Annotated[float, Meta(gt=0, le=86_400)]

MAX_BODY = 64 * 2**20
"""Bytes of an answer at most; a longer one counts as garbage."""

KEY = "MEMPO_API_KEY"
"""The environment variable that a key is read from; one of our own, so that no other key is sent anywhere."""

TOO_LONG = re.compile(
    "context_length_exceeded"  # OpenAI, as a code
    "|exceed_context_size_error|available context size"  # llama.cpp: as a type, and what older ones say
    "|maximum context length|maximum model length|max_tokens must be at least 1, got -"  # vLLM
    "|model's context length|exceeds the maximum allowed length"  # SGLang
    "|exceed context window",  # llama-cpp-python
    re.IGNORECASE,
)
"""How servers say that a prompt is longer than their window; most have no code for it."""

_TOLD = 240  # characters of what a server says that a message shows
_CHANCE = random.Random()  # its own, as the global one is the user's
_WRONG_FOR_ALL = (401, 403, 404)


class Server(Settings, frozen=True, kw_only=True):
    """Where a server is, and how long to wait for it.

    A call is one prompt with all its tries. What is wrong for all calls (no connection after all tries, a
    refused key, an unknown model) is told at once to those of the same batch that still wait for their turn.

    Attributes:
        url: Its address, up to the version: http://127.0.0.1:8000/v1.
        key_env: The environment variable that holds its key; unset: none is sent. The key itself is never
            kept.
        concurrency: Calls under way at a time.
        connect: Seconds for a connection.
        read: Seconds for the next bytes of an answer; a server that does not stream sends none before the
            last token.
        total: Seconds for a call, pauses included. Nothing waits longer, but for looking up the host's name.
        tries: How often a call is tried at most.
        pause: Seconds before the second try; doubled before each further one, times a random factor of 0.5 to
            1.5. A server may ask for more (Retry-After), as long as it fits into `total`.

    Raises:
        ConfigError: if the address is none, or the key can't be sent; neither is shown.
    """

    url: str
    key_env: str = KEY
    concurrency: Count = 16
    connect: Seconds = 5.0
    read: Seconds = 120.0
    total: Seconds = 300.0
    tries: Count = 4
    pause: Seconds = 0.5

    def __post_init__(self) -> None:
        """Check the address and the key, too."""
        super().__post_init__()
        _place(self.url)
        _key(self.key_env)


class Fault(Exception):
    """A try without a usable answer.

    Attributes:
        kind: What it is if it was the last one.
        wait: Seconds that the server asks to wait, if it does.
        final: Whether asking again would give the same.
        for_all: Whether it would for every other call, too.
    """

    def __init__(
        self,
        reason: str,
        kind: type[ModelError] = ModelError,
        wait: float | None = None,
        final: bool = False,
        for_all: bool = False,
    ) -> None:
        super().__init__(reason)
        self.kind, self.wait, self.final, self.for_all = kind, wait, final, for_all


class _Batch(Struct, Generic[T]):
    """Calls that are asked together; `down` is what turned out to be wrong for all of them."""

    server: Server
    client: httpx.AsyncClient
    url: str
    key: str
    read: Callable[[bytes], T]
    down: Fault | None = None


def ask(
    server: Server, path: str, bodies: Sequence[bytes], read: Callable[[bytes], T]
) -> list[T | ModelError]:
    """Post each body and read the answers, in order; a call that failed is its error.

    It may be called from a thread in which an event loop runs (a notebook), and is left at once by Ctrl-C.

    Args:
        server: Whom to ask.
        path: Below its address, "/completions".
        bodies: JSON, one a call.
        read: From the body of an answer of status 200 to what is wanted; raises a Fault.
    """
    if not bodies:
        return []
    with start_blocking_portal() as portal:
        return portal.call(_ask, server, path, bodies, read)


async def _ask(
    server: Server, path: str, bodies: Sequence[bytes], read: Callable[[bytes], T]
) -> list[T | ModelError]:
    found: dict[int, T | ModelError] = {}
    key, slots = _key(server.key_env), anyio.Semaphore(server.concurrency)
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    limits = httpx.Limits(max_connections=server.concurrency, max_keepalive_connections=server.concurrency)
    timeout = httpx.Timeout(server.read, connect=server.connect, pool=None)

    async def call(i: int) -> None:
        async with slots:
            answer = await _call(batch, bodies[i])
            found[i] = answer

    async with httpx.AsyncClient(headers=headers, limits=limits, timeout=timeout, verify=_tls()) as client:
        batch = _Batch(server, client, server.url.rstrip("/") + path, key, read)
        async with anyio.create_task_group() as group:
            for i in range(len(bodies)):
                group.start_soon(call, i)
    return [found[i] for i in range(len(bodies))]


async def _call(batch: _Batch[T], body: bytes) -> T | ModelError:
    """The answer to one body, or the error that its last try ended in."""
    server, number = batch.server, 0
    until = anyio.current_time() + server.total
    while batch.down is None:
        number += 1
        try:
            with anyio.fail_after(until - anyio.current_time()):
                return await _try(batch, body)
        except TimeoutError:
            fault = Fault("no answer in time", ModelTimeout)
        except httpx.HTTPError as error:
            fault = _fault(error)
        except Fault as error:
            fault = error
        pause = max(server.pause * 2 ** (number - 1) * _CHANCE.uniform(0.5, 1.5), fault.wait or 0.0)
        if fault.final or number == server.tries or anyio.current_time() + pause >= until:
            batch.down = fault if fault.for_all else batch.down
            return _error(server, fault, number)
        await anyio.sleep(pause)
    return _error(server, batch.down, number)


async def _try(batch: _Batch[T], body: bytes) -> T:
    try:
        status, asked, answer = await _post(batch.client, batch.url, body)
        if status != 200:
            raise refusal(status, answer, asked)
        return batch.read(answer)
    except Fault as fault:
        fault.args = (_shown(str(fault), batch.key),)
        raise


async def _post(client: httpx.AsyncClient, url: str, body: bytes) -> tuple[int, str | None, bytes]:
    """Status, Retry-After and body of an answer, or a Fault if it is longer than any should be."""
    async with client.stream("POST", url, content=body) as response:
        answer = bytearray()
        async for part in response.aiter_bytes():
            answer += part
            if len(answer) > MAX_BODY:
                raise Fault(f"an answer of more than {MAX_BODY / 2**20:,.0f} MiB")
        return response.status_code, response.headers.get("Retry-After"), bytes(answer)


# --- What goes wrong ---------------------------------------------------------------------------------------


def refusal(status: int, answer: bytes, asked: str | None = None) -> Fault:
    """What to make of a status other than 200: 408, 409, 429 and 5xx may pass, others stay."""
    text = answer.decode("utf-8", "replace")
    told = _message(text)
    reason = f"status {status}{f': {told}' if told else ''}"
    if TOO_LONG.search(text):
        return Fault(reason, ModelOverflow, final=True)
    passing = status in (408, 409, 429) or status >= 500
    wait = retry_after(asked) if status in (429, 503) else None
    return Fault(reason, wait=wait, final=not passing, for_all=status in _WRONG_FOR_ALL)


def _message(text: str) -> str:
    """What an error says: its message in any of the usual places, else the whole text."""
    try:
        found = msgspec.json.decode(text)
    except BAD_JSON:
        return text
    for key in ("error", "detail", "message"):
        if isinstance(found, dict) and found.get(key):
            found = found[key]
    return found if isinstance(found, str) else text


def _shown(text: str, key: str) -> str:
    """What a server says, on one line, cut, and without the key that it may have said back."""
    text = text.replace(key, "[key]") if key else text
    line = " ".join(storable(text).split())
    return line if len(line) <= _TOLD else f"{line[:_TOLD]}..."


def _fault(error: httpx.HTTPError) -> Fault:
    """A few words for an error, whose own text might hold what must not be shown."""
    match error:
        case httpx.ConnectTimeout():
            return Fault("no connection in time", ModelTimeout, for_all=True)
        case httpx.TimeoutException():
            return Fault("no answer in time", ModelTimeout)
        case httpx.ConnectError():
            return Fault("no connection: nothing listens there, or there is no such host", for_all=True)
        case httpx.NetworkError():
            return Fault("connection closed without an answer")
        case httpx.RemoteProtocolError():
            return Fault("connection closed before the answer was whole, or an answer that is not HTTP")
    return Fault(f"no usable answer ({type(error).__name__})")


def _error(server: Server, fault: Fault, number: int) -> ModelError:
    if fault.kind is ModelOverflow:
        return ModelOverflow(
            f"wanted a prompt that fits the model's window, got one that does not ({fault}): show the agent "
            "less, or serve the model with a longer window"
        )
    tried = f"in {number} of {server.tries} tries" if number else "for another one of the same batch"
    return fault.kind(
        f"wanted an answer of the model at {_place(server.url)}, got none {tried} ({fault}): check the "
        "server, the model's name and the key"
    )


# --- Addresses and keys ------------------------------------------------------------------------------------


def _place(url: str) -> str:
    """Scheme, host and port of an address."""
    try:
        found = httpx.URL(url.encode().decode())  # no lone surrogates
        found.host.encode("idna")
        port = 80 if found.port is None else found.port
        usable = found.scheme in ("http", "https") and found.host and 0 < port < 2**16
    except (httpx.InvalidURL, ValueError):
        usable = False
    if not usable:
        raise ConfigError("url: wanted a model server's address, http://HOST:PORT/v1, got something else")
    if found.userinfo or found.query or found.fragment:
        raise ConfigError(
            "url: wanted an address without password, query and fragment, got one with: put the key into the "
            "environment, and its variable's name into key_env"
        )
    return f"{found.scheme}://{found.netloc.decode()}"


def _key(variable: str) -> str:
    """The key in an environment variable; "" if there is none."""
    key = os.environ.get(variable, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(f"{variable}: wanted a key of printable ASCII characters, got others (not shown)")
    return key


@cache
def _tls() -> ssl.SSLContext:
    """What httpx would make anew for each client, which takes longer than a call to a server nearby."""
    return httpx.create_ssl_context()
