"""A listening port under limits, over real sockets."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from services.transport.ports.admission import ConnectionLimits, Refusal, Ticket
from services.transport.ports.listener import Listener, open_listening_socket
from services.transport.security import Security
from tests.support.certificates import make_authority, make_certificate

LIMITS = ConnectionLimits(connections=4, pending_by_address=2)


class Greeting(asyncio.Protocol):
    """Confirms its connection once it has received something."""

    def __init__(self, ticket: Ticket) -> None:
        self._ticket = ticket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(b"hello")

    def data_received(self, data: bytes) -> None:
        self._ticket.confirm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ticket.close()


@asynccontextmanager
async def listening(
    limits: ConnectionLimits = LIMITS, context: ssl.SSLContext | None = None, handshake_seconds: float = 10.0
) -> AsyncIterator[tuple[Listener, int, Counter[Refusal]]]:
    bound = open_listening_socket("test port", "127.0.0.1", 0, "choose another")
    refused: Counter[Refusal] = Counter()

    def count(refusal: Refusal) -> None:
        refused[refusal] += 1

    listener = Listener(
        "test port",
        bound,
        Greeting,
        context=context,
        handshake_seconds=handshake_seconds,
        limits=limits,
        count_refusal=count,
    )
    try:
        yield listener, bound.getsockname()[1], refused
    finally:
        listener.close()


async def greeted(port: int) -> tuple[bool, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        return await asyncio.wait_for(reader.read(5), 20) == b"hello", writer
    except ConnectionError:
        return False, writer


def test_refused_connections_are_closed_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> tuple[list[bool], Counter[Refusal]]:
        async with listening() as (_, port, refused):
            results = [await greeted(port) for _ in range(5)]
            for _, writer in results:
                writer.close()
            return [came for came, _ in results], refused

    caplog.set_level(logging.WARNING)
    came, refused = asyncio.run(scenario())
    assert came == [True, True, False, False, False]
    assert refused == {Refusal.ADDRESS: 3}
    (line,) = (record.getMessage() for record in caplog.records)
    assert (
        "test port: refused a connection of 127.0.0.1: 2 connections of this address are open before" in line
    )


def test_confirmed_connections_make_room_for_others() -> None:
    async def scenario() -> list[bool]:
        async with listening() as (listener, port, _):
            seen, writers = [], []
            for _ in range(5):
                came, writer = await greeted(port)
                writer.write(b"x")
                seen.append(came)
                writers.append(writer)
                await asyncio.sleep(0.05)
            for writer in writers:
                writer.close()
            while listener.connections:
                await asyncio.sleep(0.01)
            return [*seen, (await greeted(port))[0]]

    assert asyncio.run(scenario()) == [True, True, True, True, False, True]


def test_idle_tls_handshakes_end_and_block_nobody(tmp_path: Path) -> None:
    authority = make_authority(tmp_path, "authority")
    cert, key = make_certificate(tmp_path, "server", authority)
    context = Security(cert=cert, key=key).server_context()

    async def scenario() -> int:
        client = ssl.create_default_context(cafile=str(authority))
        client.verify_flags &= ~ssl.VERIFY_X509_STRICT
        limits = ConnectionLimits(connections=50, pending_by_address=30)
        async with listening(limits, context, handshake_seconds=1.0) as (listener, port, _):
            idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client)
            assert await asyncio.wait_for(reader.read(5), 20) == b"hello"
            assert listener.connections == 21
            while listener.connections > 1:
                await asyncio.sleep(0.05)
            writer.close()
            for each in idle:
                each.close()
            return listener.connections

    assert asyncio.run(asyncio.wait_for(scenario(), 30)) <= 1


def test_without_descriptors_accepting_pauses_and_goes_on() -> None:
    script = """
import asyncio, os, resource, socket
from tests.services.transport.ports.test_listener import LIMITS, greeted, listening
from services.transport.ports.admission import Refusal

async def scenario():
    async with listening() as (listener, port, refused):
        client = socket.create_connection(("127.0.0.1", port)); client.settimeout(20)
        waiting = socket.socket(); waiting.settimeout(20)
        soft = len(os.listdir("/proc/self/fd")) + 20
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        await asyncio.sleep(0.1)
        taken = []
        while True:
            try:
                taken.append(os.dup(0))
            except OSError:
                break
        waiting.connect(("127.0.0.1", port))
        loop = asyncio.get_running_loop()
        rounds = 0
        end = loop.time() + 0.3
        while loop.time() < end:
            await asyncio.sleep(0.01)
            rounds += 1
        assert refused[Refusal.DESCRIPTORS] == 1, refused
        for each in taken:
            os.close(each)
        print(await loop.run_in_executor(None, waiting.recv, 5))

asyncio.run(scenario())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout == "b'hello'\n", done.stderr
