"""What happens to a cluster and when: drawn from a seed, the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

_MOST_BREAK_BITS = 16.0
_SLOW_BYTES_PER_SECOND = (32 * 1024, 512 * 1024)
_DELAY_SECONDS = (0.005, 0.1)


class Kind(str, Enum):
    """What can happen, to a daemon (kill, freeze) or to a link (the others)."""

    KILL = "kill"
    FREEZE = "freeze"
    SLOW = "slow"
    DELAY = "delay"
    CUT = "cut"
    BREAK = "break"

    @property
    def of_daemons(self) -> bool:
        """Whether it happens to a daemon, not to a link."""
        return self in (Kind.KILL, Kind.FREEZE)


class Way(str, Enum):
    """Directions of a link, named A>B: from A to B, from B to A."""

    FORTH = "forth"
    BACK = "back"
    BOTH = "both"


@dataclass(frozen=True)
class Fault:
    """One thing that happens.

    Attributes:
        at_step: of the job, from 0: it happens once that many updates are made.
        kind: what happens.
        target: name of a daemon or of a link.
        seconds: until the killed is started again, the frozen goes on, the link is whole; of a break: how long its
            byte is waited for.
        way: of a link.
        bytes_per_second: that pass a slow link, each way.
        delay_seconds: of a delayed link, for each piece.
        after_bytes: a connection breaks once so many have passed: in the middle of a message.
    """

    at_step: int
    kind: Kind
    target: str
    seconds: float
    way: Way = Way.BOTH
    bytes_per_second: int = 0
    delay_seconds: float = 0.0
    after_bytes: int = 0

    def __str__(self) -> str:
        way = "" if self.way is Way.BOTH else f", {self.way.value} alone,"
        what = {
            Kind.KILL: f"killed, back after {self.seconds:.1f} s",
            Kind.FREEZE: f"frozen for {self.seconds:.1f} s",
            Kind.SLOW: f"slow{way} for {self.seconds:.1f} s: {self.bytes_per_second / 1024:.0f} KiB/s",
            Kind.DELAY: f"delayed{way} for {self.seconds:.1f} s: by {1000 * self.delay_seconds:.0f} ms",
            Kind.CUT: f"cut{way} for {self.seconds:.1f} s",
            Kind.BREAK: f"a connection broken{way} after {self.after_bytes} bytes",
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
    """That many faults, in the order of their steps.

    Every kind comes once before one comes again. Faults last up to five heartbeats: some are noticed, which takes
    three, some are not.

    Args:
        seed: of all that is drawn.
        faults: how many.
        steps: of the job, at least 1.
        daemons: names, at least one.
        links: names, at least one.
        heartbeat_seconds: of the aggregator.
    """
    draw = random.Random(seed)
    kinds: list[Kind] = []
    while len(kinds) < faults:
        kinds += draw.sample(list(Kind), len(Kind))
    drawn = [
        _fault(draw, kind, steps, daemons if kind.of_daemons else links, heartbeat_seconds)
        for kind in kinds[:faults]
    ]
    return tuple(sorted(drawn, key=lambda fault: fault.at_step))


def _fault(
    draw: random.Random, kind: Kind, steps: int, targets: Sequence[str], heartbeat_seconds: float
) -> Fault:
    at_step, target = draw.randrange(steps), draw.choice(targets)
    seconds = heartbeat_seconds * draw.uniform(0.5, 5.0)
    if kind is Kind.SLOW:
        return Fault(at_step, kind, target, seconds, bytes_per_second=draw.randint(*_SLOW_BYTES_PER_SECOND))
    if kind is Kind.DELAY:
        return Fault(at_step, kind, target, seconds, delay_seconds=draw.uniform(*_DELAY_SECONDS))
    if kind is Kind.CUT:
        return Fault(at_step, kind, target, seconds, way=draw.choice(list(Way)))
    if kind is Kind.BREAK:
        after = int(2 ** draw.uniform(0.0, _MOST_BREAK_BITS))  # small messages and big ones alike
        way = draw.choice([Way.FORTH, Way.BACK])
        return Fault(at_step, kind, target, seconds, way=way, after_bytes=after)
    return Fault(at_step, kind, target, seconds)
