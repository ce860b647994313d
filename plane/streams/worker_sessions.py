"""The connected workers: one session each, with a control stream and a data stream."""

from __future__ import annotations

import asyncio

from protos import cluster_pb2 as pb
from services.protocol.envelope import CheckOrder, WorkerOrder, wrap
from services.protocol.hello import PROTOCOL_RANGE, protocol_range
from services.transport.mailbox import Mailbox


class WorkerSession:
    """One worker's connection.

    Attributes:
        number: the session's number, unique per connection.
        name: the worker's name.
        incarnation: the id of the worker's process.
        protocol: the version of the protocol that both ends speak.
        pipeline_address: HOST:PORT at which other workers reach it; empty if they can't.
        mailbox: orders to send; closing it ends both streams.
        wake: set when there may be weights to send.
    """

    def __init__(self, number: int, hello: pb.Hello, epoch: int, pipeline_address: str) -> None:
        self.number = number
        self.name = hello.name
        self.incarnation = hello.incarnation
        self.protocol = PROTOCOL_RANGE.agree(protocol_range(hello)) or 0
        self.pipeline_address = pipeline_address
        self.mailbox: Mailbox[pb.WorkerCommand] = Mailbox()
        self.wake = asyncio.Event()
        self._epoch = epoch

    def send_order(self, body: WorkerOrder | CheckOrder) -> None:
        """Send an order."""
        self.mailbox.put(wrap(pb.WorkerCommand, self._epoch, body))


class WorkerSessions:
    """The sessions of all connected workers, by number.

    Args:
        epoch: the aggregator's epoch, which every order names.
    """

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._last = 0
        self._open: dict[int, WorkerSession] = {}

    def __len__(self) -> int:
        return len(self._open)

    def open(
        self, hello: pb.Hello, number: int | None = None, *, pipeline_address: str = ""
    ) -> WorkerSession:
        """Open a session with this number; None for a number that no session had before."""
        self._last = self._last + 1 if number is None else number
        session = self._open[self._last] = WorkerSession(self._last, hello, self._epoch, pipeline_address)
        return session

    def all(self) -> list[WorkerSession]:
        """Return all sessions, by worker name."""
        return sorted(self._open.values(), key=lambda session: session.name)

    def get(self, number: int) -> WorkerSession | None:
        """Return a session, or None if it is closed."""
        return self._open.get(number)

    def of_incarnation(self, incarnation: str) -> WorkerSession | None:
        """Return the newest session of a process, or None if it has none."""
        found = [each for each in self._open.values() if each.incarnation == incarnation]
        return found[-1] if found else None

    def close(self, number: int) -> None:
        """Forget a session."""
        self._open.pop(number, None)

    def wake_all(self) -> None:
        """Have all data streams look for weights to send."""
        for session in self._open.values():
            session.wake.set()

    def send_order_to_all(self, body: WorkerOrder) -> None:
        """Send an order to every worker."""
        for session in self._open.values():
            session.send_order(body)

    def close_all(self, reason: str) -> None:
        """End the streams of all sessions."""
        for session in self._open.values():
            session.mailbox.close(reason)
