"""What is measured of a peer in passing: the round trip by heartbeats and their answers, the traffic by its counters.

The aggregator's heartbeats say when they were sent. A peer answers within a heartbeat of its own, and says how long it
has held the answer, so no message is sent for the sake of measuring, and no clocks are compared.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from protos.cluster_pb2 import Heartbeat, Hello
from protos.jobs_pb2 import Connection
from services.protocol.bounds import MAX_HOST_BYTES

SAMPLES = 16
"""Number of a peer's newest heartbeats that are measured by."""
LONGEST_ROUND_TRIP_SECONDS = 3600.0
"""Longest round trip that an answer is believed."""


class HeartbeatAnswers:
    """Answers an aggregator's heartbeats within those of this process.

    Args:
        clock: monotonic time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sent_seconds = 0.0
        self._came_seconds = 0.0

    def heard(self, heartbeat: Heartbeat) -> None:
        """Take a heartbeat of the aggregator."""
        self._sent_seconds, self._came_seconds = heartbeat.sent_seconds, self._clock()

    def put_into(self, heartbeat: Heartbeat) -> None:
        """Add the answer to the newest heartbeat to one of this process, unless it was answered before."""
        if self._sent_seconds:
            heartbeat.answered_seconds = self._sent_seconds
            heartbeat.held_seconds = self._clock() - self._came_seconds
            self._sent_seconds = 0.0


class _Counted(NamedTuple):
    """Counters of a peer, and when they came."""

    seconds: float
    sent_bytes: int
    received_bytes: int


class MeasuredPeer:
    """A peer whose heartbeats are measured, on one connection.

    Args:
        host: address that it is reached at, or comes from; empty if that is unknown.
        hello: its Hello.
        clock: the clock that the aggregator's heartbeats are stamped by, in seconds.
    """

    def __init__(self, host: str, hello: Hello, clock: Callable[[], float] = time.monotonic) -> None:
        self.incarnation = hello.incarnation
        self._host = host if len(host.encode()) <= MAX_HOST_BYTES else ""  # it is in the configuration then
        self._version = hello.version
        self._clock = clock
        self._round_trips: deque[float] = deque(maxlen=SAMPLES)
        self._counted: deque[_Counted] = deque(maxlen=SAMPLES)

    def heard(self, heartbeat: Heartbeat) -> None:
        """Take a heartbeat of the peer."""
        now = self._clock()
        if heartbeat.answered_seconds:
            round_trip = now - heartbeat.answered_seconds - heartbeat.held_seconds
            if 0.0 <= round_trip <= LONGEST_ROUND_TRIP_SECONDS:
                self._round_trips.append(round_trip)
        if heartbeat.sent_bytes or heartbeat.received_bytes:
            self._counted.append(_Counted(now, heartbeat.sent_bytes, heartbeat.received_bytes))

    def connection(self) -> Connection:
        """Return what is known of the connection now."""
        found = Connection(host=self._host, version=self._version)
        if self._round_trips:
            found.round_trip_seconds = min(self._round_trips)
        if len(self._counted) > 1:
            first, last = self._counted[0], self._counted[-1]
            seconds = max(last.seconds - first.seconds, 1e-6)
            found.sent_bytes_per_second = max(0, last.sent_bytes - first.sent_bytes) / seconds
            found.received_bytes_per_second = max(0, last.received_bytes - first.received_bytes) / seconds
        return found
