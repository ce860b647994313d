"""The proxy between real sockets: what passes, how fast, and how far."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from cli.chaos.proxy import PIECE_BYTES, Proxy
from tests.support.cluster.relay import choose_host

LIMIT_SECONDS = 20.0
PATTERN = bytes(range(256))


@dataclass
class End:
    """One end of a connection, which keeps the bytes that it receives."""

    writer: asyncio.StreamWriter
    reading: asyncio.Future[None] | None = None
    got: bytearray = field(default_factory=bytearray)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def read(self, reader: asyncio.StreamReader) -> None:
        try:
            while piece := await reader.read(1 << 20):
                self.got += piece
                self.changed.set()
        except ConnectionError:
            pass
        self.ended.set()

    async def has(self, count: int) -> None:
        while len(self.got) < count:
            self.changed.clear()
            await asyncio.wait_for(self.changed.wait(), LIMIT_SECONDS)

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def over(self) -> None:
        await asyncio.wait_for(self.ended.wait(), LIMIT_SECONDS)


@dataclass
class Listener:
    """Target of a proxy, which hands out the far ends of its connections."""

    address: str = ""
    tensor_port: int = 0
    far: asyncio.Queue[End] = field(default_factory=asyncio.Queue)
    server: asyncio.Server | None = None

    async def listen(self) -> Listener:
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self.server.sockets[0].getsockname()[1]}"
        return self

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        end = End(writer)
        self.far.put_nowait(end)
        await end.read(reader)
        writer.transport.abort()

    async def accepted(self) -> End:
        return await asyncio.wait_for(self.far.get(), LIMIT_SECONDS)


async def connect(proxy: Proxy, port: int = 0) -> End:
    reader, writer = await asyncio.open_connection(proxy.host, port or proxy.port)
    end = End(writer)
    end.reading = asyncio.ensure_future(end.read(reader))
    return end


@asynccontextmanager
async def proxied() -> AsyncIterator[tuple[Proxy, Listener]]:
    target, proxy = await Listener().listen(), Proxy(choose_host())
    try:
        await proxy.aim(target)
        yield proxy, target
    finally:
        await proxy.close()
        assert target.server is not None
        target.server.close()


def run_with_proxy(test: Callable[[Proxy, Listener], Awaitable[None]]) -> None:
    async def run() -> None:
        async with proxied() as (proxy, target):
            await asyncio.wait_for(test(proxy, target), 60)
        # Once the proxy is closed, all its tasks end.
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.wait_for(asyncio.gather(*rest), LIMIT_SECONDS)

    asyncio.run(run())


def test_bytes_pass_both_ways_on_both_ports() -> None:
    async def run(proxy: Proxy, target: Listener) -> None:
        tensors = await Listener().listen()
        target.tensor_port = int(tensors.address.rpartition(":")[2])
        await proxy.aim(target)
        assert proxy.tensor_port == target.tensor_port
        for port, listener in ((proxy.port, target), (proxy.tensor_port, tensors)):
            near = await connect(proxy, port)
            await near.send(PATTERN * 1000)
            far = await listener.accepted()
            await far.has(256_000)
            await far.send(b"thanks")
            await near.has(6)
            assert (bytes(far.got), bytes(near.got)) == (PATTERN * 1000, b"thanks")
            near.writer.close()
            await far.over()
        assert tensors.server is not None
        tensors.server.close()

    run_with_proxy(run)


@pytest.mark.parametrize("count", [1, 1000, PIECE_BYTES, PIECE_BYTES + 1, 300_001])
@pytest.mark.parametrize("to_target", [True, False])
def test_a_connection_breaks_after_the_given_number_of_bytes(count: int, to_target: bool) -> None:
    async def run(proxy: Proxy, target: Listener) -> None:
        near = await connect(proxy)
        far = await target.accepted()
        other = await connect(proxy)
        other_far = await target.accepted()
        (proxy.to_target if to_target else proxy.from_target).break_after(count)
        sender, receiver = (near, far) if to_target else (far, near)
        sender.writer.write(PATTERN * 2000)
        await receiver.over()
        await sender.over()
        assert bytes(receiver.got) == (PATTERN * 2000)[:count]
        assert (proxy.to_target if to_target else proxy.from_target).broken.is_set()
        await other.send(PATTERN)
        await other_far.has(256)
        await other_far.send(PATTERN)
        await other.has(256)  # other connections stay open

    run_with_proxy(run)


def test_a_throttled_line_has_its_rate_over_all_connections() -> None:
    async def run(proxy: Proxy, target: Listener) -> None:
        ends = []
        for _ in range(2):
            ends.append((await connect(proxy), await target.accepted()))
        taken = {}
        for rate in (400_000, 100_000):
            proxy.to_target.bytes_per_second = rate
            for _, far in ends:
                far.got.clear()
            started = time.monotonic()
            for near, _ in ends:
                near.writer.write(bytes(50_000))
            await asyncio.gather(*(far.has(50_000) for _, far in ends))
            taken[rate] = time.monotonic() - started
        # 100 kB take 0.25 s and 1 s at these rates. A busy machine adds to both.
        assert taken[400_000] >= 0.2 and taken[100_000] >= 0.8
        near, far = ends[0]
        near.writer.write(bytes(10_000_000))  # for 100 s
        await far.send(bytes(1_000_000))
        await near.has(1_000_000)
        assert len(far.got) < 10_000_000, "the other direction isn't throttled"

    run_with_proxy(run)


def test_a_paused_direction_loses_nothing() -> None:
    async def run(proxy: Proxy, target: Listener) -> None:
        near = await connect(proxy)
        far = await target.accepted()
        proxy.to_target.pause()
        await near.send(b"before, ")
        for number in range(1, 6):  # the other direction works meanwhile
            await far.send(PATTERN * 100)
            await near.has(25_600 * number)
        assert far.got == b""
        assert not near.ended.is_set() and not far.ended.is_set()
        near.writer.write(b"after")
        proxy.to_target.resume()
        await far.has(13)
        assert bytes(far.got) == b"before, after"

    run_with_proxy(run)


def test_a_paused_line_stops_its_senders() -> None:
    async def run(proxy: Proxy, target: Listener) -> None:
        near = await connect(proxy)
        far = await target.accepted()
        proxy.to_target.pause()
        near.writer.write(bytes(50_000_000))  # more than all buffers on the way
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(near.writer.drain(), 0.3)
        proxy.to_target.resume()
        await far.has(50_000_000)

    run_with_proxy(run)


def test_delays_keep_the_order() -> None:
    async def run(proxy: Proxy, target: Listener) -> None:
        near = await connect(proxy)
        far = await target.accepted()
        delays = itertools.cycle((0.03, 0.0, 0.01))
        started = time.monotonic()
        for number in range(30):
            proxy.to_target.delay_seconds = next(delays)
            await near.send(bytes([number]) * 100)
        proxy.to_target.delay_seconds = 0.05
        await near.send(b"end")
        await far.has(3003)
        assert time.monotonic() - started >= 0.05
        assert bytes(far.got) == b"".join(bytes([number]) * 100 for number in range(30)) + b"end"

    run_with_proxy(run)


def test_new_connections_are_refused_and_old_ones_live() -> None:
    async def run(proxy: Proxy, target: Listener) -> None:
        near = await connect(proxy)
        far = await target.accepted()
        proxy.refusing = True
        refused = await connect(proxy)
        await refused.over()
        assert target.far.empty()
        await near.send(b"here")
        await far.has(4)
        proxy.refusing = False
        await connect(proxy)
        await target.accepted()

    run_with_proxy(run)


def test_new_connections_go_to_the_new_target() -> None:
    async def run(proxy: Proxy, target: Listener) -> None:
        near = await connect(proxy)
        far = await target.accepted()
        other = await Listener().listen()
        port = proxy.port
        await proxy.aim(other)
        assert proxy.port == port
        await connect(proxy)
        await other.accepted()
        assert target.far.empty()
        await near.send(b"here")
        await far.has(4)
        assert other.server is not None
        other.server.close()

    run_with_proxy(run)


def test_a_connection_without_a_target_is_reset() -> None:
    async def run(proxy: Proxy, target: Listener) -> None:
        assert target.server is not None
        target.server.close()
        await (await connect(proxy)).over()

    run_with_proxy(run)


def test_close_and_reset_break_all_connections() -> None:
    async def run(proxy: Proxy, target: Listener) -> None:
        for end in (proxy.reset, None):
            proxy.to_target.pause()
            near = await connect(proxy)
            far = await target.accepted()
            await near.send(b"held")
            if end is not None:
                end()
            else:
                await proxy.close()
            await near.over()
            await far.over()
        with pytest.raises(ConnectionRefusedError):
            await connect(proxy)

    run_with_proxy(run)
