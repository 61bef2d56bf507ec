"""A retriever behind HTTP: the client of the Search-R1 protocol, which never waits longer than it says.

It uses the standard library's `http.client` on connections that stay open: a call takes about a tenth of a
millisecond of our own, several times less than by httpx or requests, and every read can be bounded.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from mempo_env.errors import ConfigError, RetrieverError
from mempo_env.files import BAD_JSON
from mempo_env.retrieval.link import Limits, LinkError, Server
from mempo_env.retrieval.wire import Malformed, read_rankings
from mempo_env.types import Hit

UNKNOWN = "http:unknown"
"""Fingerprint of a server that does not tell its own."""


class Patience(Struct, frozen=True):
    """How long a search may wait, in seconds, and how often it asks.

    Attributes:
        connect: For a connection.
        read: For the next bytes of an answer.
        tries: Rounds through all servers, at least 1.
        pause: Before the second round; doubled before each further one, times a random factor of 0.5 to 1.5.
        A
            server that is busy may ask for another one (Retry-After).
        total: For everything together. Nothing waits longer, but for the system's resolution of host names.
    """

    connect: float = 2.0
    read: float = 10.0
    tries: int = 3
    pause: float = 0.2
    total: float = 30.0


PATIENCE = Patience()


class HTTPRetriever:
    """Asks servers that speak the Search-R1 protocol, all queries of a call in one request.

    Several servers stand in for each other: the one that answered last is asked first. It copies to itself,
    pickles by its addresses, and may be used by several threads and by forked processes.

    Args:
        urls: One or more addresses; without a path, `/retrieve` is meant. A name and a password in one are
            sent as basic authentication and never shown.
        patience: How long to wait and how often to ask.

    Raises:
        ConfigError: if an address is none.
    """

    def __init__(self, urls: str | Sequence[str], patience: Patience = PATIENCE) -> None:
        self.urls = (urls,) if isinstance(urls, str) else tuple(urls)
        self.patience = patience
        if not self.urls:
            raise ConfigError("wanted at least one address of a retrieval server, got none")
        self._servers = [Server(url.strip()) for url in self.urls]
        self._first = 0
        self._chance = random.Random()  # its own, as the global one is the user's

    @property
    def fingerprint(self) -> str:
        """What a server says of itself under `/health`, else "http:unknown"."""
        limits = self._limits()
        for server in self._in_turn():
            try:
                health = msgspec.json.decode(server.ask("GET", "/health", b"", limits))
            except (LinkError, *BAD_JSON):
                continue
            if isinstance(health, dict) and isinstance(health.get("fingerprint"), str):
                return str(health["fingerprint"])
        return UNKNOWN

    def search(self, queries: Sequence[str], k: int) -> list[tuple[Hit, ...]]:
        """Rank passages for each query.

        Raises:
            RetrieverError: if no server gave a ranking for every query in time.
        """
        if not queries or k < 1:
            return [() for _ in queries]
        sendable = [query.encode("utf-8", "replace").decode() for query in queries]
        body = msgspec.json.encode({"queries": sendable, "topk": k, "return_scores": True})
        limits = self._limits()
        said: dict[str, str] = {}
        for number in range(1, self.patience.tries + 1):
            failures = []
            for server in self._in_turn():
                try:
                    rankings = read_rankings(server.ask("POST", server.path, body, limits), len(queries), k)
                except LinkError as failure:
                    failures.append(failure)
                except Malformed as error:
                    failures.append(LinkError(str(error)))
                else:
                    self._first = self._servers.index(server)
                    return rankings
                said[server.name] = failures[-1].reason
            if not self._wait(number, failures, limits):
                break
        reasons = "; ".join(f"{name}: {reason}" for name, reason in said.items())
        raise RetrieverError(
            f"wanted rankings for {len(queries)} queries, got none in {number} of {self.patience.tries} "
            f"tries ({reasons}): check that the server is up (GET /health) and speaks the Search-R1 protocol"
        )

    def _limits(self) -> Limits:
        return Limits(self.patience.connect, self.patience.read, time.monotonic() + self.patience.total)

    def _in_turn(self) -> Iterator[Server]:
        first = self._first
        return iter((*self._servers[first:], *self._servers[:first]))

    def _wait(self, number: int, failures: Sequence[LinkError], limits: Limits) -> bool:
        """Pause after a round without an answer; False if another one makes no sense."""
        pause = self.patience.pause * 2 ** (number - 1) * self._chance.uniform(0.5, 1.5)
        asked = [failure.wait for failure in failures if failure.wait is not None]
        pause = max(pause, min(asked, default=0.0))
        if number == self.patience.tries or all(failure.final for failure in failures):
            return False
        if time.monotonic() + pause >= limits.until:
            return False
        time.sleep(pause)
        return True

    def __copy__(self) -> HTTPRetriever:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> HTTPRetriever:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return HTTPRetriever, (self.urls, self.patience)
