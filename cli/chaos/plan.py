"""Faults of a chaos run and their times, drawn from a seed; the same seed gives the same plan."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

_MAX_BREAK_BITS = 16.0
_SLOW_BYTES_PER_SECOND = (32 * 1024, 512 * 1024)
_DELAY_SECONDS = (0.005, 0.1)


class FaultKind(str, Enum):
    """Kinds of faults: kill and freeze are for daemons, the others for links."""

    KILL = "kill"
    FREEZE = "freeze"
    SLOW = "slow"
    DELAY = "delay"
    CUT = "cut"
    BREAK = "break"

    @property
    def of_daemons(self) -> bool:
        """Whether the fault is for a daemon, not for a link."""
        return self in (FaultKind.KILL, FaultKind.FREEZE)


class Direction(str, Enum):
    """Directions of a link A>B: FORWARD is from A to B, BACK from B to A."""

    FORWARD = "forth"
    BACK = "back"
    BOTH = "both"


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        at_step: number of updates after which the fault starts.
        kind: kind of the fault.
        target: name of a daemon or of a link.
        seconds: duration; for a kill the time until the restart, for a break the longest wait for its byte.
        way: direction of a link.
        bytes_per_second: rate of a slow link, in each direction.
        delay_seconds: delay of each piece on a delayed link.
        after_bytes: number of bytes after which a connection breaks, usually within a message.
    """

    at_step: int
    kind: FaultKind
    target: str
    seconds: float
    way: Direction = Direction.BOTH
    bytes_per_second: int = 0
    delay_seconds: float = 0.0
    after_bytes: int = 0

    def __str__(self) -> str:
        way = "" if self.way is Direction.BOTH else f", only {self.way.value},"
        what = {
            FaultKind.KILL: f"killed, restarted after {self.seconds:.1f} s",
            FaultKind.FREEZE: f"frozen for {self.seconds:.1f} s",
            FaultKind.SLOW: f"slow{way} for {self.seconds:.1f} s: {self.bytes_per_second / 1024:.0f} KiB/s",
            FaultKind.DELAY: f"delayed{way} for {self.seconds:.1f} s: {1000 * self.delay_seconds:.0f} ms",
            FaultKind.CUT: f"cut{way} for {self.seconds:.1f} s",
            FaultKind.BREAK: f"one connection broken{way} after {self.after_bytes} bytes",
        }
        return f"{self.target}: {what[self.kind]}"


def draw_plan(
    seed: int,
    faults: int,
    *,
    steps: int,
    daemons: Sequence[str],
    links: Sequence[str],
    heartbeat_seconds: float,
) -> tuple[Fault, ...]:
    """Return a plan: faults in the order of their steps.

    Every kind appears once before one is repeated. Faults last up to five heartbeats. The aggregator notices a silent
    peer after about three, so it notices only some of them.

    Args:
        seed: seed of the random draws.
        faults: number of faults.
        steps: number of the job's steps, at least 1.
        daemons: names of the daemons, at least one.
        links: names of the links, at least one.
        heartbeat_seconds: heartbeat of the aggregator.
    """
    draw = random.Random(seed)
    kinds: list[FaultKind] = []
    while len(kinds) < faults:
        kinds += draw.sample(list(FaultKind), len(FaultKind))
    drawn = [
        _fault(draw, kind, steps, daemons if kind.of_daemons else links, heartbeat_seconds)
        for kind in kinds[:faults]
    ]
    return tuple(sorted(drawn, key=lambda fault: fault.at_step))


def _fault(
    draw: random.Random, kind: FaultKind, steps: int, targets: Sequence[str], heartbeat_seconds: float
) -> Fault:
    at_step, target = draw.randrange(steps), draw.choice(targets)
    seconds = heartbeat_seconds * draw.uniform(0.5, 5.0)
    if kind is FaultKind.SLOW:
        return Fault(at_step, kind, target, seconds, bytes_per_second=draw.randint(*_SLOW_BYTES_PER_SECOND))
    if kind is FaultKind.DELAY:
        return Fault(at_step, kind, target, seconds, delay_seconds=draw.uniform(*_DELAY_SECONDS))
    if kind is FaultKind.CUT:
        return Fault(at_step, kind, target, seconds, way=draw.choice(list(Direction)))
    if kind is FaultKind.BREAK:
        after = int(2 ** draw.uniform(0.0, _MAX_BREAK_BITS))  # small messages and big ones alike
        way = draw.choice([Direction.FORWARD, Direction.BACK])
        return Fault(at_step, kind, target, seconds, way=way, after_bytes=after)
    return Fault(at_step, kind, target, seconds)
