"""A model's server behind HTTP: many requests at a time, none of which waits longer than it says."""

from __future__ import annotations

import math
import os
import random
import re
import ssl
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from html import escape
from ipaddress import ip_address
from typing import Annotated, Generic, TypeAlias, TypeVar
from urllib.request import getproxies, proxy_bypass

import anyio
import httpx
from anyio.from_thread import start_blocking_portal
from msgspec import Meta, Struct

from mempo_agents.models.answers import Fault, refusal, shown
from mempo_agents.models.base import ModelError, ModelOverflow, ModelTimeout
from mempo_env.errors import ConfigError
from mempo_env.settings import Count, Settings

T = TypeVar("T")
Seconds: TypeAlias = Annotated[float, Meta(gt=0, le=86_400)]

MAX_BODY = 64 * 2**20
"""Bytes of an answer at most; a longer one counts as garbage."""

KEY = "MEMPO_API_KEY"
"""The environment variable that a key is read from; one of our own, so that no other key is sent anywhere."""

HEALTH = "/health"
"""Below a server's address: answers with status 200 while it is well."""

ALIVE = "/model_info"
"""The same for one that loads weights, where any answer will do. SGLang generates a token to say that it is
well, and takes no weights while anything is generated."""

_SECRET, _STAND_IN = 8, 4  # characters of a key from which on it is looked for in all texts, in messages
_CHANCE = random.Random()  # its own, as the global one is the user's


class Server(Settings, frozen=True, kw_only=True):
    """Where a server is, and how long to wait for it.

    A call is one prompt with all its tries. What is wrong for all calls (no connection after all tries; a
    refused key or an unknown model, if none was answered yet) is told at once to those of the same batch that
    still wait for their turn. A server on this machine is never asked through a proxy.

    Attributes:
        url: Its address, up to the version: http://127.0.0.1:8000/v1.
        key_env: The environment variable that holds its key; unset: none is sent. The key itself is never
            kept, and masked in whatever comes back; one of 4 to 7 characters, which may be a word of an
            answer, only in what is told of failures.
        concurrency: Calls under way at a time.
        connect: Seconds for a connection.
        read: Seconds for the next bytes of an answer; a server that does not stream sends none before the
            last token.
        total: Seconds for a call, pauses included. Nothing waits longer, but for looking up the host's name.
        tries: How often a call is tried at most.
        pause: Seconds before the second try; doubled before each further one, times a random factor of 0.5 to
            1.5. A server may ask for more (Retry-After), as long as it fits into `total`.

    Raises:
        ConfigError: if the address is none, or the key can't be sent, neither of which is shown; or if the
            environment names proxies that can't be used.
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
        """Check the address, the key and the proxies, too."""
        super().__post_init__()
        _place(self.url)
        _key(self.key_env)
        _client(self)


class _Batch(Struct, Generic[T]):
    """Calls that are asked together; `down` is what turned out to be wrong for all of them.

    They end at the deadline of `calls`, which each sign of life moves on by `patience` seconds.
    """

    server: Server
    client: httpx.AsyncClient
    url: str
    key: str
    read: Callable[[bytes], T]
    patience: float
    calls: anyio.CancelScope
    answered: bool = False
    down: Fault | None = None

    def alive(self, pause: float = 0.0) -> None:
        """It is; nobody asks again for so many seconds."""
        until = anyio.current_time() + pause + self.patience
        self.calls.deadline = max(self.calls.deadline, until)


def ask(
    server: Server,
    path: str,
    bodies: Sequence[bytes],
    read: Callable[[bytes], T],
    patience: float | None = None,
    busy: bool = False,
) -> list[T | ModelError]:
    """Post each body and read the answers, in order; a call that failed is its error.

    It may be called from a thread in which an event loop runs (a notebook), and is left at once by Ctrl-C.

    Args:
        server: Whom to ask.
        path: Below its address, "/completions".
        bodies: JSON, one a call.
        read: From the body of an answer of status 200 to what is wanted; raises a Fault.
        patience: Seconds after which all calls end if none was answered meanwhile, nor has the server said
            that it is well, which it is asked all the time; None: it is not asked.
        busy: Whether it may say that it is not well, as long as it says something: it loads weights.
    """
    if not bodies:
        return []
    with start_blocking_portal() as portal:
        return portal.call(_ask, server, path, bodies, read, patience, busy)


async def _ask(
    server: Server,
    path: str,
    bodies: Sequence[bytes],
    read: Callable[[bytes], T],
    patience: float | None,
    busy: bool,
) -> list[T | ModelError]:
    found: dict[int, T | ModelError] = {}
    key, slots = _key(server.key_env), anyio.Semaphore(server.concurrency)

    async def call(i: int) -> None:
        async with slots:
            answer = await _call(batch, bodies[i])
            found[i] = answer

    async with _client(server) as client, anyio.create_task_group() as watching:
        with anyio.CancelScope() as calls:
            url, last = server.url.rstrip("/") + path, math.inf if patience is None else patience
            batch = _Batch(server, client, url, key, read, last, calls)
            if patience is not None:
                calls.deadline = anyio.current_time() + patience
                watching.start_soon(_watch, batch, ALIVE if busy else HEALTH)
            async with anyio.create_task_group() as group:
                for i in range(len(bodies)):
                    group.start_soon(call, i)
        watching.cancel_scope.cancel()
    ended = batch.down or Fault(f"it has not said for {last:g} s that it is well")
    return [found[i] if i in found else _error(server, ended, 1) for i in range(len(bodies))]


async def _watch(batch: _Batch[T], path: str) -> None:
    """Ask a server all the time whether it is well."""
    pause = min(1.0, batch.patience / 4)
    while True:
        if "" in await _heard(batch.server, path, batch.patience):
            batch.alive(pause)
        await anyio.sleep(pause)


def heard(server: Server, seconds: float) -> list[str]:
    """What a server says, in so many seconds, when it is asked whether it is well, until it is: "", the last.

    It takes no longer, whatever the server does, but for looking up the host's name.
    """
    with start_blocking_portal() as portal:
        return portal.call(_heard, server, HEALTH, seconds)


async def _heard(server: Server, path: str, seconds: float) -> list[str]:
    """The same of any path.

    Each question stands for all the time that is left. A next one comes after it where the answer is not that
    all is well, and beside it where none has come for a quarter of the time: it may be lost.
    """
    place, said = server.url.rstrip("/") + path, list[str]()

    async def question(answered: anyio.Event) -> None:
        try:
            async with client.stream("GET", place, timeout=(server.connect, None, None, None)) as answer:
                told = "" if path == ALIVE or answer.status_code == 200 else f"status {answer.status_code}"
        except httpx.HTTPError as error:
            told = str(_fault(error))
        said.append(told)
        answered.set()
        if not told:
            questions.cancel_scope.cancel()

    with anyio.move_on_after(seconds):
        async with _client(server) as client, anyio.create_task_group() as questions:
            while True:
                answered = anyio.Event()
                questions.start_soon(question, answered)
                with anyio.move_on_after(seconds / 4) as late:
                    await answered.wait()
                if late.cancelled_caught:
                    said.append("no answer in time")
                await anyio.sleep(min(0.5, seconds / 4))
    return said


async def _call(batch: _Batch[T], body: bytes) -> T | ModelError:
    """The answer to one body, or the error that its last try ended in."""
    server, number = batch.server, 0
    until = anyio.current_time() + server.total
    while batch.down is None:
        number += 1
        try:
            with anyio.fail_after(until - anyio.current_time()):
                answer = await _try(batch, body)
            batch.answered = True
            batch.alive()
            return answer
        except TimeoutError:
            fault = Fault("no answer in time", ModelTimeout)
        except httpx.HTTPError as error:
            fault = _fault(error)
        except Fault as error:
            fault = error
        pause = max(server.pause * 2 ** (number - 1) * _CHANCE.uniform(0.5, 1.5), fault.wait or 0.0)
        if fault.final or number == server.tries or anyio.current_time() + pause >= until:
            if fault.for_all and not (fault.final and batch.answered):
                batch.down = fault
            return _error(server, fault, number)
        await anyio.sleep(pause)
    return _error(server, batch.down, number)


async def _try(batch: _Batch[T], body: bytes) -> T:
    """What is read in an answer, in which the key stands nowhere any more."""
    status, asked, answer = await _post(batch.client, batch.url, body)
    answer = _masked(answer, batch.key, _SECRET)
    try:
        if status != 200:
            raise refusal(status, answer, asked)
        return batch.read(answer)
    except Fault as fault:
        told = _masked(str(fault).encode("utf-8", "replace"), batch.key, _STAND_IN)
        fault.args = (shown(told.decode()),)
        raise


async def _post(client: httpx.AsyncClient, url: str, body: bytes) -> tuple[int, str | None, bytes]:
    """Status, Retry-After and body of an answer, or a Fault if it is longer than any should be.

    No compression is asked for, and none undone: a few bytes may stand for gigabytes.
    """
    async with client.stream("POST", url, content=body) as response:
        answer, coding = bytearray(), response.headers.get("Content-Encoding", "identity")
        if coding.strip().lower() not in ("identity", ""):
            if response.status_code == 200:
                raise Fault("an answer that is compressed, which was not asked for")
            return response.status_code, response.headers.get("Retry-After"), b""
        async for part in response.aiter_raw():
            answer += part
            if len(answer) > MAX_BODY:
                raise Fault(f"an answer of more than {MAX_BODY / 2**20:,.0f} MiB")
        return response.status_code, response.headers.get("Retry-After"), bytes(answer)


# --- What goes wrong ---------------------------------------------------------------------------------------


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
    proxy = _proxy(server.url)
    return fault.kind(
        f"wanted an answer of the model at {_place(server.url)}, got none {tried} ({fault}): check the "
        f"server, the model's name and the key{f', and the proxy in {proxy}' if proxy else ''}"
    )


# --- Addresses, keys, proxies ------------------------------------------------------------------------------


def _client(server: Server) -> httpx.AsyncClient:
    """A client with a connection for each request."""
    key = _key(server.key_env)
    try:
        return httpx.AsyncClient(
            headers={
                "Content-Type": "application/json",
                "Accept-Encoding": "identity",
                **({"Authorization": f"Bearer {key}"} if key else {}),
            },
            limits=httpx.Limits(
                max_keepalive_connections=0,  # what a server sends too much is no answer to another prompt
            ),
            timeout=httpx.Timeout(server.read, connect=server.connect, pool=None),
            verify=_tls(),
            trust_env=not local(server.url),
        )
    except (ImportError, ValueError, httpx.InvalidURL):  # whose texts may hold a password
        raise ConfigError(
            "HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY: wanted proxies as http://HOST:PORT (or "
            "socks5://HOST:PORT, after pip install 'httpx[socks]') and names of hosts that need none, got "
            "something else (not shown): mend or unset them"
        ) from None


def local(url: str) -> bool:
    """Whether an address is this machine's own."""
    host = httpx.URL(url).host
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _proxy(url: str) -> str:
    """The environment variable whose proxy leads to an address; "" if none does."""
    found, known = httpx.URL(url), getproxies()
    if local(url) or proxy_bypass(found.host):
        return ""
    return next((f"{kind.upper()}_PROXY" for kind in (found.scheme, "all") if kind in known), "")


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


def _masked(text: bytes, key: str, least: int) -> bytes:
    """The text without the key, however it spells that; one of fewer characters than `least` stays."""
    return text if len(key) < least else _spellings(key).sub(b"[key]", text)


@lru_cache(maxsize=1)
def _spellings(key: str) -> re.Pattern[bytes]:
    """The key as an answer may spell it: plain, or by escapes of JSON, HTML or addresses."""
    one = rb"(?:(?i:\\{1,8}u00%02x|%%%02x|&#0*%d;|&#x0*%02x;)|%b|\\{0,8}%b)"
    parts = (one % (*[ord(c)] * 4, re.escape(escape(c).encode()), re.escape(c.encode())) for c in key)
    return re.compile(b"".join(parts))


@cache
def _tls() -> ssl.SSLContext:
    """What httpx would make anew for each client, which takes longer than a call to a server nearby."""
    return httpx.create_ssl_context()
