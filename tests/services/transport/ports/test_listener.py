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
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest

from services.errors import TiermeshError
from services.transport.ports.admission import ConnectionLimits, Refusal, Ticket
from services.transport.ports.listener import Listener, open_listening_socket
from services.transport.security import Security
from tests.support.certificates import make_authority, make_certificate

LIMITS = ConnectionLimits(connections=4, pending_by_address=2)
LIMIT_SECONDS = 30


class Greeting(asyncio.Protocol):
    """Confirms its connection once it has received something, and echoes that."""

    def __init__(self, ticket: Ticket) -> None:
        self._ticket = ticket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(b"hello")

    def data_received(self, data: bytes) -> None:
        self._ticket.confirm()
        self._transport.write(data)

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


async def greeted(port: int, *, confirms: bool = False) -> tuple[bool, asyncio.StreamWriter]:
    """Return whether the port accepts a connection, after the connection is confirmed if it `confirms`."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        came = await asyncio.wait_for(reader.read(5), LIMIT_SECONDS) == b"hello"
        if came and confirms:
            writer.write(b"x")
            assert await asyncio.wait_for(reader.read(1), LIMIT_SECONDS) == b"x"
    except ConnectionError:
        return False, writer
    return came, writer


async def closed(listener: Listener, rest: int) -> None:
    """Wait until a port has no more than `rest` connections."""
    while listener.connections > rest:
        await asyncio.sleep(0.01)


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
                came, writer = await greeted(port, confirms=True)
                seen.append(came)
                writers.append(writer)
            for writer in writers:
                writer.close()
            await closed(listener, 0)
            return [*seen, (await greeted(port))[0]]

    assert asyncio.run(scenario()) == [True, True, True, True, False, True]


def test_idle_tls_handshakes_end_and_block_nobody(tmp_path: Path) -> None:
    authority = make_authority(tmp_path, "authority")
    cert, key = make_certificate(tmp_path, "server", authority)
    context = Security(cert=cert, key=key).server_context()

    client = ssl.create_default_context(cafile=str(authority))
    client.verify_flags &= ~ssl.VERIFY_X509_STRICT
    limits = ConnectionLimits(connections=50, pending_by_address=30)

    async def scenario() -> None:
        with ExitStack() as idle:

            def connect(port: int) -> None:
                for _ in range(20):
                    idle.enter_context(socket.create_connection(("127.0.0.1", port)))

            async with listening(limits, context, handshake_seconds=600) as (listener, port, _):
                connect(port)
                reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client)
                assert await reader.read(5) == b"hello"
                assert listener.connections == 21
                writer.close()
            async with listening(limits, context, handshake_seconds=0.1) as (listener, port, _):
                connect(port)
                while not listener.connections:  # until the port has accepted the first
                    await asyncio.sleep(0.01)
                await closed(listener, 0)

    asyncio.run(asyncio.wait_for(scenario(), LIMIT_SECONDS))


def test_without_descriptors_accepting_pauses_and_goes_on() -> None:
    script = """
import asyncio, os, resource, socket
from tests.services.transport.ports.test_listener import LIMITS, greeted, listening
from services.transport.ports.admission import Refusal

async def scenario():
    async with listening() as (listener, port, refused):
        came, client = await greeted(port)
        assert came
        waiting = socket.socket(); waiting.settimeout(20)
        soft = len(os.listdir("/proc/self/fd")) + 20
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        taken = []
        while True:
            try:
                taken.append(os.dup(0))
            except OSError:
                break
        waiting.connect(("127.0.0.1", port))
        while not refused[Refusal.DESCRIPTORS]:
            await asyncio.sleep(0.01)
        for _ in range(1000):  # a port that goes on trying would be refused in each turn of the loop
            await asyncio.sleep(0)
        assert refused[Refusal.DESCRIPTORS] < 100, refused
        for each in taken:
            os.close(each)
        print(await asyncio.get_running_loop().run_in_executor(None, waiting.recv, 5))

asyncio.run(scenario())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout == "b'hello'\n", done.stderr


def test_short_messages_do_not_wait_for_acknowledgements() -> None:
    with (
        open_listening_socket("port", "127.0.0.1", 0, "") as listening,
        socket.create_connection(listening.getsockname()),
    ):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize(
    ("host", "remedy"),
    [
        ("no-such-host.invalid", "correct the name, or give an IP address of this host"),
        ("a" * 64 + ".invalid", "correct it, or give an IP address of this host"),
        ("192.0.2.1", "choose another"),
    ],
)
def test_an_address_that_fails_has_the_remedy_for_its_cause(host: str, remedy: str) -> None:
    with pytest.raises(TiermeshError, match=f"^test port {host}.*: .*; {remedy}$"):
        open_listening_socket("test port", host, 0, "choose another")
