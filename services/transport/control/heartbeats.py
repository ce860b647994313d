"""Signs of life on a control stream, in both directions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from services.timeouts import Timeouts
from services.transport.links import LinkClosed


class Heartbeats:
    """One end's heartbeats: sends at least two per heartbeat interval, and notices a silent peer.

    Args:
        timeouts: the cluster's timeouts. `beat` is the interval of sending, `deaf` the longest silence.
        beat: sends a heartbeat.
        clock: monotonic time in seconds.
    """

    def __init__(
        self, timeouts: Timeouts, beat: Callable[[], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._timeouts = timeouts
        self._beat = beat
        self._clock = clock
        self._heard_seconds = clock()

    def message_received(self) -> None:
        """Note that the peer has sent a message of any kind."""
        self._heard_seconds = self._clock()

    async def run(self) -> None:
        """Send heartbeats until the peer is silent for too long.

        Raises:
            LinkClosed: the peer is silent.
        """
        before = self._heard_seconds  # the time until this call is a pause, too
        while True:
            await asyncio.sleep(self._timeouts.beat)
            self._beat()
            now = self._clock()
            # A pause of this process is no silence of the peer: its messages of that time are still unread. One reading
            # of the clock serves both intervals, so that a pause at any line is taken off.
            self._heard_seconds += max(0.0, now - before - self._timeouts.beat)
            before = now
            silent = now - self._heard_seconds
            if silent > self._timeouts.deaf:
                raise LinkClosed(f"silent for {silent:.1f} s")
