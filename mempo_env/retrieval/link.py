"""Connections to one HTTP server: kept open, and never waiting beyond a moment in time."""

from __future__ import annotations

import io
import os
import socket
import ssl
import time
from base64 import b64encode
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPResponse, IncompleteRead
from typing import Any, cast
from urllib.parse import SplitResult, quote, unquote, urlsplit

from msgspec import Struct

from mempo_env.errors import ConfigError

MAX_BODY = 64 * 2**20
"""Bytes of an answer at most; a longer one counts as garbage."""

_OF_A_PATH = "/?%:@!$&'()*+,;=~"  # stand for themselves; so does `%`, as what it starts is encoded already


class Limits(Struct, frozen=True):
    """How long one request may take.

    Attributes:
        connect: Seconds for a connection.
        read: Seconds for the next bytes.
        until: The moment on the monotonic clock at which everything ends.
    """

    connect: float
    read: float
    until: float


class LinkError(Exception):
    """A request without a usable answer.

    Attributes:
        reason: Why, in a few words of our own.
        wait: Seconds that the server asks to wait, if it does.
        final: Whether asking again would give the same.
    """

    def __init__(self, reason: str, wait: float | None = None, final: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.wait = wait
        self.final = final


class Server:
    """One server, by its address; its open connections are shared by threads, but not with a forked process.

    Attributes:
        name: Scheme, host and port, without what must not be shown.
        path: The path of the address, with its query, as it goes over the wire.
    """

    def __init__(self, url: str) -> None:
        """Take an address like `http://127.0.0.1:8000/retrieve`, which is not asked yet."""
        try:
            parts = urlsplit(url.encode().decode())  # no lone surrogates
            usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
            self._host = (parts.hostname or "").encode("idna").decode()
        except ValueError:
            usable = False
        if not usable:
            shown = url.rpartition("@")[2]
            raise ConfigError(f"wanted the address of a retrieval server, http://HOST:PORT, got {shown!r}")
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._headers = {"Content-Type": "application/json", **_authorization(parts)}
        self._idle: list[HTTPConnection] = []
        self._process = os.getpid()
        self.name = f"{parts.scheme}://{self._host}:{self._port}"
        query = f"?{parts.query}" if parts.query else ""
        self.path = quote((parts.path if parts.path.strip("/") else "/retrieve") + query, safe=_OF_A_PATH)

    def ask(self, method: str, path: str, body: bytes, limits: Limits) -> bytes:
        """Send a request and return the body of the answer; LinkError for anything but a whole answer of 200.

        A connection that the server closed while it was idle is replaced at once.
        """
        try:
            while (connection := self._idle_connection()) is not None:
                try:
                    return self._exchange(connection, method, path, body, limits)
                except ConnectionError:
                    continue
            return self._exchange(self._connect(limits), method, path, body, limits)
        except (OSError, HTTPException, ValueError) as error:
            raise LinkError(_reason(error)) from None

    def _idle_connection(self) -> HTTPConnection | None:
        if self._process != os.getpid():
            self._process, self._idle = os.getpid(), []
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _connect(self, limits: Limits) -> HTTPConnection:
        sock = _open(self._host, self._port, limits)
        if self._tls:
            sock = self._tls.wrap_socket(sock, server_hostname=self._host)
        connection = HTTPConnection(self._host, self._port)
        connection.sock = cast(socket.socket, _BoundedSocket(sock))
        return connection

    def _exchange(
        self, connection: HTTPConnection, method: str, path: str, body: bytes, limits: Limits
    ) -> bytes:
        sock = cast(_BoundedSocket, connection.sock)
        sock.limits = limits
        try:
            connection.request(method, path, body or None, self._headers)
            response = connection.getresponse()
            answer = _whole(response)
        except BaseException:
            connection.close()
            raise
        if connection.sock is None or response.status != 200:
            connection.close()
        else:
            self._idle.append(connection)
        if response.status != 200:
            raise _refusal(response)
        return answer


class _BoundedSocket:
    """What http.client needs of a socket, with every wait cut to what the limits leave."""

    limits: Limits

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def sendall(self, data: bytes) -> None:
        self._sock.settimeout(_left(self.limits, self.limits.read))
        self._sock.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_BoundedReader(self._sock, self.limits))

    def close(self) -> None:
        self._sock.close()


class _BoundedReader(io.RawIOBase):
    def __init__(self, sock: socket.socket, limits: Limits) -> None:
        self._sock = sock
        self._limits = limits

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._sock.settimeout(_left(self._limits, self._limits.read))
        return self._sock.recv_into(buffer)


def _left(limits: Limits, longest: float) -> float:
    """Seconds that an operation may take; TimeoutError if there are none left."""
    left = min(longest, limits.until - time.monotonic())
    if left <= 0:
        raise TimeoutError
    return left


def _open(host: str, port: int, limits: Limits) -> socket.socket:
    """Connect to the first address of a host that lets us in."""
    failure = OSError()
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(_left(limits, limits.connect))
            sock.connect(address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return sock
        except OSError as error:
            sock.close()
            failure = error
    raise failure


def _authorization(parts: SplitResult) -> dict[str, str]:
    if parts.username is None:
        return {}
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return {"Authorization": f"Basic {b64encode(pair.encode()).decode()}"}


def _whole(response: HTTPResponse) -> bytes:
    """The body of an answer, or an error if it is cut off or too long."""
    body = response.read(MAX_BODY)
    if len(body) >= MAX_BODY:
        raise LinkError(f"an answer of more than {MAX_BODY // 2**20} MiB")
    if response.length:
        raise LinkError("connection closed half way through the answer")
    return body


def _refusal(response: HTTPResponse) -> LinkError:
    """What to make of a status other than 200: 429 and 5xx may pass, others stay."""
    passing = response.status == 429 or response.status >= 500
    wait = retry_after(response.getheader("Retry-After")) if response.status in (429, 503) else None
    return LinkError(f"status {response.status}", wait, final=not passing)


def retry_after(header: str | None) -> float | None:
    """Seconds to wait by a Retry-After header, which holds seconds or a date; None if it holds neither."""
    if header is None:
        return None
    if header.strip().isdecimal():
        return float(header)
    try:
        return max(0.0, parsedate_to_datetime(header).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None


def _reason(error: Exception) -> str:
    """A few words for an exception, whose own text might hold what must not be shown."""
    reasons: tuple[tuple[type[Exception] | tuple[type[Exception], ...], str], ...] = (
        (TimeoutError, "no answer in time"),
        (ConnectionRefusedError, "connection refused"),
        (ConnectionError, "connection closed without an answer"),
        (socket.gaierror, "no such host"),
        (ssl.SSLError, "no secure connection"),
        (IncompleteRead, "connection closed half way through the answer"),
        ((HTTPException, ValueError), "an answer that is not HTTP"),
    )
    return next((words for kind, words in reasons if isinstance(error, kind)), "no connection")
