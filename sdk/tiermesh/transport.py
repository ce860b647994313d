"""Requests and answers over httpx2, for programs with and without an event loop.

Both transports have the same `async` methods. Those of `BlockingTransport` block and never suspend, so `run` can
execute a coroutine that awaits nothing else, without an event loop. So the package has each of its calls once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import httpx2

T = TypeVar("T")

BLOCK_BYTES = 1 << 20
"""Size of the blocks that files are read in."""


@dataclass(frozen=True)
class Request:
    """One HTTP request.

    Attributes:
        method: GET, POST or PUT.
        path: path below the server's address.
        query: parameters of the query.
        headers: headers beside those that every request has.
        body: content, or blocks of it; empty for none.
        silence_seconds: longest time without a byte of the answer; None for the client's limit.
    """

    method: str
    path: str
    query: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | Iterator[bytes] = b""
    silence_seconds: float | None = None


class Transport(Protocol):
    """What the calls of a client need of the world."""

    def open(self, request: Request) -> AbstractAsyncContextManager[httpx2.Response]:
        """Return an async context manager that sends a request and yields its answer, before the body is read.

        It raises `httpx2.TransportError`.
        """

    def blocks(self, answer: httpx2.Response) -> AsyncGenerator[bytes, None]:
        """Yield the body of an answer as it arrives, so that nothing is lost if the connection breaks."""

    def events(self, answer: httpx2.Response) -> AsyncGenerator[httpx2.ServerSentEvent, None]:
        """Yield the server-sent events of an answer."""

    async def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Return the result of a function that works on files."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""

    async def close(self) -> None:
        """Close all connections."""


class BlockingTransport:
    """A transport whose methods block until they are done.

    Args:
        client: sends the requests.
    """

    def __init__(self, client: httpx2.Client) -> None:
        self._client = client

    @asynccontextmanager
    async def open(self, request: Request) -> AsyncIterator[httpx2.Response]:
        """See `Transport`."""
        with self._client.stream(
            request.method,
            request.path,
            params=request.query,
            headers=request.headers,
            content=request.body or None,
            timeout=_timeout(self._client.timeout, request),
        ) as answer:
            yield answer

    async def blocks(self, answer: httpx2.Response) -> AsyncGenerator[bytes, None]:
        """See `Transport`."""
        for block in answer.iter_bytes():
            yield block

    async def events(self, answer: httpx2.Response) -> AsyncGenerator[httpx2.ServerSentEvent, None]:
        """See `Transport`."""
        for event in httpx2.EventSource(answer):
            yield event

    async def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """See `Transport`."""
        return function(*arguments)

    async def sleep(self, seconds: float) -> None:
        """See `Transport`."""
        time.sleep(seconds)

    async def close(self) -> None:
        """See `Transport`."""
        self._client.close()


class LoopTransport:
    """A transport on asyncio's event loop. Functions that work on files run on a thread.

    Args:
        client: sends the requests.
    """

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self._client = client

    @asynccontextmanager
    async def open(self, request: Request) -> AsyncIterator[httpx2.Response]:
        """See `Transport`."""
        body = request.body if isinstance(request.body, bytes) else self._send(request.body)
        async with self._client.stream(
            request.method,
            request.path,
            params=request.query,
            headers=request.headers,
            content=body or None,
            timeout=_timeout(self._client.timeout, request),
        ) as answer:
            yield answer

    async def _send(self, blocks: Iterator[bytes]) -> AsyncIterator[bytes]:
        while block := await self.call(next, blocks, b""):
            yield block

    async def blocks(self, answer: httpx2.Response) -> AsyncGenerator[bytes, None]:
        """See `Transport`."""
        async for block in answer.aiter_bytes():
            yield block

    async def events(self, answer: httpx2.Response) -> AsyncGenerator[httpx2.ServerSentEvent, None]:
        """See `Transport`."""
        async for event in httpx2.EventSource(answer):
            yield event

    async def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """See `Transport`."""
        return await asyncio.to_thread(function, *arguments)

    async def sleep(self, seconds: float) -> None:
        """See `Transport`."""
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        """See `Transport`."""
        await self._client.aclose()


def _timeout(usual: httpx2.Timeout, request: Request) -> httpx2.Timeout:
    if request.silence_seconds is None:
        return usual
    return httpx2.Timeout(usual.connect, read=request.silence_seconds)


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that awaits only methods of `BlockingTransport`."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise RuntimeError("a call of the blocking client has suspended")
