"""Whatever a peer sends, and however often: the work and memory that it costs are bounded."""

from __future__ import annotations

import asyncio
import tracemalloc
from unittest.mock import patch

import pytest

from benchmarks.harness.floods import floods, opening
from services.transport.http2.client import ClientConnection, open_stream
from services.transport.http2.connection import Connection
from services.transport.http2.frame_budget import KNOWN_PEER, UNKNOWN_PEER
from services.transport.http2.frames import PREFACE, FrameType, settings_frame
from services.transport.http2.server import ServerStream
from services.transport.ports.admission import ConnectionLimits
from tests.support.processor_time import limit_work
from tests.support.raw_http2 import (
    PATH,
    PLAIN,
    FakeTransport,
    frames_in,
    give,
    make_connection,
    make_pending_connection,
    raw_peer,
    serving,
)

COUNT = 20_000
NAMES = sorted(floods(1))
MEMORY_BYTES = 2 * 1024 * 1024
_PIECE_BYTES = 16 * 1024


async def ignore(stream: ServerStream) -> None:
    """Read nothing."""
    await asyncio.Event().wait()


class Flood:
    """A flood that a connection has received, with limited work, and how the connection answered."""

    def __init__(self, sent: bytes, whose: str) -> None:
        self.answer_bytes = 0
        self.ended = False
        asyncio.run(self._run(sent, whose))

    async def _run(self, sent: bytes, whose: str) -> None:
        connection: Connection
        loop = asyncio.get_running_loop()
        began = loop.time()
        # No time passes for its budget, which on a slow machine would be refilled while it is spent.
        with patch.object(loop, "time", lambda: began):
            if whose == "client":
                connection = ClientConnection("peer:1")
                before = settings_frame({})
            else:
                connection = (
                    make_pending_connection(ignore) if whose == "unknown" else make_connection(ignore)
                )
                before = opening(PATH)
        transport = FakeTransport(connection)
        connection.connection_made(transport)
        give(connection, before)
        await asyncio.sleep(0)
        with limit_work(10):
            for start in range(0, len(sent), _PIECE_BYTES):
                if transport.closed:  # nothing is received any longer
                    break
                give(connection, sent[start : start + _PIECE_BYTES])
        self.answer_bytes = len(transport.sent)
        answers = bytes(transport.sent).removeprefix(PREFACE)
        self.ended = transport.closed or any(each[0] == FrameType.GOAWAY for each in frames_in(answers))
        transport.abort()
        await connection.closed.wait()


def test_connections_that_end_share_the_memory_for_what_they_ignore() -> None:
    async def scenario() -> list[memoryview]:
        connections = [make_pending_connection(ignore) for _ in range(3)]
        for connection in connections:
            connection.connection_made(FakeTransport(connection))
            connection.close_with_goaway()
        return [connection.get_buffer(1) for connection in connections]

    buffers = asyncio.run(scenario())
    assert all(each.obj is buffers[0].obj for each in buffers)


@pytest.mark.parametrize("whose", ["unknown", pytest.param("known", marks=pytest.mark.long), "client"])
@pytest.mark.parametrize("kind", NAMES)
def test_a_flood_ends_its_connection_soon(kind: str, whose: str) -> None:
    sent = floods(COUNT, PATH)[kind]
    flood = Flood(sent, whose)
    assert flood.ended, "the flood goes on"
    allowance = UNKNOWN_PEER if whose == "unknown" else KNOWN_PEER
    assert flood.answer_bytes < 20_000 + 40 * allowance.at_once


@pytest.mark.parametrize("kind", NAMES)
def test_a_flood_takes_little_memory(kind: str) -> None:
    sent = floods(COUNT, PATH)[kind]
    tracemalloc.start()
    try:
        Flood(sent, "known")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < MEMORY_BYTES


def test_an_unknown_caller_may_send_64_kib_and_a_known_one_more() -> None:
    async def run() -> tuple[int, int]:
        granted = []
        for answers in (False, True):

            async def handler(stream: ServerStream, answers: bool = answers) -> None:
                if answers:
                    await stream.send_initial_metadata(())
                await asyncio.Event().wait()

            async with serving(handler) as served, raw_peer(served) as peer:
                peer.send(opening(PATH))
                granted.append(65535 + (await peer.accepted() if answers else 0))
        return granted[0], granted[1]

    unknown, known = asyncio.run(run())
    assert unknown == 65535
    assert known > 8 * 1024 * 1024
    # What all unknown callers of a port may have sent together:
    assert ConnectionLimits().pending * unknown <= 16 * 1024 * 1024


@pytest.mark.parametrize("kind", ["pings", "rapid-resets", "settings"])
def test_others_go_on_during_a_flood(kind: str) -> None:
    async def run() -> None:
        async def handler(stream: ServerStream) -> None:
            await stream.send_initial_metadata(())
            while (got := await stream.read()) is not None:
                await stream.write(got)

        async with serving(handler) as served:
            stop = asyncio.Event()

            async def flood() -> None:
                sent = floods(2000, PATH)[kind]
                while not stop.is_set():
                    try:
                        _, writer = await asyncio.open_connection("127.0.0.1", served.port)
                        writer.write(opening(PATH) + sent)
                        await asyncio.sleep(0.01)
                        writer.transport.abort()
                    except OSError:
                        await asyncio.sleep(0.01)

            flooding = asyncio.create_task(flood())
            stream = await open_stream(f"127.0.0.1:{served.port}", PLAIN, PATH)
            for _ in range(50):
                with limit_work(10):  # the server and the flood run on this thread, too
                    await stream.write(b"ping")
                    assert await asyncio.wait_for(stream.read(), 20) == b"ping"
                await asyncio.sleep(0.01)
            stream.cancel()
            stop.set()
            await flooding

    asyncio.run(run())
