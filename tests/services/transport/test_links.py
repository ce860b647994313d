"""Links between roles: coroutines that end together, and errors of ended streams."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import grpc
import pytest

from services.transport.links import LinkClosed, run_until_first_ends, write_to_call

Result = TypeVar("Result")


def run(coroutine: Coroutine[Any, Any, Result]) -> Result:
    return asyncio.run(asyncio.wait_for(coroutine, 10))


def test_the_first_to_end_ends_the_others() -> None:
    ended: list[str] = []

    async def forever(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(name)

    async def fails() -> None:
        await asyncio.sleep(0)
        raise LinkClosed("gone")

    with pytest.raises(LinkClosed, match="gone"):
        run(run_until_first_ends(forever("a"), fails(), forever("b")))
    assert sorted(ended) == ["a", "b"]


class EndedCall:
    """A call that ended before the first write."""

    def __init__(self, code: grpc.StatusCode) -> None:
        self._code = code

    async def write(self, message: object) -> None:
        raise asyncio.InvalidStateError("RPC already finished.")

    async def code(self) -> grpc.StatusCode:
        return self._code

    async def details(self) -> str:
        return "peer left"

    async def initial_metadata(self) -> grpc.aio.Metadata:
        return grpc.aio.Metadata()

    trailing_metadata = initial_metadata


def test_a_write_to_an_ended_stream_raises_its_status() -> None:
    with pytest.raises(grpc.aio.AioRpcError, match="peer left"):
        run(write_to_call(EndedCall(grpc.StatusCode.UNAVAILABLE), b""))
    with pytest.raises(LinkClosed, match="the peer ended the stream"):
        run(write_to_call(EndedCall(grpc.StatusCode.OK), b""))
