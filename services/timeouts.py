"""One ladder of timeouts: every wait on another process, derived from one setting, the heartbeat.

Each rung is strictly longer than the one below, so that whoever waits for somebody outlasts what that one waits for
itself. docs/operations.md has them in one table, which a test holds against this file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from services.errors import Refused

STANDARD_HEARTBEAT_SECONDS = 5.0
"""Where no other is given or known: a worker learns its cluster's from the aggregator's Welcome."""

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
"""Each rung in heartbeats, from the lowest to the highest."""


@dataclass(frozen=True)
class Timeouts:
    """The rungs, in seconds, from the lowest to the highest.

    Attributes:
        tick: between two looks of the aggregator at who was heard.
        beat: between two signs of life, in both directions.
        retry: at most between two attempts to connect.
        lock: for another process that writes to the queue.
        grace: for calls that are open when a daemon stops.
        hello: for the first message of a stream, and for its answer.
        silent: a worker that was not heard for this long is dead.
        lapse: a leader that has shown its standbys no beat for this long leads no longer.
        ping: a connection without traffic is pinged, and the answer is waited for, this long each.
        takeover: a standby that has seen no beat of the leader for this long takes over.
        deaf: an aggregator, optimizer or shard that was not heard for this long is looked for anew.
        stop: for a daemon that stops gracefully.
        broken: a connection without traffic that answers no ping is dead: `ping` twice.
        kill: for a daemon that was told to stop by who started it.
        comeback: for the workers of a job after a restart of the aggregator.
        follow: for an aggregator, by who follows a job.
        stall: for a lease, if somebody else is idle; at least. And for what a shard does with its tensors.
        unfit: for meshes that can't be opened, if there are no others.
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
        """The ladder of a heartbeat, with some rungs set by hand, in seconds.

        Raises:
            Refused: no positive heartbeat, no such rung, or an order that is broken.
        """
        if not (math.isfinite(heartbeat_seconds) and heartbeat_seconds > 0):
            raise Refused(f"heartbeat of {heartbeat_seconds:g} s: expected more than 0; 5 is usual")
        rungs = {name: count * heartbeat_seconds for name, count in TIMEOUTS_IN_HEARTBEATS.items()}
        for name in overrides or ():
            if name not in rungs:
                raise Refused(f"timeout {name}: no such rung; expected one of {', '.join(rungs)}")
        timeouts = cls(**{**rungs, **(overrides or {})})
        timeouts.check()
        return timeouts

    def passed(self, seconds: float) -> str:
        """The highest rung, from `silent` on, that is shorter than a wait; empty if there is none."""
        rungs = asdict(self)
        names = list(rungs)[list(rungs).index("silent") :]
        return next((name for name in reversed(names) if rungs[name] < seconds), "")

    def check(self) -> None:
        """Hold the order.

        Raises:
            Refused: a rung is not longer than the one below, or no number.
        """
        below, below_seconds = "0", 0.0
        for name, seconds in asdict(self).items():
            if not below_seconds < seconds < math.inf:
                raise Refused(
                    f"timeout {name}: {seconds:g} s, expected more than {below} ({below_seconds:g} s), the rung "
                    "below; raise it, lower the other, or change the heartbeat, which moves all"
                )
            below, below_seconds = name, seconds


STANDARD_TIMEOUTS = Timeouts.from_heartbeat(STANDARD_HEARTBEAT_SECONDS)
"""For what is waited for before, or without, a cluster's heartbeat."""
