"""A TCP proxy with an address that outlives its target, and with faults that can be switched on and off."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Protocol

from services.tasks import start_awaited

PIECE_BYTES = 64 * 1024
"""Most bytes that are read at once."""
_PIECES_PER_SECOND = 20
"""Pieces per second of a throttled line; small pieces give an even flow."""


class ProxyTarget(Protocol):
    """A daemon or another proxy, to which a proxy forwards."""

    @property
    def address(self) -> str:
        """`HOST:PORT` of its main port."""

    @property
    def tensor_port(self) -> int:
        """Port for tensors on the same host; 0 if there is none."""


class Line:
    """One direction of a proxy; its faults can change at any time.

    Attributes:
        delay_seconds: wait for each piece before the next one is read.
        bytes_per_second: rate limit of all connections together; None for no limit.
        broken: event that is set once `break_after` has broken a connection.
    """

    def __init__(self) -> None:
        self.delay_seconds = 0.0
        self.bytes_per_second: float | None = None
        self.broken = asyncio.Event()
        self._passable = asyncio.Event()
        self._passable.set()
        self._free_at_seconds = 0.0
        self._bytes_to_break: int | None = None

    def pause(self) -> None:
        """Let nothing pass, like a link that is down: buffers fill and stop the senders, connections stay open."""
        self._passable.clear()

    def resume(self) -> None:
        """Let the paused bytes pass, and all that follow."""
        self._passable.set()

    def break_after(self, count: int | None) -> None:
        """Break a connection after `count` more bytes of this line; None cancels that."""
        self.broken.clear()
        self._bytes_to_break = count

    async def admit(self, passed: int, count: int) -> None:
        """Wait until bytes may pass.

        Args:
            passed: number of bytes of their connection that passed before.
            count: number of bytes.
        """
        if self.delay_seconds:
            await asyncio.sleep(self.delay_seconds)
        if self.bytes_per_second is not None:
            now = asyncio.get_running_loop().time()
            self._free_at_seconds = max(now, self._free_at_seconds) + count / self.bytes_per_second
            await asyncio.sleep(self._free_at_seconds - now)
        await self._passable.wait()

    @property
    def piece_bytes(self) -> int:
        """Number of bytes to read at once."""
        if self.bytes_per_second is None:
            return PIECE_BYTES
        return max(1, min(PIECE_BYTES, int(self.bytes_per_second / _PIECES_PER_SECOND)))

    def take_until_break(self, count: int) -> tuple[int, bool]:
        """Return how many of `count` bytes pass, and whether their connection breaks then."""
        if self._bytes_to_break is None:
            return count, False
        passing = min(count, self._bytes_to_break)
        self._bytes_to_break -= passing
        if self._bytes_to_break:
            return passing, False
        self._bytes_to_break = None
        self.broken.set()
        return passing, True


class Proxy:
    """Forwards connections to a target.

    It listens on a host address of its own; on Linux all of 127.x.x.x belong to this host. So it can listen on the
    same tensor port number as the target. Peers learn that number from the target, and connect to the proxy with it.

    Args:
        host: address to listen on.
        to_target: line for bytes to the target.
        from_target: line for bytes from the target.

    Attributes:
        host: address it listens on.
        to_target: line for bytes to the target.
        from_target: line for bytes from the target.
        port: port that stands for the target's main port.
        tensor_port: tensor port of the target and of the proxy.
        refusing: whether new connections are reset.
    """

    def __init__(self, host: str, *, to_target: Line | None = None, from_target: Line | None = None) -> None:
        self.host = host
        self.port = 0
        self.tensor_port = 0
        self.to_target = to_target or Line()
        self.from_target = from_target or Line()
        self.refusing = False
        self._target = ("", 0)
        self._servers: dict[int, asyncio.Server] = {}
        self._open: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        """`HOST:PORT` to connect to."""
        return f"{self.host}:{self.port}"

    async def aim(self, target: ProxyTarget) -> None:
        """Forward new connections to this target; open connections keep theirs.

        Raises:
            OSError: it can't listen on `host`, or the target's tensor port is taken there.
        """
        host, _, port = target.address.rpartition(":")
        self._target = (host, int(port))
        if not self.port:
            self.port = await self._listen(0)
        self.tensor_port = target.tensor_port
        if self.tensor_port and self.tensor_port not in self._servers:
            await self._listen(self.tensor_port)

    def reset(self) -> None:
        """Break all connections."""
        for writer in self._open:
            writer.transport.abort()

    async def close(self) -> None:
        """Break all connections and stop listening."""
        for server in self._servers.values():
            server.close()
        self.reset()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _listen(self, port: int) -> int:
        server = await asyncio.start_server(self._serve, self.host, port)
        bound: int = server.sockets[0].getsockname()[1]
        self._servers[bound] = server
        return bound

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        self._open.add(writer)
        try:
            if not self.refusing:
                with contextlib.suppress(OSError):
                    await self._forward(reader, writer)
        finally:
            self._open.discard(writer)
            self._serving.discard(task)
            writer.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = self._target
        own_port = writer.get_extra_info("sockname")[1]
        far_reader, far_writer = await asyncio.open_connection(
            host, port if own_port == self.port else own_port
        )
        self._open.add(far_writer)
        pumps = [
            start_awaited(_pump(reader, far_writer, self.to_target)),
            start_awaited(_pump(far_reader, writer, self.from_target)),
        ]
        try:
            await asyncio.gather(*pumps)
        finally:
            for pump in pumps:
                pump.cancel()
            self._open.discard(far_writer)
            far_writer.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, line: Line) -> None:
    passed = 0
    try:
        while piece := await reader.read(line.piece_bytes):
            await line.admit(passed, len(piece))
            passing, breaks = line.take_until_break(len(piece))
            writer.write(piece[:passing])
            await writer.drain()
            passed += passing
            if breaks:
                return
    finally:
        writer.close()  # one end has closed, so close the other
