"""A TCP relay of the tests: an address that outlives whoever is behind it, and a network as slow as a test wants it."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from types import TracebackType

PIECE_BYTES = 64 * 1024
GATED_BYTES = 64 * 1024
"""What passes a closed gate per connection: orders do, weights don't."""


class Relay:
    """Forwards connections from a port of its own to `target` on loopback.

    Args:
        target: port; may be changed at any time, which concerns new connections.
        seed: of random delays before each piece, both ways; None: no delays.
        most_delay_seconds: longest of them.
        gate_closed: hold what comes from the target, after the first `GATED_BYTES` of a connection, until `open_gate`,
            or as far as `let_through` lets it.
    """

    def __init__(
        self,
        target: int,
        *,
        seed: int | None = None,
        most_delay_seconds: float = 0.004,
        gate_closed: bool = False,
    ) -> None:
        self.target = target
        self._random = None if seed is None else random.Random(seed)
        self._most_delay_seconds = most_delay_seconds
        self._loop = asyncio.new_event_loop()
        self._gate = asyncio.Event()
        self._allowed_bytes = 0
        self._allowed_more = asyncio.Event()
        if not gate_closed:
            self._gate.set()
        self._open: set[asyncio.StreamWriter] = set()
        self._server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port: int = self._server.sockets[0].getsockname()[1]
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"relay-{self.port}", daemon=True)
        self._thread.start()

    def __enter__(self) -> Relay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def address(self) -> str:
        """Where to connect."""
        return f"127.0.0.1:{self.port}"

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

    async def _close(self) -> None:
        self._server.close()
        self._cut()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            with contextlib.suppress(OSError):
                far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
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
