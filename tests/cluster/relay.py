"""A TCP relay of the tests: an address that outlives whoever is behind it, and a network as slow as a test wants it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import threading
from types import TracebackType
from typing import Protocol

from tests.services.certificates import LOOPBACK_HOSTS

PIECE_BYTES = 64 * 1024
GATED_BYTES = 64 * 1024
"""What passes a closed gate per connection: orders do, weights don't."""


_numbers = itertools.count()


class Target(Protocol):
    """Whom a relay stands for: a daemon, or another relay."""

    @property
    def address(self) -> str:
        """`HOST:PORT` of its main port."""

    @property
    def tensor_port(self) -> int:
        """Of the same host; 0: it has none."""


class Relay:
    """Forwards connections to `target`, from a loopback address of its own: all 127.x.x.x are this host's on Linux.

    So its tensor port can have the number that the target tells its peers, whose connections then come here too.

    Args:
        target: whom to stand for; `aim` changes it, which concerns new connections.
        seed: of random delays before each piece, both ways; None: no delays.
        most_delay_seconds: longest of them.
        gate_closed: hold what comes from the target, after the first `GATED_BYTES` of a connection, until `open_gate`,
            or as far as `let_through` lets it.
    """

    def __init__(
        self,
        target: Target,
        *,
        seed: int | None = None,
        most_delay_seconds: float = 0.004,
        gate_closed: bool = False,
    ) -> None:
        self.host = f"127.0.0.{2 + next(_numbers) % (LOOPBACK_HOSTS - 1)}"
        self._random = None if seed is None else random.Random(seed)
        self._most_delay_seconds = most_delay_seconds
        self._loop = asyncio.new_event_loop()
        self._gate = asyncio.Event()
        self._allowed_bytes = 0
        self._allowed_more = asyncio.Event()
        if not gate_closed:
            self._gate.set()
        self._open: set[asyncio.StreamWriter] = set()
        self._servers: dict[int, asyncio.Server] = {}
        self._target = ("", 0)
        self.tensor_port = 0
        self.port = self._loop.run_until_complete(self._listen(0))
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"relay-{self.port}", daemon=True)
        self._thread.start()
        self.aim(target)

    def __enter__(self) -> Relay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def address(self) -> str:
        """Where to connect."""
        return f"{self.host}:{self.port}"

    def aim(self, target: Target) -> None:
        """Stand for another target from now on."""
        host, _, port = target.address.rpartition(":")
        self._target = (host, int(port))
        self.tensor_port = target.tensor_port
        if self.tensor_port and self.tensor_port not in self._servers:
            asyncio.run_coroutine_threadsafe(self._listen(self.tensor_port), self._loop).result(10)

    def open_gate(self) -> None:
        """Let everything pass from now on."""
        self._loop.call_soon_threadsafe(self._gate.set)

    def let_through(self, count: int) -> None:
        """Let about that many more bytes through the closed gate, of all connections together."""
        self._loop.call_soon_threadsafe(self._allow, count)

    def cut(self) -> None:
        """Break all connections."""
        self._loop.call_soon_threadsafe(self._cut)

    def close(self) -> None:
        """Break all connections and take no new ones."""
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _allow(self, count: int) -> None:
        self._allowed_bytes += count
        self._allowed_more.set()

    async def _pass_gate(self, count: int) -> None:
        while not self._gate.is_set() and self._allowed_bytes < count:
            self._allowed_more.clear()
            opened, allowed = (
                asyncio.ensure_future(each.wait()) for each in (self._gate, self._allowed_more)
            )
            try:
                await asyncio.wait((opened, allowed), return_when=asyncio.FIRST_COMPLETED)
            finally:
                opened.cancel()
                allowed.cancel()
        self._allowed_bytes -= count

    def _cut(self) -> None:
        for writer in self._open:
            writer.transport.abort()

    async def _listen(self, port: int) -> int:
        server = await asyncio.start_server(self._serve, self.host, port)
        bound: int = server.sockets[0].getsockname()[1]
        self._servers[bound] = server
        return bound

    async def _close(self) -> None:
        for server in self._servers.values():
            server.close()
        self._cut()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            with contextlib.suppress(OSError):
                host, port = self._target
                here = writer.get_extra_info("sockname")[1]
                far_reader, far_writer = await asyncio.open_connection(
                    host, port if here == self.port else here
                )
                self._open.add(far_writer)
                try:
                    await asyncio.gather(
                        self._pump(reader, far_writer, gated=False),
                        self._pump(far_reader, writer, gated=True),
                    )
                finally:
                    self._open.discard(far_writer)
                    far_writer.transport.abort()
        finally:
            self._open.discard(writer)
            writer.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, gated: bool) -> None:
        passed = 0
        try:
            while piece := await reader.read(PIECE_BYTES):
                passed += len(piece)
                if gated and passed > GATED_BYTES:
                    await self._pass_gate(len(piece))
                if self._random is not None:
                    await asyncio.sleep(self._random.uniform(0, self._most_delay_seconds))
                writer.write(piece)
                await writer.drain()
        finally:
            writer.close()  # one end is gone: so is the other
