"""Ends of long-lived streams between two roles: their errors, metadata keys and concurrent tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import grpc

from services.errors import TiermeshError
from services.tasks import start_awaited

INCARNATION_KEY = "tiermesh-incarnation"
"""gRPC metadata of a data stream: the incarnation of the process that sent Hello on the control stream."""
SESSION_KEY = "tiermesh-session"
"""gRPC metadata of a worker's data stream to a shard: the session id from its Welcome."""
EPOCH_KEY = "tiermesh-epoch"
"""gRPC metadata of the status of a refused Hello: the epoch that an aggregator with a restored queue must exceed."""


class LinkClosed(TiermeshError):
    """The end of a link; the text is the reason.

    Attributes:
        code: status by which the server's side ends the peer's streams.
    """

    def __init__(self, reason: str, code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE) -> None:
        super().__init__(reason)
        self.code = code


async def run_until_first_ends(*coroutines: Coroutine[Any, Any, None]) -> None:
    """Run coroutines concurrently until one returns or raises, then cancel the others.

    Raises:
        Exception: the error of the coroutine that ended first.
    """
    tasks = [start_awaited(coroutine) for coroutine in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def write_to_call(call: Any, message: Any) -> None:
    """Send a message on a client's stream.

    Raises:
        grpc.aio.AioRpcError: the stream ended with another status than OK.
        LinkClosed: the stream ended with OK.
    """
    try:
        await call.write(message)
    except asyncio.InvalidStateError:  # raised by grpc.aio if the stream ended before the write
        await raise_call_status(call)
        raise LinkClosed("the peer ended the stream") from None


async def raise_call_status(call: Any) -> None:
    """Wait for the end of a client's stream, and raise its status unless that is OK.

    Raises:
        grpc.aio.AioRpcError: the status.
    """
    code = await call.code()
    if code is not grpc.StatusCode.OK:
        raise grpc.aio.AioRpcError(
            code, await call.initial_metadata(), await call.trailing_metadata(), await call.details()
        )
