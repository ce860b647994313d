"""Faults of the streams between workers of a row: of their messages, and of their bytes."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any, Literal, cast

from services.transport.http2.server import Handler
from services.transport.links import LinkClosed

MessageFault = Literal["duplicated", "reordered", "lost", "truncated", "bit-flipped", "cut"]
Direction = Literal["up", "down"]
_ARRAY_TAG = 0x0A


class MessageFaults:
    """Faults of one message with a piece of an array, on streams that a worker serves.

    Args:
        kind: what happens to the message.
        direction: `up` to the worker that serves the stream, or `down` from it.
        number: number of pieces before it in this direction.

    Attributes:
        happened: event that is set by the fault.
    """

    def __init__(self, kind: MessageFault, direction: Direction, number: int) -> None:
        self.happened = threading.Event()
        self._kind = kind
        self._direction = direction
        self._left = number

    def wrap(self, handler: Handler) -> Handler:
        """Return a handler whose streams have the fault."""

        async def serve(stream: Any) -> None:
            await handler(cast(Any, _FaultyStream(stream, self)))

        return serve

    def apply(self, direction: Direction, message: Any) -> tuple[list[bytes], bool]:
        """Return what becomes of a message, and whether what it becomes is to be swapped with the next one."""
        content = bytes(message)
        if direction != self._direction or self.happened.is_set() or content[0] != _ARRAY_TAG:
            return [content], False
        self._left -= 1
        if self._left >= 0:
            return [content], False
        self.happened.set()
        match self._kind:
            case "duplicated":
                return [content, content], False
            case "reordered":
                return [content], True
            case "lost":
                return [], False
            case "truncated":
                return [content[:-1]], False
            case "bit-flipped":
                place = len(content) // 2
                return [content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :]], False
            case _:
                raise LinkClosed("the test cuts the stream")


class _FaultyStream:
    def __init__(self, stream: Any, faults: MessageFaults) -> None:
        self._stream = stream
        self._faults = faults
        self._unread: list[bytes] = []
        self._late: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def read(self) -> Any:
        while not self._unread:
            message = await self._stream.read()
            if message is None:
                return None
            content, late = self._faults.apply("up", message)
            if late:
                content += [bytes(await self._stream.read())][::-1]
                content.reverse()
            self._unread += content
        return self._unread.pop(0)

    async def write(self, *parts: Any) -> None:
        content, late = self._faults.apply("down", b"".join(map(bytes, parts)))
        if late:
            self._late += content
            return
        for each in content + self._late:
            await self._stream.write(each)
        self._late.clear()


@contextmanager
def cutting_relay(
    target: Callable[[], int],
    cuts: Sequence[tuple[str, int]],
    seed: int,
    *,
    bytes_per_second: float = math.inf,
    count: Callable[[], None] = lambda: None,
    count_bytes: Callable[[int], None] = lambda count: None,
) -> Iterator[int]:
    """Relay connections to a port of this host, and disturb one after the other.

    Args:
        target: returns the port; 0 if there is none yet.
        cuts: for each connection, what happens, and after how many bytes of a direction that is drawn: `close`, `stall`
            or `flip` a bit. Later connections are left alone.
        seed: seed of the draws.
        bytes_per_second: speed of each direction.
        count: called for each connection that is relayed.
        count_bytes: called with the number of bytes, before they are passed on.

    Yields:
        The relay's port.
    """
    random, left = Random(seed), list(cuts)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="relay")
    thread.start()
    tasks: set[asyncio.Task[None]] = set()

    async def pump(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, cut: tuple[str, int] | None
    ) -> None:
        passed = 0
        while content := await reader.read(1 << 14):
            await asyncio.sleep(len(content) / bytes_per_second)
            if cut is not None and passed + len(content) > cut[1]:
                if cut[0] == "close":
                    writer.write(content[: cut[1] - passed])
                    return
                if cut[0] == "stall":
                    await asyncio.Event().wait()
                place = max(cut[1] - passed, 0)
                content = content[:place] + bytes([content[place] ^ 16]) + content[place + 1 :]
                cut = None
            passed += len(content)
            count_bytes(len(content))
            writer.write(content)
            await writer.drain()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", target())
        except OSError:
            tasks.discard(task)
            writer.close()
            return
        count()
        cut = left.pop(0) if left else None
        is_up = random.random() < 0.5
        pumps = [
            asyncio.ensure_future(pump(reader, there_writer, cut if is_up else None)),
            asyncio.ensure_future(pump(there_reader, writer, None if is_up else cut)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in pumps:
                each.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            writer.close()
            there_writer.close()
            tasks.discard(task)

    async def stop(server: asyncio.Server) -> None:
        server.close()
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    server = asyncio.run_coroutine_threadsafe(asyncio.start_server(relay, "127.0.0.1", 0), loop).result(10)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        asyncio.run_coroutine_threadsafe(stop(server), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
