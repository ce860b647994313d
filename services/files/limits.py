"""Limits of transfers of files, the same in both directions.

No place that others need is held while a peer is waited for. A transfer holds a place among its caller's, which is
refused at once if there is none. The disk and the hashing are shared by all, piece by piece.

A peer's pace is limited by a bucket of patience. It holds `window_seconds`, every wait for the peer drains it, and
every byte fills it at `LEAST_BYTES_PER_SECOND`. So the waits for a file of n bytes take at most the window and
n / `LEAST_BYTES_PER_SECOND` in all, and a peer that moves nothing is given up after the window.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from services.errors import Failed, TiermeshError
from services.printable import printable
from services.protocol.file_refs import MAX_PIECE_BYTES
from services.threads import finish_in_thread
from services.timeouts import STANDARD_TIMEOUTS, Timeouts
from services.transport.ports.log_limit import LogLimit

log = logging.getLogger("tiermesh.files")

LEAST_BYTES_PER_SECOND = 64 << 10
"""Least rate of a transfer, averaged over six heartbeats of waiting for its peer."""
LEAST_WINDOW_SECONDS = MAX_PIECE_BYTES / LEAST_BYTES_PER_SECOND
"""Shortest time for the average: a whole piece may arrive at the least rate."""
MAX_TRANSFERS = 64
"""Maximum number of transfers that are under way. Each has a piece in memory, or two."""
MAX_TRANSFERS_OF_CALLER = 16
"""Maximum number of those of one caller."""
MAX_WORK = 4
"""Maximum number of threads that read, write and hash files for peers at a time."""

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Transfer:
    """One transfer that is under way.

    Args:
        name: method and caller, for errors.
        window_seconds: time without a byte after which it ends.

    Attributes:
        closed: set when it has ended, and nothing of it is used any more.
    """

    def __init__(self, name: str, window_seconds: float) -> None:
        self._name = name
        self._window_seconds = self._patience_seconds = window_seconds
        self._task, self._now = asyncio.current_task(), asyncio.get_running_loop().time
        self._is_waiting = False
        self._end: TiermeshError | None = None
        self._moved_bytes, self._waited_seconds = 0, 0.0
        self.closed = asyncio.Event()

    def end(self, error: TiermeshError) -> None:
        """Have the transfer end with an error: at once if it waits for its peer, else after the piece at hand."""
        self._end = error
        if self._is_waiting and self._task is not None:
            self._task.cancel()

    async def wait(self, peer: Awaitable[Result]) -> Result:
        """Wait for the peer to send a piece, or to take one.

        Raises:
            Failed: the peer is too slow.
            TiermeshError: the transfer was ended meanwhile.
        """
        began, self._is_waiting = self._now(), True
        try:
            return await asyncio.wait_for(peer, self._patience_seconds)
        except asyncio.CancelledError:
            if self._end is None:
                raise
            raise self._end from None
        except asyncio.TimeoutError:
            rate = self._moved_bytes / (self._waited_seconds + self._now() - began)
            raise TooSlow(
                f"{self._name}: {rate / 1024:.1f} KiB/s, expected at least {LEAST_BYTES_PER_SECOND >> 10} over "
                f"{self._window_seconds:g} s; continue where it stopped"
            ) from None
        finally:
            self._is_waiting = False
            waited_seconds = self._now() - began
            self._waited_seconds += waited_seconds
            self._patience_seconds -= waited_seconds

    def moved(self, size_bytes: int) -> None:
        """Note that a piece has moved on.

        Raises:
            TiermeshError: the transfer was ended meanwhile.
        """
        self._moved_bytes += size_bytes
        earned_seconds = size_bytes / LEAST_BYTES_PER_SECOND
        self._patience_seconds = min(self._window_seconds, self._patience_seconds + earned_seconds)
        if self._end is not None:
            raise self._end


class TooSlow(Failed):
    """A transfer whose peer is slower than the least rate."""


class TransferLimits:
    """Limits of all transfers of one server.

    Args:
        timeouts: timeouts of the cluster.
        of_caller: maximum number of transfers of one caller.
        window_seconds: time over which a transfer's rate is averaged; None for that of the timeouts.
    """

    def __init__(
        self,
        timeouts: Timeouts = STANDARD_TIMEOUTS,
        of_caller: int = MAX_TRANSFERS_OF_CALLER,
        window_seconds: float | None = None,
    ) -> None:
        self._window_seconds = window_seconds or max(timeouts.deaf, LEAST_WINDOW_SECONDS)
        self._of_caller = of_caller
        self._open: dict[str, list[Transfer]] = {}  # by caller, the newest last
        self._work = asyncio.Semaphore(MAX_WORK)
        self._log_limit = LogLimit()

    @contextmanager
    def begin(self, method: str, caller: str) -> Iterator[Transfer]:
        """Count a transfer while the block runs.

        Args:
            method: what the caller calls.
            caller: name or address of the caller.

        Raises:
            Failed: the caller has too many transfers, or there are too many and nobody has more than this caller.
        """
        name = f"{method} of {printable(caller, 80)}"
        try:
            self._admit(name, caller)
            transfer = Transfer(name, self._window_seconds)
            self._open.setdefault(caller, []).append(transfer)
            try:
                yield transfer
            finally:
                self._remove(caller, transfer)
                transfer.closed.set()
        except (_TooMany, TooSlow) as failed:
            self.log(caller, str(failed))
            raise

    def _admit(self, name: str, caller: str) -> None:
        own, total = len(self._open.get(caller, ())), sum(map(len, self._open.values()))
        if own >= self._of_caller:
            raise _TooMany(
                f"{name}: {own} transfers of this caller are under way, expected at most {self._of_caller}; try again "
                "when one has ended"
            )
        if total < MAX_TRANSFERS:
            return
        other = max(self._open, key=lambda each: len(self._open[each]))
        if len(self._open[other]) <= own + 1:
            raise _TooMany(
                f"{name}: {total} transfers are under way, expected at most {MAX_TRANSFERS}; try again in some seconds"
            )
        last = self._open[other][-1]
        self._remove(other, last)
        last.end(_TooMany(f"{name} takes the place of a transfer of {printable(other, 80)}; continue later"))

    def _remove(self, caller: str, transfer: Transfer) -> None:
        """Forget a transfer, unless it is forgotten already."""
        left = [each for each in self._open.get(caller, ()) if each is not transfer]
        if left:
            self._open[caller] = left
        else:
            self._open.pop(caller, None)

    async def work(
        self, call: Callable[Arguments, Result], *arguments: Arguments.args, **named: Arguments.kwargs
    ) -> Result:
        """Run a call that works on a file in a thread, once there is a place; never one that waits for a peer."""
        async with self._work:
            return await finish_in_thread(call, *arguments, **named)

    def log(self, kind: str, text: str) -> None:
        """Log a line, unless one of this kind was logged shortly before."""
        left_out = self._log_limit.suffix(kind)
        if left_out is not None:
            log.warning("%s%s", text, left_out)


class _TooMany(Failed):
    """A transfer for which there is no place now."""
