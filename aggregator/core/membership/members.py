"""The workers that are connected, as the aggregator's core sees them."""

from __future__ import annotations

from dataclasses import dataclass

from services.protocol.versions import Version

SPEED_MEMORY = 0.7
"""Weight of the past in a worker's measured speed."""
IDLE_OPTIMISM = 1.05
"""Each step without work raises a worker's supposed speed by this factor, until it is given some and measured anew."""
LONGEST_LEASE_SECONDS = 1e6
"""Eleven days: what a worker says beyond that is no measurement."""


@dataclass
class Member:
    """A connected worker.

    Attributes:
        session: number of its connection; a reconnect is a new member.
        name: stable, for people.
        incarnation: of its process.
        heard_seconds: when it last spoke, on the monotonic clock.
        exchange: whether its data stream is up.
        ready: whether the running job is built on its mesh.
        layout_hash: of what it has built.
        refused: why it takes no part in the running job; empty if it may.
        unfit: why its mesh can't be opened; empty if it can. It tries again by itself.
        holds: the version whose complete weights are on its mesh.
        sent_version: the version being sent to it.
        sent_chunks: how many chunks of that version it was sent.
        stalled: whether it took too long over a lease, and nothing was heard of its work since.
        failures: how many of its leases failed in a row.
        in_place: whether the last chunk of it lay in its own memory, where it costs none here.
        speed: micro-batches per second; 0 until measured.
    """

    session: int
    name: str
    incarnation: str
    heard_seconds: float
    exchange: bool = False
    ready: bool = False
    layout_hash: str = ""
    refused: str = ""
    unfit: str = ""
    holds: Version | None = None
    sent_version: Version | None = None
    sent_chunks: int = 0
    stalled: bool = False
    failures: int = 0
    in_place: bool = False
    speed: float = 0.0

    @property
    def able(self) -> bool:
        """Whether it can be given work of the running job once it holds the weights."""
        return self.exchange and self.ready and not self.refused

    @property
    def streamed(self) -> bool:
        """Whether it computes with the newest weights or, having had all of older ones, is being sent them."""
        return self.able and self.holds is not None

    def leave_job(self) -> None:
        """Forget all that concerns the running job."""
        self.ready, self.layout_hash, self.refused, self.unfit, self.holds = False, "", "", "", None
        self.sent_version, self.sent_chunks, self.stalled, self.failures = None, 0, False, 0

    def measured(self, micro_batches: int, seconds: float) -> None:
        """Take a finished lease into the measured speed, if the worker's clock can be believed."""
        if not 0.0 <= seconds <= LONGEST_LEASE_SECONDS:
            return
        rate = micro_batches / max(seconds, 1e-6)
        self.speed = rate if not self.speed else SPEED_MEMORY * self.speed + (1 - SPEED_MEMORY) * rate

    def idled(self) -> None:
        """A step had no work for it: what was measured may not hold any more, so it is thought a little faster."""
        self.speed *= IDLE_OPTIMISM

    def describe(self) -> str:
        """One word for people on what it is doing."""
        if self.refused:
            return "refused"
        if self.unfit:
            return "unfit"
        if self.stalled:
            return "stalled"
        if not self.ready:
            return "building" if self.exchange else "connected"
        return "ready"


def speeds(members: list[Member]) -> dict[int, float]:
    """Speed per session for planning; members not measured yet count as fast as the average of the others."""
    known = [member.speed for member in members if member.speed]
    usual = sum(known) / len(known) if known else 1.0
    return {member.session: member.speed or usual for member in members}
