"""Channels of grpcio to servers whose certificates are checked against `--revoked`.

A client of grpcio can't see the server's certificate. So a connection of Python's `ssl` to the same port shows it
before. docs/operate/security.md says what that does not cover.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc

from services.errors import Refused
from services.transport.access.rechecks import keep_checking
from services.transport.http2.client import check_server
from services.transport.links import LinkClosed
from services.transport.security import Security
from services.transport.server import open_channel


@asynccontextmanager
async def open_checked_channel(address: str, security: Security) -> AsyncIterator[grpc.aio.Channel]:
    """Open a channel with a connection of its own, and cancel the block once the server's certificate was revoked.

    Raises:
        grpc.aio.AioRpcError: UNAVAILABLE: the server can't be reached, or its certificate was revoked before.
        LinkClosed: it was revoked meanwhile.
        Refused: the address is no `HOST:PORT`.
    """
    if security.revocations is None:
        async with open_channel(address, security, own_connection=True) as channel:
            yield channel
        return
    certificate = await check_server(address, security)

    def check() -> None:
        try:
            security.check_server(certificate)
        except Refused as refused:
            raise LinkClosed(str(refused)) from None

    async with keep_checking(check), open_channel(address, security, own_connection=True) as channel:
        yield channel
