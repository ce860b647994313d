"""Keeps an aggregator the one that leads: it beats for its standbys, and stops when it can't tell that it still leads.

The queue's file is read and written on a thread of its own, so that storage that hangs stops no step before it must.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from aggregator.core.succession import Deposed, Standbys
from aggregator.storage.job_queue import JobQueue
from services.errors import TiermeshError
from services.timeouts import Timeouts

log = logging.getLogger("tiermesh.aggregator")


class Leadership:
    """Of one epoch.

    Args:
        queue: whose epoch has been raised.
        timeouts: how often to beat (`tick`), after how long without to stop (`lapse`), and how long a leader may have
            been away before it looks first (`takeover`).

    Attributes:
        standbys: who is known to stand by.
    """

    def __init__(self, queue: JobQueue, timeouts: Timeouts) -> None:
        self._queue = queue
        self._timeouts = timeouts
        self._thread = ThreadPoolExecutor(1, "lead")
        self._led_seconds = time.monotonic()  # when the newest renewal that succeeded began
        self._forgotten: list[str] = []
        self._why = "the storage does not answer"  # the newest renewal failed
        self.standbys = Standbys(timeouts.comeback)

    def close(self) -> None:
        """Let the standbys take over at once, if this one still leads."""
        self._thread.shutdown()
        try:
            self._queue.resign()
        except TiermeshError as error:
            log.debug("not resigned: %s", error)

    async def run(self) -> None:
        """Beat until cancelled.

        Raises:
            Deposed: another aggregator leads, or soon may: there are standbys, and none has seen a beat for long.
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
                self._why = str(error)
                if time.monotonic() - self._led_seconds > self._timeouts.lapse:
                    raise self._lapsed() from None

    async def _renew(self) -> None:
        began = time.monotonic()
        loop = asyncio.get_running_loop()
        renewal = loop.run_in_executor(self._thread, self._beat, self._forgotten)
        left_seconds: float | None = None
        if self.standbys:  # one that was away itself until now has the time for one attempt
            left_seconds = max(self._led_seconds + self._timeouts.lapse - began, self._timeouts.lock)
        try:
            looks = await asyncio.wait_for(asyncio.shield(renewal), left_seconds)
        except asyncio.TimeoutError:
            looks = await self._awaken(renewal, time.monotonic() - began - (left_seconds or 0.0))
        self._renewed(looks, began)

    async def _awaken(
        self, renewal: asyncio.Future[Mapping[str, int]], late_seconds: float
    ) -> Mapping[str, int]:
        """What a renewal says that was late; if this process was away, that is no fault of the storage's yet."""
        if late_seconds < self._timeouts.tick:
            raise self._lapsed()
        try:
            return await asyncio.wait_for(asyncio.shield(renewal), self._timeouts.lock)
        except asyncio.TimeoutError:
            raise self._lapsed() from None

    def hold(self, now_seconds: float) -> None:
        """To be called before anything is decided: whoever was away for long looks first whether it still leads.

        Raises:
            Deposed: it does not.
            TiermeshError: the queue can't be read.
        """
        if now_seconds - self._led_seconds > self._timeouts.takeover:
            self._renewed(self._beat(self._forgotten), now_seconds)

    def _beat(self, forgotten: list[str]) -> Mapping[str, int]:
        """How often each standby has looked; with none, nothing is written."""
        looks = self._queue.standbys()
        if looks:
            self._queue.beat(forgotten)
        return looks

    def _renewed(self, looks: Mapping[str, int], began_seconds: float) -> None:
        known = set(self.standbys.silent_seconds(began_seconds))
        self._forgotten = self.standbys.update(looks, began_seconds)
        for name in sorted(set(looks) - known):
            log.info("aggregator %s stands by", name)
        for name in sorted(known - set(looks)):
            log.warning("aggregator %s stands by no longer", name)
        self._led_seconds = began_seconds

    def _lapsed(self) -> Deposed:
        silent = f"not written to for {time.monotonic() - self._led_seconds:.1f} s ({self._why})"
        deposed = Deposed(
            f"queue {self._queue.path}: {silent}, and a standby may take over: this one leads no longer"
        )
        log.warning("%s", deposed)  # at once: what is left to be done may wait for the storage too
        return deposed
