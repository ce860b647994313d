"""Interoperability with grpcio's client and server: messages, metadata, statuses, ends, TLS."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from services.transport.access.permissions import PERMISSIONS, CallerKind
from services.transport.http2.client import ClientStream, open_stream
from services.transport.http2.frames import DEFAULT_WINDOW_BYTES
from services.transport.http2.server import ServerStream
from services.transport.limits import MESSAGE_LIMIT_BYTES
from services.transport.security import Security
from tests.support.certificates import make_authority, make_certificate
from tests.support.raw_http2 import PATH, PLAIN, echo, serving, within

TEXT = "refused: größer als 4 MiB, 100 % — zu groß\nzweite Zeile 🙂"
SIZES = (0, 1, 4, 5, 100, 4095, 4096, 16379, 16384, 65530, 65536, 1 << 20, MESSAGE_LIMIT_BYTES)
OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_LIMIT_BYTES),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_http_proxy", 0),
)
# A peer as small as one may be: every message is cut, every window runs dry.
SMALL = (
    *OPTIONS,
    ("grpc.http2.max_frame_size", 16384),
    ("grpc.http2.lookahead_bytes", DEFAULT_WINDOW_BYTES),
    ("grpc.http2.bdp_probe", 0),
)

Serve = Callable[[Any], Awaitable[None]]
Options = tuple[tuple[str, int], ...]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    for authority in ("ours", "theirs"):
        make_certificate(folder, f"{authority}-role", make_authority(folder, authority), CallerKind.WORKER)
    return folder


def mutual(files: Path, whose: str = "ours") -> Security:
    return Security(files / f"{whose}-role.pem", files / f"{whose}-role.key", files / f"{whose}.pem")


@asynccontextmanager
async def stock_server(
    handler: Serve, security: Security = PLAIN, options: Options = OPTIONS
) -> AsyncIterator[int]:
    """Serve by grpcio; yield the port."""
    stock = grpc.aio.server(options=options)

    async def serve(_: Any, context: Any) -> None:
        await handler(context)

    methods = {"Echo": grpc.stream_stream_rpc_method_handler(serve)}
    stock.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("tests.Tests", methods),))
    credentials = security.server_credentials()
    port = (
        stock.add_insecure_port("127.0.0.1:0")
        if credentials is None
        else stock.add_secure_port("127.0.0.1:0", credentials)
    )
    await stock.start()
    try:
        yield port
    finally:
        await stock.stop(0)


@asynccontextmanager
async def stock_call(
    port: int,
    security: Security = PLAIN,
    options: Options = OPTIONS,
    metadata: Any = None,
    host: str = "localhost",
) -> AsyncIterator[Any]:
    """Call by grpcio's client."""
    credentials, address = security.channel_credentials(), f"{host}:{port}"
    channel = (
        grpc.aio.insecure_channel(address, options=options)
        if credentials is None
        else grpc.aio.secure_channel(address, credentials, options=options)
    )
    async with channel:
        yield channel.stream_stream(PATH)(metadata=metadata)


@asynccontextmanager
async def our_call(
    port: int, security: Security = PLAIN, metadata: Any = (), host: str = "localhost"
) -> AsyncIterator[ClientStream]:
    """Call by Tiermesh's client."""
    stream = await open_stream(f"{host}:{port}", security, PATH, metadata)
    try:
        yield stream
    finally:
        stream.cancel()


async def stock_echo(context: Any) -> None:
    while (got := await context.read()) is not grpc.aio.EOF:
        await context.write(got)


def is_end(got: Any) -> bool:
    return got is None or got is grpc.aio.EOF


async def exchange(call: Any, contents: list[bytes], *, parts: bool) -> None:
    """Write all messages and check that the echo equals them and the status is OK."""

    async def write() -> None:
        for content in contents:
            cut = len(content) // 3
            await (call.write(content[:cut], memoryview(content)[cut:]) if parts else call.write(content))
        await call.done_writing()

    async def read() -> list[bytes]:
        got = []
        while not is_end(each := await call.read()):
            got.append(bytes(each))
        return got

    _, got = await within(asyncio.gather(write(), read()))
    assert [len(each) for each in got] == [len(each) for each in contents]
    assert got == contents
    assert await call.code() is grpc.StatusCode.OK


def shuffled(seed: int, most: int = MESSAGE_LIMIT_BYTES) -> list[bytes]:
    rnd = random.Random(seed)
    sizes = [size for size in SIZES if size <= most] * 2 + [rnd.randrange(200) for _ in range(300)]
    rnd.shuffle(sizes)
    return [rnd.randbytes(size) for size in sizes]


@pytest.mark.parametrize("options", [OPTIONS, SMALL])
def test_echo_for_a_stock_client(options: Options) -> None:
    async def run() -> None:
        async with serving() as served, stock_call(served.port, options=options) as call:
            await exchange(call, shuffled(1), parts=False)

    asyncio.run(run())


@pytest.mark.parametrize("options", [OPTIONS, SMALL])
def test_echo_of_a_stock_server(options: Options) -> None:
    async def run() -> None:
        async with stock_server(stock_echo, options=options) as port, our_call(port) as call:
            await exchange(call, shuffled(2), parts=True)

    asyncio.run(run())


def test_echo_between_both_own_ends() -> None:
    async def run() -> None:
        async with serving() as served, our_call(served.port) as call:
            await exchange(call, shuffled(3), parts=True)

    asyncio.run(run())


def test_metadata_goes_both_ways() -> None:
    there, back = (("tiermesh-a", "1"), ("b-bin", b"\0\xff")), (("tiermesh-c", "2"), ("d-bin", b"\1\2"))
    seen: list[tuple[str, Any]] = []

    async def handler(context: Any) -> None:
        seen.extend((key, value) for key, value in context.invocation_metadata() if key in dict(there))
        await context.send_initial_metadata(back)
        await context.read()

    async def check(call: Any) -> None:
        got = [(key, value) for key, value in await within(call.initial_metadata()) if key in dict(back)]
        assert got == list(back)
        assert seen == list(there)
        seen.clear()

    async def run() -> None:
        async with serving(handler) as served, stock_call(served.port, metadata=there) as call:
            await check(call)
        async with stock_server(handler) as port, our_call(port, metadata=there) as call:
            await check(call)

    asyncio.run(run())


@pytest.mark.parametrize("after", [0, 3])
@pytest.mark.parametrize("read_first", [True, False])
def test_an_abort_arrives_with_code_and_text(after: int, read_first: bool) -> None:
    async def handler(context: Any) -> None:
        if read_first:
            await context.read()
        for _ in range(after):
            await context.write(b"some")
        await context.abort(grpc.StatusCode.DATA_LOSS, TEXT)

    async def check(call: Any, *, busy: bool = True) -> None:
        async def flood() -> None:
            if busy or read_first:
                await call.write(b"hello")
            while busy:  # still sending at the end; the stock client then reports only the failed write
                await call.write(bytes(100000))

        writing = asyncio.ensure_future(flood())
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            while not is_end(await within(call.read())):
                pass
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        assert caught.value.code() is grpc.StatusCode.DATA_LOSS
        assert caught.value.details() == TEXT
        assert await call.code() is grpc.StatusCode.DATA_LOSS
        assert await call.details() == TEXT

    async def run() -> None:
        async with serving(handler) as served:
            async with stock_call(served.port) as call:
                await check(call, busy=False)
            async with our_call(served.port) as call:
                await check(call)
        async with stock_server(handler) as port, our_call(port) as call:
            await check(call)

    asyncio.run(run())


def test_the_end_of_the_handler_ends_the_stream() -> None:
    async def fails(_: Any) -> None:
        raise KeyError("internal")

    async def returns(context: Any) -> None:
        await context.write(b"only one")

    async def run() -> None:
        async with serving(fails) as served, stock_call(served.port) as call:
            with pytest.raises(grpc.aio.AioRpcError, match="unexpected KeyError") as caught:
                await within(call.read())
            assert caught.value.code() is grpc.StatusCode.UNKNOWN
        async with serving(returns) as served, stock_call(served.port) as call:
            assert await within(call.read()) == b"only one"
            assert await within(call.read()) is grpc.aio.EOF
        async with stock_server(returns) as port, our_call(port) as ours:
            assert await within(ours.read()) == b"only one"
            assert await within(ours.read()) is None
            assert await ours.code() is grpc.StatusCode.OK
            with pytest.raises(asyncio.InvalidStateError):
                await ours.write(b"too late")

    asyncio.run(run())


def test_a_caller_that_cancels_ends_the_handler() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[bool]

        async def handler(context: Any) -> None:
            try:
                while True:
                    await context.read()
            finally:
                ended.set_result(True)

        async with serving(handler) as served, stock_server(handler) as port:
            for call in (stock_call(served.port), our_call(served.port), our_call(port)):
                ended = loop.create_future()
                async with call as opened:
                    await opened.write(b"hello")
                    opened.cancel()
                    await within(ended)
                    assert await opened.code() is grpc.StatusCode.CANCELLED

    asyncio.run(run())


def test_a_message_that_is_too_long_ends_the_stream() -> None:
    async def one(context: Any) -> None:
        await context.write(bytes(MESSAGE_LIMIT_BYTES + 1))

    async def run() -> None:
        async with serving() as served, stock_call(served.port) as call:
            await call.write(bytes(MESSAGE_LIMIT_BYTES + 1))
            with pytest.raises(grpc.aio.AioRpcError, match="a message of 4194305 bytes") as caught:
                await within(call.read())
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        async with stock_server(one) as port, our_call(port) as ours:
            with pytest.raises(grpc.aio.AioRpcError, match="a message of 4194305 bytes") as caught:
                await within(ours.read())
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED

    asyncio.run(run())


def test_a_reader_that_does_not_read_stops_the_writer() -> None:
    """Check that the writer stops after about a window, and that all messages arrive once the reader reads."""
    many, content = 100, bytes(1 << 20)

    async def run(call: Any, go_on: asyncio.Event, got: asyncio.Future[int]) -> None:
        written = 0

        async def write() -> None:
            nonlocal written
            for index in range(many):
                await call.write(index.to_bytes(4, "big") + content)
                written += 1
            await call.done_writing()

        writing = asyncio.ensure_future(write())
        before = 0
        while not written or written != before:  # until the writer makes no more progress
            before = written
            await asyncio.sleep(0.3)
        assert written < many // 2
        go_on.set()
        assert await within(got) == many
        await within(writing)

    async def both() -> None:
        loop = asyncio.get_running_loop()
        go_on: asyncio.Event
        got: asyncio.Future[int]

        async def handler(context: Any) -> None:
            await context.send_initial_metadata(())
            await context.read()
            await go_on.wait()
            count = 1
            while not is_end(each := await context.read()):
                assert int.from_bytes(each[:4], "big") == count
                count += 1
            got.set_result(count)

        async with serving(handler) as served, stock_server(handler) as port:
            for opened in (stock_call(served.port), our_call(served.port), our_call(port)):
                go_on, got = asyncio.Event(), loop.create_future()
                async with opened as call:
                    await run(call, go_on, got)

    asyncio.run(both())


def test_tls_and_mutual_tls(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PERMISSIONS, PATH, frozenset({CallerKind.WORKER}))
    ours, anonymous = mutual(files), Security(ca=files / "ours.pem")
    one_sided = Security(files / "ours-role.pem", files / "ours-role.key")

    async def run() -> None:
        async with serving(echo, ours) as served:
            async with stock_call(served.port, ours) as call:
                await exchange(call, shuffled(4, 1 << 20), parts=False)
            async with our_call(served.port, ours) as mine:
                await exchange(mine, shuffled(5), parts=True)
            async with our_call(served.port, ours, host="127.0.0.1") as mine:
                await exchange(mine, [b"by address"], parts=True)
        for server, client in ((ours, ours), (one_sided, anonymous)):
            async with stock_server(stock_echo, server) as port, our_call(port, client) as mine:
                await exchange(mine, shuffled(6, 1 << 20), parts=True)

    asyncio.run(run())


def test_tls_accepts_no_peers_of_another_authority(files: Path) -> None:
    ours = mutual(files)
    strangers = (mutual(files, "theirs"), Security(ca=files / "ours.pem"), PLAIN)

    async def run() -> None:
        async with serving(echo, ours) as served:
            for stranger in strangers:
                for call in (our_call(served.port, stranger), stock_call(served.port, stranger)):
                    with pytest.raises(grpc.aio.AioRpcError) as caught:
                        async with call as opened:
                            await opened.write(b"let me in")
                            await within(opened.read())
                    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        # A certificate of the right authority for another name.
        async with serving(echo, ours, "127.0.0.200") as served:
            with pytest.raises(grpc.aio.AioRpcError, match=r"certificate.*127\.0\.0\.200"):
                await open_stream(f"127.0.0.200:{served.port}", ours, PATH)

    asyncio.run(run())


def test_the_status_of_a_stopped_server_says_so() -> None:
    async def run() -> None:
        reading = asyncio.Event()

        async def handler(stream: ServerStream) -> None:
            reading.set()
            await stream.read()

        async with serving(handler) as served, stock_call(served.port) as call:
            await call.write(b"")
            await within(reading.wait())
            reading.clear()
            async with our_call(served.port) as mine:
                await within(reading.wait())
                await within(served.stop(0))
                with pytest.raises(grpc.aio.AioRpcError, match="the server stops"):
                    await within(mine.read())

    asyncio.run(run())
