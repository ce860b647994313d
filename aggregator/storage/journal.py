"""Events of each job, for users: its log on disk, and live events for watchers."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from aggregator.storage.log_lines import TIMING, lines_of_event
from aggregator.storage.log_writer import LogWriter
from protos.jobs_pb2 import JobEvent, LogLine
from services.caps import MB, Cap, Caps
from services.printable import printable
from services.protocol.bounds import LOG_LINE_CHARACTERS, MOST_BATCHED_LINES

PIECE_BYTES = 1 << 16
"""Bytes of a log that are read at once."""
MOST_TAIL_LINES = 10_000
"""Largest number of newest lines of a log that are asked for."""
BACKLOG_EVENTS = 1024
"""Events that wait for a slow watcher; with more, the oldest are dropped, never the job's end."""


class Journal:
    """The logs of jobs in one folder, with a JSON line per event, and their watchers.

    Args:
        folder: the folder.
        count_lost: counts lines that are missing from logs.
        max_log_bytes: the largest size of a log.
        count_cap_reached: called when a log has reached its cap.
    """

    def __init__(
        self,
        folder: Path,
        count_lost: Callable[[int], None] = lambda lines: None,
        max_log_bytes: int = Caps.log_mb * MB,
        count_cap_reached: Callable[[Cap], None] = lambda cap: None,
    ) -> None:
        self._writer = LogWriter(folder, max_log_bytes, count_lost, count_cap_reached)
        self._watchers: dict[str, set[asyncio.Queue[JobEvent | None]]] = {}

    def publish(self, event: JobEvent) -> None:
        """Write an event's lines to the job's log, if the disk takes them, and send it to the job's watchers."""
        event.text = printable(event.text, LOG_LINE_CHARACTERS)
        self._writer.write(event.job.id, lines_of_event(event), event.seconds)
        for watcher in self._watchers.get(event.job.id, ()):
            if watcher.full():
                watcher.get_nowait()
            watcher.put_nowait(event)

    def close(self) -> None:
        """End the event queues of all watchers."""
        for watchers in self._watchers.values():
            for watcher in watchers:
                if watcher.full():
                    watcher.get_nowait()
                watcher.put_nowait(None)

    async def lines(self, job: str, *, timing: bool = True, tail: int = 0) -> AsyncIterator[LogLine]:
        """Yield the job's log up to now. A thread reads the disk, a piece at a time, as fast as the lines are taken.

        Args:
            job: id of the job.
            timing: whether to yield the lines about steps that are no event of their own.
            tail: number of newest lines to yield; 0 for all.
        """
        # Opened at once, since later events may remove lines, and are what subscribers get.
        files = [*self._writer.log_of(job).open()]
        if tail:
            pieces = iter([await asyncio.to_thread(_read_last, files, timing, min(tail, MOST_TAIL_LINES))])
        else:
            pieces = _read_pieces(files, timing)
        while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
            for line in piece:
                yield line

    def size_bytes(self, job: str) -> int:
        """Return the size of a job's log; 0 if it has none. Any thread may call.

        Raises:
            OSError: the disk failed.
        """
        return self._writer.log_of(job).size_bytes

    async def remove(self, job: str) -> None:
        """Remove a job's log, in a thread. Readers that have it open can read it to its end.

        Raises:
            OSError: the disk failed.
        """
        self._writer.forget(job)
        await asyncio.to_thread(self._writer.log_of(job).remove)

    @contextmanager
    def subscription(self, job: str) -> Iterator[asyncio.Queue[JobEvent | None]]:
        """Return a queue that receives the job's events while the block runs, and None when no more will come."""
        events: asyncio.Queue[JobEvent | None] = asyncio.Queue(BACKLOG_EVENTS)
        watchers = self._watchers.setdefault(job, set())
        watchers.add(events)
        try:
            yield events
        finally:
            watchers.discard(events)
            if not watchers:
                self._watchers.pop(job, None)


async def in_batches(lines: AsyncIterator[LogLine]) -> AsyncIterator[LogLine]:
    """Yield lines of a log, many in a message, since a message costs far more than a line."""
    batch: LogLine | None = None
    async for line in lines:
        if batch is None:
            batch = line
            continue
        batch.more_seconds.append(line.seconds)
        batch.more_texts.append(line.text[:LOG_LINE_CHARACTERS])
        if len(batch.more_texts) == MOST_BATCHED_LINES:
            yield batch
            batch = None
    if batch is not None:
        yield batch


def _read_last(files: Sequence[tuple[IO[bytes], int]], timing: bool, count: int) -> list[LogLine]:
    """Return the last lines of a log's open files, read from the end up to as many lines; then close them."""
    last: deque[LogLine] = deque()
    with ExitStack() as stack:
        for file, _ in files:
            stack.enter_context(file)
        for file, size in reversed(files):
            for piece in _read_backwards(file, size, timing):
                last.extendleft(reversed(piece))
                if len(last) >= count:
                    return list(last)[-count:]
    return list(last)


def _read_backwards(file: IO[bytes], size: int, timing: bool) -> Iterator[list[LogLine]]:
    """Yield what `_read_file` yields, the last lines first; those of a piece are in the file's order."""
    rest, is_cut = b"", False
    while size > 0:
        start = max(0, size - PIECE_BYTES)
        file.seek(start)
        rest, *lines = (file.read(size - start) + rest).split(b"\n")
        size = start
        if is_cut and lines:
            del lines[-1]
            is_cut = False
        if len(rest) > PIECE_BYTES:
            rest, is_cut = b"", True
        yield _parse(lines, timing)
    if not is_cut:
        yield _parse([rest], timing)


def _read_pieces(files: Sequence[tuple[IO[bytes], int]], timing: bool) -> Iterator[list[LogLine]]:
    """Yield the lines of a log's open files, each up to its size, some at a time; then close them."""
    with ExitStack() as stack:
        for file, _ in files:
            stack.enter_context(file)
        for file, size in files:
            yield from _read_file(file, size, timing)


def _read_file(file: IO[bytes], size: int, timing: bool) -> Iterator[list[LogLine]]:
    """Yield the lines of the first `size` bytes of a file, some at a time; a line of more than a piece is left out."""
    rest, is_cut = b"", False
    while size > 0 and (data := file.read(min(PIECE_BYTES, size))):
        size -= len(data)
        *lines, rest = (rest + data).split(b"\n")
        if is_cut and lines:
            del lines[0]
            is_cut = False
        if len(rest) > PIECE_BYTES:
            rest, is_cut = b"", True
        yield _parse(lines, timing)
    if not is_cut:
        yield _parse([rest], timing)


def _parse(texts: list[bytes], timing: bool) -> list[LogLine]:
    lines = []
    for text in texts:
        if len(text) > PIECE_BYTES:
            continue
        try:
            line = json.loads(text)
            if not timing and line.get("kind") == TIMING:
                continue
            lines.append(LogLine(seconds=line["seconds"], text=line["text"]))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            continue  # cut off or overwritten by a power loss, which progress events need not survive
    return lines
