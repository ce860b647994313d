"""Timeouts of every wait on another process, all derived from one setting: the heartbeat.

Each timeout is longer than the one before it. So a process that waits for another gives up only after that one has
given up on what it waits for itself. The table in docs/operate/limits.md lists them all; a test compares them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from services.errors import Refused

SAVE_SECONDS = 900.0
"""Longest time that a stopping daemon writes the last checkpoint. It depends on disk and model, on no heartbeat."""

STANDARD_HEARTBEAT_SECONDS = 5.0
"""Heartbeat where none is configured or known yet. A worker learns its cluster's from the aggregator's Welcome."""

TIMEOUTS_IN_HEARTBEATS = {
    "tick": 0.25,
    "beat": 0.5,
    "retry": 0.75,
    "lock": 1.0,
    "grace": 1.25,
    "hello": 2.0,
    "silent": 2.5,
    "lapse": 3.0,
    "ping": 4.0,
    "takeover": 5.0,
    "deaf": 6.0,
    "stop": 7.0,
    "broken": 8.0,
    "kill": 9.0,
    "comeback": 24.0,
    "follow": 36.0,
    "stall": 120.0,
    "unfit": 360.0,
}
"""Timeouts as multiples of the heartbeat, in ascending order."""


@dataclass(frozen=True)
class Timeouts:
    """Timeouts in seconds, in ascending order.

    The field names are values of the aggregator's flag `--timeout NAME=SECONDS`.

    Attributes:
        tick: interval at which the aggregator checks when it last heard each peer.
        beat: interval between two heartbeats, in both directions.
        retry: longest pause between two attempts to connect.
        lock: the aggregator's wait for another process that is writing to the job queue.
        grace: a stopping daemon's wait for its open calls to finish.
        hello: wait for the first message of a stream, and for the answer to it.
        silent: the aggregator's wait for a sign of life of a worker, before it declares the worker dead.
        lapse: longest time that a leader keeps leading without a heartbeat recorded for its standbys.
        ping: time without traffic before a connection is pinged; also the wait for the answer.
        takeover: a standby's wait for a heartbeat of the leader, before the standby takes over.
        deaf: wait for a sign of life of an aggregator, optimizer or shard, before its peer reconnects to it.
        stop: a daemon's limit for its own graceful stop.
        broken: time without traffic or answer to a ping until a connection is dead; twice `ping`.
        kill: the launcher's wait for a daemon that it has asked to stop, before it sends SIGKILL.
        comeback: wait for workers of a running job, after a restart or when only one can't run it.
        follow: wait of a command that follows a job, for an aggregator that is away.
        stall: least time after which a late lease goes to an idle worker; a shard's limit for each of its tasks.
        unfit: the aggregator's wait for a usable mesh, while no worker can open the job's mesh.
    """

    tick: float
    beat: float
    retry: float
    lock: float
    grace: float
    hello: float
    silent: float
    lapse: float
    ping: float
    takeover: float
    deaf: float
    stop: float
    broken: float
    kill: float
    comeback: float
    follow: float
    stall: float
    unfit: float

    @classmethod
    def from_heartbeat(
        cls, heartbeat_seconds: float, overrides: Mapping[str, float] | None = None
    ) -> Timeouts:
        """Return the timeouts of a heartbeat.

        Args:
            heartbeat_seconds: the heartbeat.
            overrides: timeouts in seconds, by name, that replace the derived ones.

        Raises:
            Refused: the heartbeat is not positive, a name is unknown, or the timeouts are not in ascending order.
        """
        if not (math.isfinite(heartbeat_seconds) and heartbeat_seconds > 0):
            raise Refused(f"heartbeat of {heartbeat_seconds:g} s: expected more than 0; 5 is usual")
        seconds_of = {name: count * heartbeat_seconds for name, count in TIMEOUTS_IN_HEARTBEATS.items()}
        for name in overrides or ():
            if name not in seconds_of:
                raise Refused(f"timeout {name}: no such timeout; expected one of {', '.join(seconds_of)}")
        timeouts = cls(**{**seconds_of, **(overrides or {})})
        timeouts.check()
        return timeouts

    def longest_exceeded(self, seconds: float) -> str | None:
        """Return the name of the longest timeout, from `silent` on, that a wait has exceeded; None if it has none."""
        seconds_of = asdict(self)
        names = list(seconds_of)[list(seconds_of).index("silent") :]
        return next((name for name in reversed(names) if seconds_of[name] < seconds), None)

    def check(self) -> None:
        """Check that each timeout is a number and longer than the one before it.

        Raises:
            Refused: one is not.
        """
        before, before_seconds = "0", 0.0
        for name, seconds in asdict(self).items():
            if not before_seconds < seconds < math.inf:
                raise Refused(
                    f"timeout {name}: {seconds:g} s, expected more than {before} ({before_seconds:g} s), the next "
                    "shorter one; raise it, lower the other, or change the heartbeat, which scales all"
                )
            before, before_seconds = name, seconds


STANDARD_TIMEOUTS = Timeouts.from_heartbeat(STANDARD_HEARTBEAT_SECONDS)
"""Timeouts of waits that happen before a cluster's heartbeat is known, or outside any cluster."""
