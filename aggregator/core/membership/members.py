"""The connected workers, as the aggregator's core sees them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from aggregator.core.events import WorkerConnected
from aggregator.core.membership.devices import Device
from protos.cluster_pb2 import Fetching, Ready
from protos.jobs_pb2 import Claim
from services.caps import MB
from services.errors import Refusal
from services.pipeline.split import StageRun
from services.protocol.bounds import PRINTED_BURST_LINES, PRINTED_LINES_A_SECOND
from services.protocol.versions import Version
from services.token_bucket import TokenBucket

SPEED_MEMORY = 0.7
"""Weight of the past in a worker's measured speed."""
IDLE_OPTIMISM = 1.05
"""Factor on a worker's assumed speed after each step without work, until it gets some and is measured again."""
LONGEST_LEASE_SECONDS = 1e6
"""Longest duration that a worker's report is believed to be: eleven days."""


class MemberState(str, Enum):
    """State of a worker, as `tiermesh status` shows it."""

    REFUSED = "refused"
    UNFIT = "unfit"
    WAITING = "waiting"
    STALLED = "stalled"
    CONNECTED = "connected"
    BUILDING = "building"
    SPARE = "spare"
    READY = "ready"
    COMPUTING = "computing"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class ClaimWait:
    """The wait of a worker whose claim is not the job's own, and may become it.

    Attributes:
        ready: its report that it has built the job, by which it is admitted then.
        reason: why it waits.
    """

    ready: Ready
    reason: Refusal


@dataclass(frozen=True)
class Fetch:
    """The reading of a job's input, from the aggregator or on the worker's own host.

    Attributes:
        progress: what the worker reported last.
        since_seconds: when it last got on, on the monotonic clock.
    """

    progress: Fetching
    since_seconds: float

    @property
    def verb(self) -> str:
        """What the worker does with the input, for people."""
        return "read" if self.progress.local else "fetch"

    def describe(self) -> str:
        """Return what the worker reads, how much of it is there, and why it does not go on."""
        found = self.progress
        place = "on its own host" if found.local else "from the aggregator"
        text = f"{found.input} {place}, {found.bytes / MB:,.0f} of {found.size / MB:,.0f} MB"
        return f"{text}: {found.problem}" if found.problem else text


@dataclass(eq=False)
class Member:
    """A connected worker.

    Attributes:
        session: the number of its connection; a worker that reconnects is a new member.
        name: its name, which stays the same across restarts.
        incarnation: the id of its process.
        job: the job that it serves; empty while it serves none.
        leaving_since_seconds: since when it is to leave that job, which it does at the COMMIT of its leases; None if it
            is to stay.
        heard_seconds: when its last message came, on the monotonic clock.
        connected_seconds: when it connected, on the same clock.
        has_data_stream: whether its data stream is up.
        ready: whether it has built its job on its mesh.
        layout_hash: the hash of the layout it has built.
        tokens: number of tokens, or samples, in a micro-batch, as it says; 0 if it does not know.
        refusal: why it takes no part in its job; None if it may.
        unfit: why its mesh can't be opened, or has not been for too long; None if it can. The worker goes on trying.
        brought: the job and the stages of it that it had built when it connected; None for none.
        pipeline_address: HOST:PORT at which workers of other stages reach it; empty if it takes no stages.
        spare: whether it has no stages of its job, and waits until a row needs it.
        spare_reason: why a row can't need it; empty if one may.
        builds: number of orders to build a job, or stages of one, that its connection has had.
        building_since_seconds: since when it builds the job; None if it does not.
        fetch: what it reads, from the aggregator or on its own host, before it can build the job; None for nothing.
        claim_wait: why it waits until the job changes its code, or until a claim is decided; None if it does not.
        loaded_version: the version whose complete weights are on its mesh.
        sent_version: the version that planes were ordered to send it.
        device: what it said last of its device; None before its first heartbeat.
        hangs: whether that device hangs: it computes for too long without getting on.
        failures: the number of its leases that failed in a row.
        printed: limits the lines that its job's code prints.
        left_out_lines: number of these lines that were left out, and not reported yet.
        features: names of the features that it has.
        external_job: job that a process of a user has joined it for; empty for a worker of the cluster's own.
        voice: first of the names that its certificate is bound to; empty if it is bound to none.
        claim: what it said last of its job; None if it has said nothing.
        dissents: whether it is refused because it says otherwise than the job, or contradicts itself.
        build_seconds: how long it took last to close a mesh, open one and build a job; 0 until measured.
        speed: micro-batches per second; 0 until measured.
        peak_flops: peak of its mesh in floating-point operations a second; None if it is unknown.
    """

    session: int
    name: str
    incarnation: str
    heard_seconds: float
    connected_seconds: float = 0.0
    job: str = ""
    leaving_since_seconds: float | None = None
    has_data_stream: bool = False
    ready: bool = False
    layout_hash: str = ""
    tokens: int = 0
    refusal: Refusal | None = None
    unfit: Refusal | None = None
    pipeline_address: str = ""
    brought: tuple[str, StageRun] | None = None
    spare: bool = False
    spare_reason: str = ""
    builds: int = 0
    building_since_seconds: float | None = None
    fetch: Fetch | None = None
    claim_wait: ClaimWait | None = None
    loaded_version: Version | None = None
    sent_version: Version | None = None
    device: Device | None = None
    hangs: bool = False
    failures: int = 0
    printed: TokenBucket = field(
        default_factory=lambda: TokenBucket(PRINTED_LINES_A_SECOND, PRINTED_BURST_LINES)
    )
    left_out_lines: int = 0
    features: tuple[str, ...] = ()
    external_job: str = ""
    voice: str = ""
    claim: Claim | None = None
    dissents: bool = False
    build_seconds: float = 0.0
    speed: float = 0.0
    peak_flops: float | None = None

    @classmethod
    def connect(cls, event: WorkerConnected, now: float) -> Member:
        """Return a worker that has connected now, and serves no job yet."""
        hello = event.hello
        return cls(
            event.session,
            hello.name,
            hello.incarnation,
            now,
            connected_seconds=now,
            features=tuple(hello.features),
            voice=event.voice,
            external_job=hello.external_job,
            pipeline_address=event.pipeline_address,
            brought=(hello.job, StageRun(hello.first_stage, hello.stages)) if hello.stages else None,
        )

    def find_brought(self, job: str) -> StageRun | None:
        """Return the stages of a job that it had built when it connected; None for none."""
        return self.brought[1] if self.brought is not None and self.brought[0] == job else None

    @property
    def able(self) -> bool:
        """Whether it can be given work of its job once it has the weights."""
        return self.has_data_stream and self.ready and self.refusal is None

    @property
    def fits(self) -> bool:
        """Whether nothing is known that keeps it from its job."""
        return self.refusal is None and self.unfit is None

    @property
    def rebuilds(self) -> bool:
        """Whether it builds the job again, or other stages of it, after it was admitted to the job."""
        hindered = self.unfit is not None or self.claim_wait is not None
        return bool(self.layout_hash) and self.building_since_seconds is not None and not hindered

    @property
    def present(self) -> bool:
        """Whether it counts among the workers that the job wants: it can be given work, or stages."""
        return self.able or (self.has_data_stream and self.spare and not self.spare_reason)

    def lacks(self, version: Version) -> bool:
        """Return whether the planes must be ordered to send it the weights of a version."""
        return self.able and version not in (self.loaded_version, self.sent_version)

    @property
    def state(self) -> MemberState:
        """Its state, except that a worker whose row has a lease, or has stalled, counts as ready here."""
        if self.refusal is not None:
            return MemberState.REFUSED
        if self.unfit is not None:
            return MemberState.UNFIT
        if self.claim_wait is not None:
            return MemberState.WAITING
        if self.hangs:
            return MemberState.STALLED
        if self.spare:
            return MemberState.SPARE
        if not self.ready:
            return MemberState.BUILDING if self.has_data_stream else MemberState.CONNECTED
        return MemberState.READY

    def describe(self) -> str:
        """Return why it takes no part in its job, or else its state."""
        return self.detail or str(self.state)

    @property
    def detail(self) -> str:
        """Why it takes no part in its job, or does not get on; empty if it does, or may soon."""
        waiting = self.claim_wait.reason if self.claim_wait is not None else None
        hang = f"{self.device}; look at its log and its devices, and restart it" if self.hangs else ""
        joined = (
            f"its process waits for job {self.external_job}" if self.external_job and not self.job else ""
        )
        return str(self.refusal or self.unfit or waiting or hang or self.spare_reason or joined)

    def leave_job(self) -> None:
        """Forget everything that concerns its job."""
        self.job, self.leaving_since_seconds, self.speed = "", None, 0.0
        self.left_out_lines = 0
        self.forget_build()

    def forget_build(self) -> None:
        """Forget what it has built, and why it might not."""
        self.lose_build()
        self.layout_hash, self.refusal, self.unfit = "", None, None
        self.building_since_seconds, self.fetch, self.claim_wait = None, None, None
        self.hangs, self.failures, self.peak_flops = False, 0, None
        self.spare, self.spare_reason = False, ""
        self.claim, self.dissents = None, False

    def lose_build(self) -> None:
        """Note that the job is not on its mesh, and neither are the weights."""
        self.ready, self.loaded_version, self.sent_version = False, None, None

    def record_lease(self, micro_batches: int, seconds: float) -> None:
        """Include a finished lease in the measured speed, if its duration is plausible."""
        if not 0.0 <= seconds <= LONGEST_LEASE_SECONDS:
            return
        rate = micro_batches / max(seconds, 1e-6)
        self.speed = rate if not self.speed else SPEED_MEMORY * self.speed + (1 - SPEED_MEMORY) * rate

    def record_idle_step(self) -> None:
        """Raise the assumed speed after a step without work, since the measured one may be outdated."""
        self.speed *= IDLE_OPTIMISM


def total_peak_flops(members: list[Member]) -> float | None:
    """Return the peak of all these workers, in floating-point operations a second; None if one's is unknown."""
    known = [member.peak_flops for member in members if member.peak_flops is not None]
    return sum(known) if known and len(known) == len(members) else None
