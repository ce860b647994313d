"""Peer whose second message on its first control stream arrives damaged. All others arrive intact."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
from google.protobuf.message import Message

from services.protocol.checksums import encode_with_checksum
from services.transport.security import Security
from services.transport.server import start_server


class DamagingPeer:
    """Peer that serves Attend, and an Exchange that sends nothing.

    Args:
        service: full name of the gRPC service.
        first: answer to Hello.
        then: message after it, which is damaged on the first control stream and not sent on later ones.

    Attributes:
        heard: number of messages received on each control stream, including Hello.
        again: event that is set when a second control stream has begun.
        address: `HOST:PORT` of the server, once it serves.
    """

    def __init__(self, service: str, first: Message, then: Message) -> None:
        self.heard: list[int] = []
        self.again = asyncio.Event()
        self.address = ""
        self._service = service
        self._first, self._then = encode_with_checksum(first), encode_with_checksum(then)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Serve until the body ends."""
        methods = {
            "Attend": grpc.stream_stream_rpc_method_handler(self._attend),
            "Exchange": grpc.stream_stream_rpc_method_handler(self._exchange),
        }
        handlers = [grpc.method_handlers_generic_handler(self._service, methods)]
        server = await start_server("127.0.0.1:0", Security(), handlers, ())
        self.address = f"127.0.0.1:{server.port}"
        try:
            yield
        finally:
            await server.stop(0)

    async def _attend(self, _: Any, context: Any) -> None:
        await context.read()
        stream = len(self.heard)
        self.heard.append(1)
        await context.write(self._first)
        if stream:
            self.again.set()
        else:
            await context.write(self._then[:-1])
        while isinstance(await context.read(), bytes):
            self.heard[stream] += 1

    async def _exchange(self, _: Any, context: Any) -> None:
        await context.send_initial_metadata(())
        await asyncio.Event().wait()
