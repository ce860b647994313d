"""The connected workers' streams: one session each, a control and a data stream."""

from __future__ import annotations

import asyncio

from protos import cluster_pb2 as pb
from services.protocol.envelope import WorkerOrder, wrap
from services.transport.mailbox import Mailbox


class WorkerSession:
    """One worker's connection.

    Attributes:
        number: unique per connection.
        name: of the worker.
        incarnation: of the worker's process.
        mailbox: of orders on their way; closing it ends both streams.
        wake: set when there may be weights to send.
    """

    def __init__(self, number: int, hello: pb.Hello, epoch: int) -> None:
        self.number = number
        self.name = hello.name
        self.incarnation = hello.incarnation
        self.mailbox: Mailbox[pb.WorkerCommand] = Mailbox()
        self.wake = asyncio.Event()
        self._epoch = epoch

    def tell(self, body: WorkerOrder) -> None:
        """Send an order."""
        self.mailbox.put(wrap(pb.WorkerCommand, self._epoch, body))


class WorkerSessions:
    """All sessions, by number."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._last = 0
        self._open: dict[int, WorkerSession] = {}

    def __len__(self) -> int:
        return len(self._open)

    def open(self, hello: pb.Hello, number: int = 0) -> WorkerSession:
        """A new session; 0: of a number that none had before."""
        self._last = number or self._last + 1
        session = self._open[self._last] = WorkerSession(self._last, hello, self._epoch)
        return session

    def get(self, number: int) -> WorkerSession | None:
        """A session, if it is still open."""
        return self._open.get(number)

    def of_incarnation(self, incarnation: str) -> WorkerSession | None:
        """The newest session of a process, if it has one."""
        held = [each for each in self._open.values() if each.incarnation == incarnation]
        return held[-1] if held else None

    def close(self, number: int) -> None:
        """Forget a session."""
        self._open.pop(number, None)

    def wake_all(self) -> None:
        """There may be weights to send."""
        for session in self._open.values():
            session.wake.set()

    def tell_all(self, body: WorkerOrder) -> None:
        """Send an order to all."""
        for session in self._open.values():
            session.tell(body)

    def close_all(self, reason: str) -> None:
        """End all streams."""
        for session in self._open.values():
            session.mailbox.close(reason)
