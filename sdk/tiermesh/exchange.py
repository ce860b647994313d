"""One request and its answer: errors become exceptions, bodies are bounded, and what was not answered is repeated."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any

import httpx2

from tiermesh.errors import TiermeshError, Unreachable, error_of
from tiermesh.outage import Outage
from tiermesh.records import Malformed, read_object
from tiermesh.server import error_of_answer, error_of_tls
from tiermesh.transport import Request, Transport

_ANSWER_BYTES = 64 << 20
"""Longest JSON answer that is read."""
_PROBLEM_BYTES = 1 << 16


class Exchange:
    """Sends requests and reads their answers.

    Args:
        transport: sends the requests.
        url: address of the server, for errors.
        outage_seconds: longest time for which a request is repeated.

    Raises:
        Unreachable: there is no connection, it breaks, or there is silence for too long.
        TiermeshError: the answer is an error.
    """

    def __init__(self, transport: Transport, url: str, outage_seconds: float) -> None:
        self._transport = transport
        self._url = url
        self._outage_seconds = outage_seconds

    async def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the JSON object that answers a POST."""
        return await self.ask(_post_request(path, body))

    async def post_again(
        self, path: str, body: Mapping[str, Any], silence_seconds: float | None = None
    ) -> dict[str, Any]:
        """Post a body with an id, by which a repeated request has no further effect."""
        return await self.ask_again(lambda: _post_request(path, body, silence_seconds))

    async def ask_again(self, make_request: Callable[[], Request]) -> dict[str, Any]:
        """Return the answer to a request, and repeat it while an answer to it may have been lost."""
        outage: Outage | None = None
        while True:
            try:
                return await self.ask(make_request())
            except Unreachable as error:
                if outage is None:
                    if not error.was_sent:
                        raise
                    outage = Outage(self._outage_seconds)
                    outage.is_over()  # it begins with this error
                await self._transport.sleep(outage.pause_seconds(error))

    async def ask(self, request: Request) -> dict[str, Any]:
        """Return the JSON object that answers a request."""
        async with self.open(request) as answer:
            return read_object(await self._read(answer, _ANSWER_BYTES), request.path)

    @asynccontextmanager
    async def open(self, request: Request) -> AsyncIterator[httpx2.Response]:
        """Send a request and yield its answer, which is no error, before the body is read."""
        try:
            async with self._transport.open(request) as answer:
                if not 200 <= answer.status_code < 300:
                    raise error_of_answer(
                        answer.status_code, await self._read(answer, _PROBLEM_BYTES), self._url
                    )
                yield answer
        except httpx2.TransportError as error:
            raise _unreachable(error, request, self._url) from error

    async def _read(self, answer: httpx2.Response, limit_bytes: int) -> bytes:
        parts, size_bytes = [], 0
        async with aclosing(self._transport.blocks(answer)) as blocks:
            async for block in blocks:
                parts.append(block)
                size_bytes += len(block)
                if size_bytes > limit_bytes:
                    raise Malformed("body", f"{size_bytes} bytes and more", f"at most {limit_bytes}")
        return b"".join(parts)


def _post_request(path: str, body: Mapping[str, Any], silence_seconds: float | None = None) -> Request:
    try:
        content = json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise error_of("argument", body, f"JSON values ({error})", "give plain values") from None
    headers = {"Content-Type": "application/json"}
    return Request("POST", path, headers=headers, body=content, silence_seconds=silence_seconds)


def _unreachable(error: httpx2.TransportError, request: Request, url: str) -> TiermeshError:
    """Return the exception that a failure of the transport stands for."""
    if isinstance(error, httpx2.SSEError):
        return Malformed("events", str(error), "server-sent events")
    tls = error_of_tls(error, url)
    if tls is not None:
        return tls
    reason = str(error) or type(error).__name__
    if isinstance(error, httpx2.TimeoutException):
        reason = "no answer in time"
    fix = "check the address, and that `tiermesh web` runs there"
    found = Unreachable(
        f"{url}: {request.method} {request.path}: {reason}; {fix}", field="url", value=url, fix=fix
    )
    found.was_sent = not isinstance(error, (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout))
    return found
