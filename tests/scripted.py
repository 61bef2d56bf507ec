"""Servers over real sockets that do what a script says, right or wrong."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple


class Asked(NamedTuple):
    """A request, the connection that it came by, and the event of the server's end."""

    body: bytes
    connection: socket.socket
    stopped: threading.Event


Behaviour = Callable[[Asked], bool]
"""Answers a request; False: close the connection."""


class Scripted:
    """A server whose nth request is met by the nth behaviour, and all further ones by the last."""

    def __init__(self, *behaviours: Behaviour, port: int = 0) -> None:
        self.behaviours = behaviours
        self.requests: list[bytes] = []
        self.connections = 0
        self.stopped = threading.Event()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                while request := _read_request(connection):
                    with self._lock:
                        self.requests.append(request)
                        behaviour = self.behaviours[min(len(self.requests), len(self.behaviours)) - 1]
                    asked = Asked(request.partition(b"\r\n\r\n")[2], connection, self.stopped)
                    if not behaviour(asked):
                        return
            except OSError:
                return

    def stop(self) -> None:
        self.stopped.set()
        self._listener.close()


def _read_request(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        part = connection.recv(65_536)
        if not part:
            return b""
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(
        (int(x.split(b":")[1]) for x in head.split(b"\r\n") if x.lower().startswith(b"content-length")), 0
    )
    while len(body) < length:
        body += connection.recv(65_536)
    return head + b"\r\n\r\n" + body


@contextmanager
def serving(*behaviours: Behaviour, port: int = 0) -> Iterator[Scripted]:
    server = Scripted(*behaviours, port=port)
    try:
        yield server
    finally:
        server.stop()


def raw(data: bytes, stay: bool = False) -> Behaviour:
    def answer(asked: Asked) -> bool:
        asked.connection.sendall(data)
        return stay

    return answer


def status(code: int, headers: str = "", body: bytes = b"{}", stay: bool = True) -> Behaviour:
    head = f"HTTP/1.1 {code} Whatever\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
    return raw(head.encode() + body, stay)


def ok(answer: Any, stay: bool = True) -> Behaviour:
    return status(200, body=json.dumps(answer).encode(), stay=stay)


def hang(asked: Asked) -> bool:
    asked.stopped.wait()
    return False


def drip(prefix: bytes, step: bytes = b"x") -> Behaviour:
    """Never silent for long, never done."""

    def answer(asked: Asked) -> bool:
        asked.connection.sendall(prefix)
        while not asked.stopped.wait(0.05):
            asked.connection.sendall(step)
        return False

    return answer


def hit(name: str = "7", score: float | None = 1.5, **document: Any) -> dict[str, Any]:
    document = document or {"contents": f'"Title {name}"\ntext {name}'}
    scored = {"document": {"id": name, **document}}
    return scored if score is None else scored | {"score": score}


ONE = ok({"result": [[hit()]]})
