"""`tiermesh local --supervise`: restart daemons that die, as systemd or Kubernetes would."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from services.errors import ExitCode, Failed
from services.runtime.launcher import DaemonProcess

FIRST_WAIT_SECONDS = 0.5
LONGEST_WAIT_SECONDS = 10.0
STEADY_SECONDS = 60.0
"""Lifetime after which a daemon counts as healthy, and its next wait is the shortest again."""


class RestartBackoff:
    """Exponential backoff between restarts of one daemon."""

    def __init__(self) -> None:
        self._next_seconds = FIRST_WAIT_SECONDS

    def wait_seconds(self, lived_seconds: float) -> float:
        """Return the wait before the next start: twice the last one, within the limits above.

        Args:
            lived_seconds: lifetime of the process that ended.
        """
        if lived_seconds >= STEADY_SECONDS:
            self._next_seconds = FIRST_WAIT_SECONDS
        wait = self._next_seconds
        self._next_seconds = min(2 * wait, LONGEST_WAIT_SECONDS)
        return wait


async def supervise(daemon: DaemonProcess, say: Callable[[str], None]) -> int:
    """Restart a daemon on its port each time that it ends, until it refuses its settings.

    Args:
        daemon: daemon that was started and is ready.
        say: called with one line per restart.
    """
    backoff = RestartBackoff()
    while await daemon.wait_ended() != ExitCode.REFUSED:
        wait_seconds = backoff.wait_seconds(daemon.age_seconds)
        say(f"{daemon.describe_end()}; restart in {wait_seconds:g} s")
        await asyncio.sleep(wait_seconds)
        daemon.start()
        try:
            await daemon.wait_ready()
        except Failed:
            await daemon.stop()  # it ended, or took too long to get ready
    return ExitCode.REFUSED
