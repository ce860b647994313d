"""`Client` and `AsyncClient`: the same calls, with and without an event loop."""

from __future__ import annotations

import functools
import os
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

import httpx2

from tiermesh.calls import Calls
from tiermesh.server import Server
from tiermesh.transport import BlockingTransport, LoopTransport, run

P = ParamSpec("P")
T = TypeVar("T")

URL = "http://127.0.0.1:7080"
"""Where `tiermesh web` serves unless it is told otherwise."""
TIMEOUT_SECONDS = 30.0
OUTAGE_SECONDS = 120.0


def blocking(
    call: Callable[Concatenate[Calls, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Client, P], T]:
    """Return a method of `Client` that executes a call."""

    @functools.wraps(call)
    def method(self: Client, /, *arguments: P.args, **named: P.kwargs) -> T:
        return run(call(self._calls, *arguments, **named))

    return method


def blocking_iterator(
    call: Callable[Concatenate[Calls, P], AsyncGenerator[T, None]],
) -> Callable[Concatenate[Client, P], Iterator[T]]:
    """Return a method of `Client` that iterates over what a call yields."""

    @functools.wraps(call)
    def method(self: Client, /, *arguments: P.args, **named: P.kwargs) -> Iterator[T]:
        items = call(self._calls, *arguments, **named)
        end = object()

        async def step() -> Any:
            return await anext(items, end)

        try:
            while (item := run(step())) is not end:
                yield item
        finally:
            run(items.aclose())

    return method


class Client:
    """A client of a cluster, whose calls block. Threads may share it.

    Jobs are named by their id, a part of it that no other job's id has, or `latest`. Leaving the client's context
    closes its connections, and so does `close`.

    Args:
        url: address of `tiermesh web`. Without TLS it must be on this host, if there is a token.
        token: token of the caller, by `tiermesh tokens issue`; None for the one that a `tiermesh web` without TLS
            keeps in `~/.tiermesh/web-token` on this host.
        ca: PEM file of the authority that has signed the server's certificate; None for those of the system.
        timeout_seconds: longest wait for a connection, and for each further part of an answer.
        outage_seconds: longest outage that `follow`, `wait`, `download`, `submit` and `continue_` survive, once they
            have had an answer.

    Raises:
        Refused: an argument is wrong, or the file of the token is unsafe.
    """

    def __init__(
        self,
        url: str = URL,
        *,
        token: str | None = None,
        ca: str | os.PathLike[str] | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
        outage_seconds: float = OUTAGE_SECONDS,
    ) -> None:
        server = Server.find(url, token, ca, timeout_seconds)
        self._transport = BlockingTransport(httpx2.Client(**server.client_options()))
        self._calls = Calls(self._transport, server.url, outage_seconds)

    submit = blocking(Calls.submit)
    jobs = blocking_iterator(Calls.jobs)
    get = blocking(Calls.get)
    cancel = blocking(Calls.cancel)
    pause = blocking(Calls.pause)
    resume = blocking(Calls.resume)
    set_priority = blocking(Calls.set_priority)
    continue_ = blocking(Calls.continue_)
    status = blocking(Calls.status)
    follow = blocking_iterator(Calls.follow)
    wait = blocking(Calls.wait)
    log = blocking_iterator(Calls.log)
    metrics = blocking(Calls.metrics)
    checkpoints = blocking_iterator(Calls.checkpoints)
    download = blocking(Calls.download)

    def close(self) -> None:
        """Close all connections."""
        run(self._transport.close())

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncClient(Calls):
    """A client of a cluster on asyncio's event loop: the calls and arguments of `Client`.

    Its methods are coroutines; `jobs`, `follow`, `log` and `checkpoints` are async iterators. It belongs to one event
    loop.
    """

    def __init__(
        self,
        url: str = URL,
        *,
        token: str | None = None,
        ca: str | os.PathLike[str] | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
        outage_seconds: float = OUTAGE_SECONDS,
    ) -> None:
        server = Server.find(url, token, ca, timeout_seconds)
        transport = LoopTransport(httpx2.AsyncClient(**server.client_options()))
        super().__init__(transport, server.url, outage_seconds)

    async def close(self) -> None:
        """Close all connections."""
        await self._transport.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
