"""Connections over real sockets, frame by frame: answers, flow control and ends."""

from __future__ import annotations

import asyncio
import logging
import time

import grpc
import numpy as np
import pytest

from protos.tensors_pb2 import FLOAT32, ChunkHeader
from services.tensors.chunk_messages import pack_chunk, serialize_in_parts
from services.tensors.layout import CHUNK_ELEMENTS
from services.transport.http2.client import open_stream
from services.transport.http2.connection import ConnectionTimes
from services.transport.http2.frames import (
    DEFAULT_WINDOW_BYTES,
    PREFACE,
    Flags,
    FrameType,
    Setting,
    frame,
    read_settings,
    read_uint32,
    settings_frame,
    window_update_frame,
)
from services.transport.http2.messages import PREFIX_BYTES
from services.transport.http2.server import ServerStream
from services.transport.http2.stream import WINDOW_BYTES
from services.transport.limits import MESSAGE_LIMIT_BYTES
from services.transport.links import LinkClosed
from tests.support.raw_http2 import (
    LIMIT_SECONDS,
    OPENING,
    PATH,
    PLAIN,
    FakeTransport,
    RawPeer,
    data_frame,
    echo,
    give,
    headers_frame,
    make_connection,
    message,
    raw_peer,
    request,
    serving,
    within,
)


def test_settings_and_pings_are_answered() -> None:
    async def run() -> None:
        async with serving() as served, raw_peer(served) as peer:
            peer.send(OPENING, frame(FrameType.PING, 0, 0, b"12345678"))
            _, flags, _, payload = await peer.until(FrameType.SETTINGS)
            announced = dict(read_settings(payload))
            assert flags == 0
            assert Setting.INITIAL_WINDOW_SIZE not in announced
            assert announced[Setting.MAX_FRAME_SIZE] > MESSAGE_LIMIT_BYTES
            assert announced[Setting.MAX_CONCURRENT_STREAMS] == 1
            assert (await peer.until(FrameType.SETTINGS))[1] == Flags.ACK
            assert await peer.until(FrameType.PING) == (FrameType.PING, Flags.ACK, 0, b"12345678")
            assert await peer.accepted() == WINDOW_BYTES - DEFAULT_WINDOW_BYTES

    asyncio.run(run())


async def _received(peer: RawPeer, wanted_bytes: int, largest: int) -> int:
    """Return the bytes of DATA received, at least `wanted_bytes`, in frames of at most `largest` bytes."""
    came = 0
    while came < wanted_bytes:
        _, _, _, payload = await peer.until(FrameType.DATA)
        assert 0 < len(payload) <= largest
        came += len(payload)
    return came


def test_windows_and_frame_size_of_the_peer_are_respected() -> None:
    async def run() -> None:
        content = bytes(range(256)) * 1000
        sent = asyncio.Event()

        async def one(stream: ServerStream) -> None:
            await stream.write(content[:100], content[100:])
            sent.set()
            await stream.read()

        async with serving(one) as served, raw_peer(served) as peer:
            small = settings_frame({Setting.INITIAL_WINDOW_SIZE: 10000})
            peer.send(PREFACE, small, headers_frame(request()))
            total = 5 + len(content)
            assert await _received(peer, 10000, 10000) == 10000
            # The setting makes the stream's window negative, so 6000 bytes of the update only bring it to zero.
            peer.send(settings_frame({Setting.INITIAL_WINDOW_SIZE: 4000}))
            peer.send(frame(FrameType.WINDOW_UPDATE, 0, 1, (6000 + 50000).to_bytes(4, "big")))
            assert await _received(peer, 50000, 16384) == 50000
            # The stream's window is large now, so the connection's initial window of 65535 bytes is the limit.
            peer.send(frame(FrameType.WINDOW_UPDATE, 0, 1, (1 << 20).to_bytes(4, "big")))
            assert await _received(peer, 5535, 5535) == 5535
            peer.send(frame(FrameType.PING, 0, 0, bytes(8)))
            await peer.until(FrameType.PING)
            assert not sent.is_set()
            peer.send(settings_frame({Setting.MAX_FRAME_SIZE: 100000}))
            peer.send(frame(FrameType.WINDOW_UPDATE, 0, 0, (1 << 20).to_bytes(4, "big")))
            rest = total - 65535
            assert await _received(peer, rest, 100000) == rest
            await within(sent.wait())

    asyncio.run(run())


def test_a_window_that_ends_within_a_message_is_used_up() -> None:
    whole, some = message(bytes(100_000)), 5_000

    async def run() -> None:
        async def two(stream: ServerStream) -> None:
            for _ in range(2):
                await stream.write(bytes(100_000))

        async with serving(two) as served, raw_peer(served) as peer:
            window = {Setting.INITIAL_WINDOW_SIZE: len(whole) + some}
            peer.send(PREFACE, settings_frame(window), window_update_frame(0, 1 << 20))
            peer.send(headers_frame(request()))
            assert await _received(peer, len(whole) + some, 16384) == len(whole) + some
            peer.send(window_update_frame(1, len(whole) - some))
            assert await _received(peer, len(whole) - some, 16384) == len(whole) - some

    asyncio.run(run())


def test_four_chunks_fit_into_a_window() -> None:
    header = ChunkHeader(
        job="j" * 60, epoch=1 << 31, generation=1 << 31, step=1 << 40, lease=1 << 60, dtype=FLOAT32
    )
    chunk = pack_chunk(header, 1 << 20, np.zeros(CHUNK_ELEMENTS, np.float32))
    parts = serialize_in_parts(chunk)
    frame_bytes = PREFIX_BYTES + sum(len(memoryview(part)) for part in parts)
    assert 4 * frame_bytes <= WINDOW_BYTES < 4 * frame_bytes + (16 << 10)


def test_unread_messages_are_not_granted_again() -> None:
    async def run() -> None:
        read_on, read = asyncio.Event(), asyncio.Event()

        async def slow(stream: ServerStream) -> None:
            await stream.send_initial_metadata(())
            await read_on.wait()
            for _ in range(8):
                await stream.read()
            read.set()
            await asyncio.Event().wait()

        async with serving(slow) as served, raw_peer(served) as peer:
            whole = message(bytes(WINDOW_BYTES // 8 - 5))
            peer.send(OPENING)
            await peer.accepted()
            peer.send(*(data_frame(whole) for _ in range(8)))
            peer.send(frame(FrameType.PING, 0, 0, bytes(8)))
            granted = 0
            while (got := await peer.next_frame()) is not None and got[0] != FrameType.PING:
                if got[0] == FrameType.WINDOW_UPDATE and got[2] == 1:
                    granted += read_uint32(got[3])
            # Unread bytes are not granted again.
            assert granted <= WINDOW_BYTES
            waiting = WINDOW_BYTES - granted
            read_on.set()
            await within(read.wait())
            while granted < WINDOW_BYTES // 2 + waiting // 2:
                _, _, stream, payload = await peer.until(FrameType.WINDOW_UPDATE)
                granted += read_uint32(payload) if stream == 1 else 0

    asyncio.run(run())


@pytest.mark.parametrize("leave", [frame(FrameType.RST_STREAM, 0, 1, b"\0\0\0\x08"), b""])
def test_a_caller_that_disconnects_ends_the_handler(leave: bytes) -> None:
    async def run() -> None:
        here = asyncio.Event()
        ended: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

        async def handler(stream: ServerStream) -> None:
            here.set()
            try:
                await stream.read()
            except BaseException as error:
                ended.set_result(error)
                with pytest.raises(LinkClosed):
                    await stream.write(b"to nobody")
                raise

        async with serving(handler) as served, raw_peer(served) as peer:
            peer.send(OPENING)
            await within(here.wait())
            if leave:
                peer.send(leave)
            else:
                peer.abort()
            assert isinstance(await within(ended), asyncio.CancelledError)

    asyncio.run(run())


def test_a_peer_that_reads_no_answers_is_disconnected(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> None:
        async def talk(stream: ServerStream) -> None:
            while True:
                await stream.write(bytes(1 << 20))

        async with serving(talk, times=ConnectionTimes(linger_seconds=0.1)) as served:
            _, writer = await asyncio.open_connection("127.0.0.1", served.port, limit=1)
            try:
                window = {Setting.INITIAL_WINDOW_SIZE: 1 << 30}
                writer.write(PREFACE + settings_frame(window) + window_update_frame(0, 1 << 30))
                writer.write(headers_frame(request()))
                with pytest.raises(ConnectionError):
                    while True:  # until the server can't send any more
                        writer.write(frame(FrameType.PING, 0, 0, bytes(8)) * 10)
                        await within(writer.drain())
                        await asyncio.sleep(0.02)
            finally:
                writer.transport.abort()

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    assert "does not read the answers" in caplog.text


def test_a_client_without_a_call_is_disconnected() -> None:
    async def run() -> None:
        async with serving(times=ConnectionTimes(call_seconds=0.05)) as served, raw_peer(served) as peer:
            peer.send(PREFACE, settings_frame({}))
            _, _, _, payload = await peer.until(FrameType.GOAWAY)
            assert b"no call within" in payload
            while await peer.next_frame() is not None:
                pass

    asyncio.run(run())


def test_a_silent_peer_is_pinged_and_then_disconnected() -> None:
    times = ConnectionTimes(keepalive_seconds=0.1, keepalive_timeout_seconds=0.1)

    async def run() -> None:
        async with serving(times=times) as served, raw_peer(served) as peer:
            peer.send(OPENING)
            assert (await peer.until(FrameType.PING))[1] == 0
            while await peer.next_frame() is not None:
                pass

        async def mute(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(settings_frame({}))

        silent = await asyncio.start_server(mute, "127.0.0.1", 0)
        port = silent.sockets[0].getsockname()[1]
        stream = await open_stream(f"127.0.0.1:{port}", PLAIN, PATH, times=times)
        with pytest.raises(
            grpc.aio.AioRpcError, match=rf"127.0.0.1:{port}: no answer to a ping within 0.1 s"
        ):
            await within(stream.read())
        silent.close()

    asyncio.run(run())


def test_a_peer_is_pinged_after_a_pause_of_this_process_before_it_counts_as_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ping, answer = frame(FrameType.PING, 0, 0, bytes(8)), frame(FrameType.PING, Flags.ACK, 0, bytes(8))

    async def ignore(stream: ServerStream) -> None:
        await asyncio.Event().wait()

    async def run() -> None:
        connection = make_connection(ignore)
        transport = FakeTransport(connection)
        connection.connection_made(transport)
        give(connection, OPENING)
        loop, paused_seconds = asyncio.get_running_loop(), 0.0
        monkeypatch.setattr(loop, "time", lambda: time.monotonic() + paused_seconds)

        async def pings_after_a_pause() -> int:
            nonlocal paused_seconds
            transport.sent.clear()
            paused_seconds += 1000.0
            for _ in range(3):
                await asyncio.sleep(0)
            return transport.sent.count(ping)

        for _ in range(2):
            assert (await pings_after_a_pause(), transport.closed) == (1, False)
            give(connection, answer)
        assert (await pings_after_a_pause(), transport.closed) == (1, False)
        assert (await pings_after_a_pause(), transport.closed) == (0, True)
        await connection.closed.wait()

    asyncio.run(run())


def test_a_peer_that_answers_pings_stays_connected() -> None:
    times = ConnectionTimes(keepalive_seconds=0.05, keepalive_timeout_seconds=5.0)

    async def run() -> None:
        async with serving(times=times) as served, raw_peer(served) as peer:
            peer.send(OPENING)
            for _ in range(4):
                _, flags, _, payload = await peer.until(FrameType.PING)
                assert flags == 0
                peer.send(frame(FrameType.PING, Flags.ACK, 0, payload))
            peer.send(data_frame(message(b"alive")))
            assert (await peer.until(FrameType.DATA))[3] == message(b"alive")

    asyncio.run(run())


@pytest.mark.parametrize(
    ("answer", "limit_seconds", "why"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", LIMIT_SECONDS, "HTTP/2"),
        (b"", 0.3, "within 0.3 s"),
        (None, LIMIT_SECONDS, "the connection "),
    ],
)
def test_the_error_about_another_kind_of_server_says_so(
    answer: bytes | None, limit_seconds: float, why: str
) -> None:
    async def run() -> None:
        async def other(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if answer is None:
                writer.close()
            else:
                writer.write(answer)

        listening = await asyncio.start_server(other, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await open_stream(f"127.0.0.1:{port}", PLAIN, PATH, limit_seconds=limit_seconds)
        listening.close()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        details = caught.value.details()
        assert details is not None
        assert details.startswith(f"127.0.0.1:{port}: ")
        assert why in details
        with pytest.raises(grpc.aio.AioRpcError, match=rf"127.0.0.1:{port}: can't be reached \(.*refused"):
            await open_stream(f"127.0.0.1:{port}", PLAIN, PATH)

    asyncio.run(run())


def test_goaway_and_reset_give_their_reasons() -> None:
    bye = frame(FrameType.GOAWAY, 0, 0, bytes(4) + b"\0\0\0\x0b" + b"too many pings")
    reset = frame(FrameType.RST_STREAM, 0, 1, b"\0\0\0\x07")

    async def run(answer: bytes) -> grpc.aio.AioRpcError:
        async def other(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(settings_frame({}) + answer)

        listening = await asyncio.start_server(other, "127.0.0.1", 0)
        address = f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        stream = await open_stream(address, PLAIN, PATH)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await within(stream.read())
        listening.close()
        return caught.value

    left = asyncio.run(run(bye))
    assert left.code() is grpc.StatusCode.UNAVAILABLE
    assert "(ENHANCE_YOUR_CALM: too many pings)" in str(left.details())
    refused = asyncio.run(run(reset))
    assert refused.code() is grpc.StatusCode.UNAVAILABLE
    assert "REFUSED_STREAM" in str(refused.details())


def test_nothing_can_be_written_after_a_cancelled_message() -> None:
    async def run() -> None:
        async def deaf(stream: ServerStream) -> None:
            await asyncio.Event().wait()

        async with serving(deaf) as served:
            stream = await open_stream(f"127.0.0.1:{served.port}", PLAIN, PATH)
            parts = [bytes(1 << 20)] * 4
            with pytest.raises(ValueError, match="bytes"):
                await stream.write(*parts, b"x")
            writing: asyncio.Future[None]
            while True:  # until the server's window is full
                writing = asyncio.ensure_future(stream.write(*parts))
                if not (await asyncio.wait([writing], timeout=0.2))[0]:  # it has begun
                    break
            writing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await writing
            with pytest.raises(ValueError, match="was cut off"):
                await stream.write(b"next")
            stream.cancel()

    asyncio.run(run())


def test_the_error_about_an_unknown_method_names_it() -> None:
    async def run() -> None:
        async with serving(echo) as served:
            stream = await open_stream(f"127.0.0.1:{served.port}", PLAIN, "/tests.Tests/Other")
            with pytest.raises(grpc.aio.AioRpcError, match=r"'/tests\.Tests/Other' is not served"):
                await within(stream.read())
            assert await stream.code() is grpc.StatusCode.UNIMPLEMENTED

    asyncio.run(run())
