"""Leadership of one epoch: the aggregator beats for its standbys, and stops when it can't be sure that it leads.

The queue's file is read and written on a thread of its own, so that slow storage does not delay training steps.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from aggregator.core.succession import Deposed, Standbys
from aggregator.storage.job_queue import JobQueue
from services.errors import TiermeshError
from services.tasks import call_in, start_awaited
from services.timeouts import Timeouts

log = logging.getLogger("tiermesh.aggregator")


class Leadership:
    """Renews an aggregator's leadership.

    Args:
        queue: the queue, whose epoch was raised for this aggregator.
        timeouts: the cluster's timeouts. The leader beats every `tick`, and stops after `lapse` without one. A process
            that was stopped for `takeover` first checks that it still leads.
        now_seconds: returns the time, on a monotonic clock.

    Attributes:
        standbys: the known standbys.
    """

    def __init__(
        self, queue: JobQueue, timeouts: Timeouts, now_seconds: Callable[[], float] = time.monotonic
    ) -> None:
        self._now_seconds = now_seconds
        self._queue = queue
        self._timeouts = timeouts
        self._thread = ThreadPoolExecutor(1, "lead")
        self._renewed_seconds = self._now_seconds()  # when the last successful renewal began
        self._forgotten: list[str] = []
        self._failure = "the storage does not answer"  # why the last renewal failed
        self.standbys = Standbys(timeouts.comeback)

    def close(self) -> None:
        """Stop, and if this aggregator still leads, let a standby take over at once."""
        self._thread.shutdown()
        try:
            self._queue.resign()
        except TiermeshError as error:
            log.debug("not resigned: %s", error)

    async def run(self) -> None:
        """Beat until cancelled.

        Raises:
            Deposed: another aggregator leads, or may soon, since no standby has seen a beat for long.
            TiermeshError: the queue can't be read, and there are no standbys.
        """
        while True:
            await asyncio.sleep(self._timeouts.tick)
            try:
                await self._renew()
            except Deposed:
                raise
            except TiermeshError as error:
                if not self.standbys:
                    raise
                self._failure = str(error)
                if self._now_seconds() - self._renewed_seconds > self._timeouts.lapse:
                    raise self._lapsed() from None

    async def _renew(self) -> None:
        began = self._now_seconds()
        renewal = start_awaited(call_in(self._thread, self._beat, self._forgotten))
        left_seconds: float | None = None
        if self.standbys:  # after a pause of this process, there is still time for one attempt
            left_seconds = max(self._renewed_seconds + self._timeouts.lapse - began, self._timeouts.lock)
        try:
            looks = await asyncio.wait_for(asyncio.shield(renewal), left_seconds)
        except asyncio.TimeoutError:
            looks = await self._await_late(renewal, self._now_seconds() - began - (left_seconds or 0.0))
        self._renewed(looks, began)

    async def _await_late(
        self, renewal: asyncio.Future[Mapping[str, int]], late_seconds: float
    ) -> Mapping[str, int]:
        """Return the result of a late renewal, and wait longer for it if this process was stopped meanwhile.

        Raises:
            Deposed: the storage is too slow, so the leadership has lapsed.
        """
        if late_seconds < self._timeouts.tick:
            raise self._lapsed()
        try:
            return await asyncio.wait_for(asyncio.shield(renewal), self._timeouts.lock)
        except asyncio.TimeoutError:
            raise self._lapsed() from None

    def check_leading(self, now_seconds: float) -> None:
        """Check, before any decision, that a process that was stopped for long still leads.

        Raises:
            Deposed: another aggregator leads.
            TiermeshError: the queue can't be read.
        """
        if now_seconds - self._renewed_seconds > self._timeouts.takeover:
            self._renewed(self._beat(self._forgotten), now_seconds)

    def _beat(self, forgotten: list[str]) -> Mapping[str, int]:
        """Beat if there are standbys, and return how often each has looked."""
        looks = self._queue.standbys()
        if looks:
            self._queue.beat(forgotten)
        return looks

    def _renewed(self, looks: Mapping[str, int], began_seconds: float) -> None:
        known = set(self.standbys.silent_seconds(began_seconds))
        self._forgotten = self.standbys.update(looks, began_seconds)
        for name in sorted(set(looks) - known):
            log.info("standby %s: registered in the queue", name)
        for name in sorted(known - set(looks)):
            log.warning("standby %s: removed from the queue", name)
        self._renewed_seconds = began_seconds

    def _lapsed(self) -> Deposed:
        silence = f"not written to for {self._now_seconds() - self._renewed_seconds:.1f} s ({self._failure})"
        deposed = Deposed(
            f"queue {self._queue.path}: {silence}, and a standby may take over: this aggregator no longer leads"
        )
        # Logged at once, since the rest of the shutdown may wait for the storage too.
        log.warning("%s", deposed)
        return deposed
