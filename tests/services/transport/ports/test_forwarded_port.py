"""The main port: limits by address before grpcio, and bytes that pass unchanged in both directions."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
import pytest

from benchmarks.harness.floods import floods, opening
from protos import cluster_pb2 as pb
from services.protocol.checksums import encode_with_checksum
from services.protocol.envelope import unwrap, wrap
from services.transport.access.enforcement import caller_address
from services.transport.control.attend_server import serve_attend
from services.transport.ports.admission import ConnectionLimits, Refusal
from services.transport.ports.forwarded_port import PENDING_SECONDS, CallerConnections, ForwardedPort
from services.transport.security import Security
from services.transport.server import RoleServer, open_channel, start_server

LIMIT_SECONDS = 20
ATTEND, CALL = "/tiermesh.Cluster/Attend", "/test.Test/Call"
LIMITS = ConnectionLimits(pending_by_address=2)


async def attend(_: Any, context: Any) -> None:
    async def serve(hello: pb.Hello, stream: Any) -> None:
        await context.write(b"welcome")
        await asyncio.Event().wait()

    await serve_attend(context, pb.WorkerMessage, unwrap=unwrap, check=lambda hello: None, serve=serve)


async def answer(request: bytes, context: Any) -> bytes:
    return request or caller_address(context).encode()


@asynccontextmanager
async def serving(limits: ConnectionLimits = LIMITS) -> AsyncIterator[tuple[RoleServer, Counter[Refusal]]]:
    refused: Counter[Refusal] = Counter()

    def count(refusal: Refusal) -> None:
        refused[refusal] += 1

    handlers = [
        grpc.method_handlers_generic_handler(
            "tiermesh.Cluster", {"Attend": grpc.stream_stream_rpc_method_handler(attend)}
        ),
        grpc.method_handlers_generic_handler(
            "test.Test", {"Call": grpc.unary_unary_rpc_method_handler(answer)}
        ),
    ]
    server = await start_server("127.0.0.1:0", Security(), handlers, [], limits=limits, count_refusal=count)
    try:
        yield server, refused
    finally:
        await server.stop(0)


async def connect(port: int, source: str = "127.0.0.1") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))


async def ended(reader: asyncio.StreamReader) -> bool:
    """Return whether the server ends a connection."""
    try:
        while await asyncio.wait_for(reader.read(1 << 16), LIMIT_SECONDS):
            pass
    except ConnectionError:
        pass
    return True


def test_an_address_has_few_connections_before_hello_and_others_go_on() -> None:
    async def scenario() -> Counter[Refusal]:
        async with serving() as (server, refused):
            held = [await connect(server.port, "127.0.0.2") for _ in range(2)]
            for _ in range(20):
                reader, writer = await connect(server.port, "127.0.0.2")
                assert await ended(reader)
                writer.close()
            async with open_channel(f"127.0.0.1:{server.port}", Security()) as channel:
                assert await channel.unary_unary(CALL)(b"x", timeout=LIMIT_SECONDS) == b"x"
            for _, writer in held:
                writer.close()
            return refused

    assert asyncio.run(scenario()) == {Refusal.ADDRESS: 20}


def test_calls_and_attending_workers_count_for_no_address() -> None:
    async def scenario() -> Counter[Refusal]:
        async with serving() as (server, refused):
            address = f"127.0.0.1:{server.port}"
            hello = encode_with_checksum(wrap(pb.WorkerMessage, 1, pb.Hello(role="worker", name="w")))
            channels = [open_channel(address, Security(), own_connection=True) for _ in range(10)]
            streams = []
            for number, channel in enumerate(channels):
                if number % 2:
                    assert await channel.unary_unary(CALL)(b"x", timeout=LIMIT_SECONDS) == b"x"
                    continue
                stream = channel.stream_stream(ATTEND)()
                await stream.write(hello)
                assert await asyncio.wait_for(stream.read(), LIMIT_SECONDS) == b"welcome"
                streams.append(stream)
            assert not any(stream.done() for stream in streams)
            for channel in channels:
                await channel.close()
            return refused

    assert asyncio.run(scenario()) == {}


def test_a_call_without_hello_ends_and_an_attending_worker_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with serving(ConnectionLimits()) as (server, _):
            hello = encode_with_checksum(wrap(pb.WorkerMessage, 1, pb.Hello(role="worker", name="w")))
            async with open_channel(f"127.0.0.1:{server.port}", Security()) as channel:
                stream = channel.stream_stream(ATTEND)()
                await stream.write(hello)
                assert await asyncio.wait_for(stream.read(), LIMIT_SECONDS) == b"welcome"
                reader, writer = await connect(server.port)
                writer.write(opening(ATTEND))
                assert await asyncio.wait_for(reader.read(1), LIMIT_SECONDS), "grpcio has it"
                loop = asyncio.get_running_loop()
                monkeypatch.setattr(loop, "time", lambda: time.monotonic() + 2 * PENDING_SECONDS)
                assert await ended(reader)
                writer.close()
                with pytest.raises(
                    asyncio.TimeoutError
                ):  # a stream that was cut would raise its status at once
                    await asyncio.wait_for(stream.read(), 0.5)

    asyncio.run(scenario())


@pytest.mark.parametrize("name", sorted(floods(1)))
def test_a_flood_blocks_nobody_else(name: str) -> None:
    sent = opening(ATTEND) + floods(2000, ATTEND)[name]

    async def scenario() -> None:
        async with serving() as (server, refused):
            writers = []
            for _ in range(10):
                try:
                    _, writer = await connect(server.port, "127.0.0.2")
                    writer.write(sent)  # nothing is read
                    writers.append(writer)
                except OSError:
                    continue
            async with open_channel(f"127.0.0.1:{server.port}", Security()) as channel:
                assert await channel.unary_unary(CALL)(b"x", timeout=LIMIT_SECONDS) == b"x"
            assert refused[Refusal.ADDRESS] + refused[Refusal.RATE] <= 10
            for writer in writers:
                writer.transport.abort()

    asyncio.run(scenario())


def test_a_handler_learns_the_address_of_its_caller() -> None:
    async def scenario() -> str:
        async with serving() as (server, _), open_channel(f"127.0.0.1:{server.port}", Security()) as channel:
            reply = await channel.unary_unary(CALL)(b"", timeout=LIMIT_SECONDS)
            return str(reply, "ascii")

    host, _, port = asyncio.run(scenario()).rpartition(":")
    assert host == "127.0.0.1"
    assert 0 < int(port) < 65536


def test_refusals_are_logged_once_with_the_ports_name(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with serving(ConnectionLimits(pending_by_address=1)) as (server, _):
            _, held = await connect(server.port)
            for _ in range(5):
                reader, writer = await connect(server.port)
                assert await ended(reader)
                writer.close()
            held.close()

    with caplog.at_level(logging.WARNING, logger="tiermesh"):
        asyncio.run(scenario())
    lines = [
        record.getMessage() for record in caplog.records if "refused a connection" in record.getMessage()
    ]
    assert len(lines) == 1
    assert lines[0].startswith("main port ")


@asynccontextmanager
async def forwarding(serve: Callable[..., Any]) -> AsyncIterator[tuple[int, CallerConnections]]:
    """Forward to a server of our own, which stands in for grpcio."""
    connections = CallerConnections()
    port = ForwardedPort(
        "test address",
        "127.0.0.1:0",
        "test port",
        connections,
        limits=ConnectionLimits(),
        count_refusal=lambda refusal: None,
    )
    inner = await asyncio.start_unix_server(serve, "\0" + port.inner_address.partition(":")[2])
    port.accept()
    try:
        yield port.port, connections
    finally:
        port.close()
        inner.close()
        await connections.drain(LIMIT_SECONDS)
        assert len(connections) == 0


def test_bytes_pass_unchanged_and_the_end_follows_them() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while part := await reader.read(1 << 16):
            writer.write(part)
            await writer.drain()
            if part.endswith(b"\0"):
                break
        writer.close()

    async def scenario() -> None:
        async with forwarding(echo) as (port, _):
            reader, writer = await connect(port)
            sent = bytes(range(1, 256)) * 40_000 + b"\0"
            writer.write(sent)
            assert await asyncio.wait_for(reader.read(-1), LIMIT_SECONDS) == sent
            writer.close()

    asyncio.run(scenario())


def test_a_caller_that_does_not_read_slows_the_server() -> None:
    most_parts = 64

    async def scenario() -> None:
        parts: asyncio.Queue[None] = asyncio.Queue()

        async def pour(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(ConnectionError):
                while True:
                    writer.write(bytes(1 << 20))
                    await writer.drain()
                    parts.put_nowait(None)

        async with forwarding(pour) as (port, _):
            with socket.create_connection(("127.0.0.1", port)), pytest.raises(asyncio.TimeoutError):
                for _ in range(most_parts):  # more than the sockets' buffers hold
                    await asyncio.wait_for(parts.get(), 1)

    asyncio.run(scenario())


def test_callers_are_told_when_nobody_serves() -> None:
    async def scenario() -> None:
        connections = CallerConnections()
        port = ForwardedPort(
            "test address",
            "127.0.0.1:0",
            "test port",
            connections,
            limits=ConnectionLimits(),
            count_refusal=lambda refusal: None,
        )
        port.accept()
        reader, writer = await connect(port.port)
        assert await ended(reader)
        writer.close()
        port.close()
        assert len(connections) == 0

    asyncio.run(scenario())
