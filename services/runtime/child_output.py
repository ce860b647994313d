"""What a child process prints, as lines for a job's log, within limits that the child can't pass.

A thread reads the pipe, at most `BYTES_A_SECOND`: a child that floods waits until its own output is read.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Sequence

from services.printable import counted, printable
from services.protocol.bounds import (
    MOST_PRINTED_LINES,
    PRINTED_BURST_LINES,
    PRINTED_LINE_CHARACTERS,
    PRINTED_LINES_A_SECOND,
)
from services.tasks import start_thread
from services.token_bucket import TokenBucket

TakeLines = Callable[[Sequence[str]], object]
"""Takes printable lines, at most `MOST_PRINTED_LINES`; called on the reader's thread."""

LINES_IN_ALL = 20_000
"""Maximum number of lines of a process that are passed on."""
BYTES_A_SECOND = 4 << 20
"""Bytes that are read a second, also of lines that are left out."""

_LINE_BYTES = 4096  # of a line's beginning, the rest of it is dropped
_READ_BYTES = 1 << 16
_DRAIN_SECONDS = 1.0


class OutputReader:
    """Reads lines from a pipe until it ends. Lines above a limit are left out and counted.

    Args:
        pipe: the pipe's read end, which the reader closes.
        take_lines: takes the lines.
        clock: monotonic clock in seconds.
    """

    def __init__(self, pipe: int, take_lines: TakeLines, clock: Callable[[], float] = time.monotonic) -> None:
        self._pipe = pipe
        self._take_lines = take_lines
        self._clock = clock
        self._lines = TokenBucket(PRINTED_LINES_A_SECOND, PRINTED_BURST_LINES)
        self._bytes = TokenBucket(BYTES_A_SECOND, BYTES_A_SECOND)
        self._passed_on = self._left_out = 0
        self._rest = b""  # a line's beginning
        self._stopped, self._stop = os.pipe()
        self._thread = start_thread(self._read, "child-output")

    def finish(self) -> None:
        """Pass on what is in the pipe, and end; processes that still have its other end are not waited for."""
        self._thread.join(_DRAIN_SECONDS)
        os.close(self._stop)
        self._thread.join()

    def _read(self) -> None:
        poll = select.poll()
        poll.register(self._stopped, select.POLLIN)
        try:
            while not poll.poll(self._pause_milliseconds()):
                poll.register(self._pipe, select.POLLIN)
                ready = dict(poll.poll())
                poll.unregister(self._pipe)
                data = b"" if self._stopped in ready else os.read(self._pipe, _READ_BYTES)
                if not data:
                    break
                self._bytes.take(len(data), self._clock())
                self._take(data)
            self._take(b"\n")
            if self._left_out:
                self._take_lines([self._count_left_out()])
        finally:
            os.close(self._pipe)
            os.close(self._stopped)

    def _pause_milliseconds(self) -> int:
        return round(1000 * self._bytes.seconds_until(_READ_BYTES, self._clock()))

    def _take(self, data: bytes) -> None:
        """Pass on the lines that are complete."""
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[:_LINE_BYTES]
        taken: list[str] = []
        for line in lines:
            shown = line.rstrip().rpartition(b"\r")[2]  # as a terminal shows a progress bar
            if not shown:
                continue
            now = self._clock()
            if self._passed_on >= LINES_IN_ALL or self._lines.seconds_until(1, now) > 0:
                self._left_out += 1
                continue
            self._lines.take(1, now)
            self._passed_on += 1
            if self._left_out:
                taken.append(self._count_left_out())
            text = shown[:_LINE_BYTES].decode(errors="replace").expandtabs(4)
            taken.append(printable(text, PRINTED_LINE_CHARACTERS))
        for first in range(0, len(taken), MOST_PRINTED_LINES):
            self._take_lines(taken[first : first + MOST_PRINTED_LINES])

    def _count_left_out(self) -> str:
        count, self._left_out = self._left_out, 0
        return f"({counted(count, 'line')} left out)"
