"""Events of each job, for users: its log on disk, and live events for watchers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from aggregator.storage.log_writer import LogWriter
from protos.jobs_pb2 import JobEvent, LogLine

BACKLOG_EVENTS = 1024
"""Events that wait for a slow watcher; with more, the oldest are dropped, never the job's end."""


class Journal:
    """The logs of jobs in one folder, with a JSON line per event, and their watchers.

    Args:
        folder: The folder.
        count_lost: Counts lines of logs that could not be written.
    """

    def __init__(self, folder: Path, count_lost: Callable[[int], None] = lambda lines: None) -> None:
        self._writer = LogWriter(folder, count_lost)
        self._watchers: dict[str, set[asyncio.Queue[JobEvent | None]]] = {}

    def publish(self, event: JobEvent) -> None:
        """Write an event to the job's log, if the disk takes it, and send it to the job's watchers."""
        self._writer.write(event.job.id, event.kind, event.text, event.seconds)
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

    def read(self, job: str) -> list[LogLine]:
        """Return the job's log so far."""
        path = self._writer.path(job)
        if not path.exists():
            return []
        lines = []
        for text in path.read_bytes().splitlines():
            try:
                line = json.loads(text)
                lines.append(LogLine(seconds=line["seconds"], text=line["text"]))
            except (ValueError, TypeError, KeyError, RecursionError):
                continue  # cut off or overwritten by a power loss, which progress events need not survive
        return lines

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
