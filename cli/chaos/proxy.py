"""A TCP proxy: an address that outlives whoever is behind it, and a link as bad as one wants it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Protocol

PIECE_BYTES = 64 * 1024
_PIECES_PER_SECOND = 20
"""Of a throttled line: small enough to pass evenly."""


class ProxyTarget(Protocol):
    """Whom a proxy stands for: a daemon, or another proxy."""

    @property
    def address(self) -> str:
        """`HOST:PORT` of its main port."""

    @property
    def tensor_port(self) -> int:
        """Of the same host; 0: it has none."""


class Line:
    """One direction of a proxy: how bytes pass. All of it can be changed at any time.

    Attributes:
        delay_seconds: each piece of at most `PIECE_BYTES` waits that long before the next is read.
        bytes_per_second: what passes, of all connections together; None: no limit.
        broken: set once `break_after` has broken a connection.
    """

    def __init__(self) -> None:
        self.delay_seconds = 0.0
        self.bytes_per_second: float | None = None
        self.broken = asyncio.Event()
        self._whole = asyncio.Event()
        self._whole.set()
        self._free_seconds = 0.0
        self._bytes_to_break: int | None = None

    def hold(self) -> None:
        """Let nothing pass, as a link that is down: senders are stopped by full buffers, and no connection ends."""
        self._whole.clear()

    def release(self) -> None:
        """Let what was held pass, and all that follows."""
        self._whole.set()

    def break_after(self, count: int | None) -> None:
        """Break the connection of the byte with this number, counted from now, right after it; None: break none."""
        self.broken.clear()
        self._bytes_to_break = count

    async def admit(self, passed: int, count: int) -> None:
        """Wait until `count` bytes may pass, after `passed` of their connection."""
        if self.delay_seconds:
            await asyncio.sleep(self.delay_seconds)
        if self.bytes_per_second is not None:
            now = asyncio.get_running_loop().time()
            self._free_seconds = max(now, self._free_seconds) + count / self.bytes_per_second
            await asyncio.sleep(self._free_seconds - now)
        await self._whole.wait()

    @property
    def piece_bytes(self) -> int:
        """The most that is read at once."""
        if self.bytes_per_second is None:
            return PIECE_BYTES
        return max(1, min(PIECE_BYTES, int(self.bytes_per_second / _PIECES_PER_SECOND)))

    def until_break(self, count: int) -> tuple[int, bool]:
        """How many of these bytes pass, and whether their connection breaks then."""
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
    """Forwards connections to a target, from a host address of its own, so that its tensor port can have the number
    that the target tells its peers, whose connections then come here too. All 127.x.x.x are this host's on Linux.

    Args:
        host: to listen on.
        forth: what goes to the target.
        back: what comes from it.

    Attributes:
        host, forth, back: as given.
        port: of the target's main port; any free one.
        tensor_port: the target's.
        refusing: whether new connections are reset.
    """

    def __init__(self, host: str, *, forth: Line | None = None, back: Line | None = None) -> None:
        self.host = host
        self.port = 0
        self.tensor_port = 0
        self.forth = forth or Line()
        self.back = back or Line()
        self.refusing = False
        self._target = ("", 0)
        self._servers: dict[int, asyncio.Server] = {}
        self._open: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        """Where to connect."""
        return f"{self.host}:{self.port}"

    async def aim(self, target: ProxyTarget) -> None:
        """Stand for this target from now on; connections that there are stay where they are.

        Raises:
            OSError: no listening on `host`, or its port of the number of `target.tensor_port` is taken.
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
        """Break all connections and take no new ones."""
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
        here = writer.get_extra_info("sockname")[1]
        far_reader, far_writer = await asyncio.open_connection(host, port if here == self.port else here)
        self._open.add(far_writer)
        pumps = [
            asyncio.ensure_future(_pump(reader, far_writer, self.forth)),
            asyncio.ensure_future(_pump(far_reader, writer, self.back)),
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
            passing, breaks = line.until_break(len(piece))
            writer.write(piece[:passing])
            await writer.drain()
            passed += passing
            if breaks:
                return
    finally:
        writer.close()  # one end is gone: so is the other
