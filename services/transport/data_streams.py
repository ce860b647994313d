"""Data streams as the roles use them: to a tensor port by transport/http2, or by grpcio to the main port.

What is on the wire is the same gRPC either way; grpcio's Python copies each payload five times more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from services.tensors.chunk_messages import Message
from services.transport.http2.client import open_stream
from services.transport.http2.headers import Metadata
from services.transport.http2.stream import Stream
from services.transport.security import Security, join_address, split_address
from services.transport.server import open_channel
from services.transport.streams import LinkClosed, raise_status

log = logging.getLogger("tiermesh")

REACH_SECONDS = 3.0
"""A tensor port that can't be reached within this time is done without."""


class DataStreamConnector:
    """Opens data streams; says once for each peer why they don't go to its tensor port.

    Args:
        method: `/package.Service/Exchange`.
        security: certificates to show and to believe; plain text without any.
    """

    def __init__(self, method: str, security: Security) -> None:
        self._method = method
        self._security = security
        self._said: dict[str, str] = {}

    @asynccontextmanager
    async def open(self, address: str, tensor_port: int, metadata: Metadata) -> AsyncIterator[Any]:
        """A stream with `read`, `write_message`, `initial_metadata` and the status of a `grpc.aio` call.

        Args:
            address: `HOST:PORT` of the peer's main port; its tensor port is on the same host.
            tensor_port: as the peer said; 0: it has none.
            metadata: of the call.
        """
        host, _ = split_address("address", address)
        why = "it has none"
        if tensor_port:
            tensors = join_address(host, tensor_port)
            try:
                stream = await open_stream(
                    tensors, self._security, self._method, metadata, limit_seconds=REACH_SECONDS
                )
            except grpc.aio.AioRpcError as error:
                why = error.details() or error.code().name
            else:
                log.info("tensors go to %s", tensors)
                try:
                    yield stream
                finally:
                    stream.cancel()
                return
        if why != self._said.get(address):
            self._said[address] = why
            log.warning(
                "tensors go to the main port %s, at half as much CPU time again, as its tensor port can't be used: %s; "
                "let that port through (--tensor-port there fixes its number)",
                address,
                why,
            )
        async with open_channel(address, self._security, own_connection=True) as channel:
            yield channel.stream_stream(self._method)(metadata=metadata)


async def write_message(stream: Any, *parts: Message) -> None:
    """Send one message, these parts one after the other, on a data stream of either kind; they may be changed after.

    Raises:
        grpc.aio.AioRpcError: it ended badly.
        LinkClosed: it ended, well or before.
    """
    try:
        if isinstance(stream, Stream):
            await stream.write(*parts)
        else:  # grpcio takes nothing but whole bytes
            whole = parts[0] if len(parts) == 1 else b"".join(parts)
            await stream.write(whole if isinstance(whole, bytes) else bytes(whole))
    except asyncio.InvalidStateError:  # gRPC's word for a stream that had ended before
        if isinstance(stream, grpc.aio.Call):
            await raise_status(stream)
        raise LinkClosed("it ended the stream") from None
