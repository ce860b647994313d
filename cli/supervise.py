"""`tiermesh local --supervise`: daemons that die are started again, as systemd or Kubernetes would."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from services.errors import Failed
from services.runtime.launcher import DaemonProcess

REFUSED = 2
"""Exit code of a daemon that was refused: it would be again."""

FIRST_WAIT_SECONDS = 0.5
LONGEST_WAIT_SECONDS = 10.0
STEADY_SECONDS = 60.0
"""A daemon that lived so long is well: the next wait is the first again."""


class RestartBackoff:
    """How long to wait before a start, given how long the process before lived."""

    def __init__(self) -> None:
        self._next_seconds = FIRST_WAIT_SECONDS

    def wait_seconds(self, lived_seconds: float) -> float:
        """Twice the wait before it, within the limits above."""
        if lived_seconds >= STEADY_SECONDS:
            self._next_seconds = FIRST_WAIT_SECONDS
        wait = self._next_seconds
        self._next_seconds = min(2 * wait, LONGEST_WAIT_SECONDS)
        return wait


async def supervise(daemon: DaemonProcess, say: Callable[[str], None]) -> int:
    """Start a daemon again, on its port, each time that it ends; returns REFUSED once it ends so.

    Args:
        daemon: started, and ready.
        say: takes one line per restart.
    """
    backoff = RestartBackoff()
    while await daemon.wait_ended() != REFUSED:
        wait_seconds = backoff.wait_seconds(daemon.age_seconds)
        say(f"{daemon.describe_end()}; started again in {wait_seconds:g} s")
        await asyncio.sleep(wait_seconds)
        daemon.start()
        try:
            await daemon.wait_ready()
        except Failed:
            await daemon.stop()  # it has ended, or takes too long to serve
    return REFUSED
