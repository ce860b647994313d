"""Data streams use the tensor port if it can be reached, or else the main port, with the same messages."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import grpc
import pytest

from plane.streams.data_streams import DataStreamConnector, write_message
from services.transport.http2.stream import Stream
from tests.services.transport.http2.test_interop import is_end, stock_server
from tests.support.raw_http2 import PATH, PLAIN, serving, within

PARTS = (b"before ", memoryview(b"the payload"))


async def echo_one_message(context: Any) -> None:
    """Read one message and send it back twice: in two parts, and whole."""
    message = await context.read()
    await write_message(context, message[:3], message[3:])
    await write_message(context, memoryview(message))


async def exchanged(streams: DataStreamConnector, address: str, tensor_port: int) -> tuple[bool, list[bytes]]:
    """Send one message; return whether the tensor port took it, and the answers."""
    async with streams.open(address, tensor_port, (("a-key", "1"),)) as stream:
        await write_message(stream, *PARTS)
        await stream.done_writing()
        got = []
        while not is_end(each := await within(stream.read())):
            got.append(bytes(each))
        return isinstance(stream, Stream), got


def test_messages_are_the_same_on_both_ports(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        streams = DataStreamConnector(PATH, PLAIN)
        async with stock_server(echo_one_message) as port, serving(echo_one_message) as tensors:
            address = f"127.0.0.1:{port}"
            whole = [b"before the payload"] * 2
            assert await exchanged(streams, address, tensors.port) == (True, whole)
            assert not caplog.records
            for _ in range(2):
                assert await exchanged(streams, address, 0) == (False, whole)

    caplog.set_level(logging.WARNING)
    asyncio.run(run())
    (warning,) = caplog.messages
    assert "the peer has none" in warning


def test_a_silent_tensor_port_is_given_up_after_a_limit(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        silent = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
        streams = DataStreamConnector(PATH, PLAIN, connect_seconds=0.1)
        tensor_port = silent.sockets[0].getsockname()[1]
        async with stock_server(echo_one_message) as port:
            ours, got = await exchanged(streams, f"127.0.0.1:{port}", tensor_port)
        assert (ours, len(got)) == (False, 2)
        silent.close()
        assert f"127.0.0.1:{tensor_port}" in caplog.text
        assert "within 0.1 s" in caplog.text

    asyncio.run(run())


def test_an_error_on_the_tensor_stream_does_not_move_it_to_the_main_port(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def refuses(context: Any) -> None:
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "attend first")

    async def run() -> None:
        async with serving(refuses) as tensors:
            with pytest.raises(grpc.aio.AioRpcError, match="attend first"):
                await exchanged(DataStreamConnector(PATH, PLAIN), "127.0.0.1:1", tensors.port)

    asyncio.run(run())
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]
