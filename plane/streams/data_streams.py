"""Data streams between roles: to the peer's tensor port by `http2/`, else to its main port by grpcio.

The wire format is gRPC either way. grpcio's Python API copies each payload about five times more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from services.tensors.chunk_messages import Message
from services.transport.addresses import join_address, split_address
from services.transport.checked_channel import open_checked_channel
from services.transport.http2.client import open_stream
from services.transport.http2.headers import Metadata
from services.transport.http2.stream import Stream
from services.transport.links import LinkClosed, raise_call_status
from services.transport.security import Security

log = logging.getLogger("tiermesh")

CONNECT_SECONDS = 3.0
"""Longest wait for a tensor port; after it the stream goes to the main port."""


class DataStreamConnector:
    """Opens data streams, and warns once per peer and reason about tensors that go to its main port.

    Args:
        method: `/package.Service/Exchange`.
        security: own certificates and trusted authorities; plain text without any.
        connect_seconds: longest wait for a tensor port.
        falls_back: whether the peer's main port is taken where its tensor port can't be reached.
    """

    def __init__(
        self,
        method: str,
        security: Security,
        connect_seconds: float = CONNECT_SECONDS,
        *,
        falls_back: bool = True,
    ) -> None:
        self._method = method
        self._falls_back = falls_back
        self._security = security
        self._connect_seconds = connect_seconds
        self._warned: dict[str, str] = {}  # last reason by address

    @asynccontextmanager
    async def open(self, address: str, tensor_port: int, metadata: Metadata) -> AsyncIterator[Any]:
        """Open a stream that has the `read`, `initial_metadata` and status methods of a `grpc.aio` call.

        Args:
            address: `HOST:PORT` of the peer's main port; its tensor port is on the same host.
            tensor_port: the peer's tensor port; 0 if it has none.
            metadata: metadata of the call.

        Raises:
            grpc.aio.AioRpcError: the tensor port can't be reached, and there is no falling back.
        """
        host, _ = split_address("address", address)
        reason = "the peer has none"
        if tensor_port:
            tensor_address = join_address(host, tensor_port)
            try:
                stream = await open_stream(
                    tensor_address,
                    self._security,
                    self._method,
                    metadata,
                    limit_seconds=self._connect_seconds,
                )
            except grpc.aio.AioRpcError as error:
                if not self._falls_back:
                    raise
                reason = error.details() or error.code().name
            else:
                log.info("tensors go to %s", tensor_address)
                try:
                    yield stream
                finally:
                    stream.cancel()
                return
        if reason != self._warned.get(address):
            self._warned[address] = reason
            log.warning(
                "tensors go to the main port %s, which takes about 50 %% more CPU time: the tensor port can't "
                "be used (%s); open that port in the firewall (--tensor-port at the peer fixes its number)",
                address,
                reason,
            )
        async with open_checked_channel(address, self._security) as channel:
            yield channel.stream_stream(self._method)(metadata=metadata)


async def write_message(stream: Any, *parts: Message) -> None:
    """Send one message on a data stream of either kind: the concatenated parts, which may be changed afterwards.

    Raises:
        grpc.aio.AioRpcError: the stream ended with another status than OK.
        LinkClosed: the stream ended with OK.
    """
    try:
        if isinstance(stream, Stream):
            await stream.write(*parts)
        else:  # grpcio takes whole `bytes` only
            whole = parts[0] if len(parts) == 1 else b"".join(parts)
            await stream.write(whole if isinstance(whole, bytes) else bytes(whole))
    except asyncio.InvalidStateError:  # raised by both kinds if the stream ended before the write
        if isinstance(stream, grpc.aio.Call):
            await raise_call_status(stream)
        raise LinkClosed("the peer ended the stream") from None
