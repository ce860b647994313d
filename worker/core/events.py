"""What goes into the worker's core and what comes out of it. Plain data."""

from __future__ import annotations

from dataclasses import dataclass, field

from protos.cluster_pb2 import BatchLoss, Checksum, Lease
from protos.tensors_pb2 import ChunkHeader, NonFinite
from services.protocol.envelope import WorkerBody, WorkerOrder
from services.protocol.plan import WireTypes

# ---- inputs ----


@dataclass(frozen=True)
class Connected:
    """The control stream to an aggregator is up."""


@dataclass(frozen=True)
class Disconnected:
    """The streams to the aggregator are down."""


@dataclass(frozen=True)
class Ordered:
    """An order of the aggregator, under its epoch."""

    epoch: int
    body: WorkerOrder


@dataclass(frozen=True)
class WeightsArrived:
    """A chunk of weights came; its bytes match its header."""

    header: ChunkHeader


@dataclass(frozen=True)
class Built:
    """The job is built on the mesh."""

    job: str
    layout_hash: str
    elements: int
    evaluation_batches: int
    tokens_per_micro_batch: int
    fingerprint: dict[str, str] = field(default_factory=dict)
    wire: WireTypes = field(default_factory=WireTypes)


@dataclass(frozen=True)
class BuildFailed:
    """The job can't be built here; with `unfit`, because the mesh can't be opened, which may change."""

    job: str
    reason: str
    unfit: bool = False


@dataclass(frozen=True)
class BuildDue:
    """The time that BuildLater asked for is over."""

    attempt: int


@dataclass(frozen=True)
class Loaded:
    """The complete weights of a version are on the mesh."""

    job: str
    generation: int
    step: int


@dataclass(frozen=True)
class Described:
    """The initial weights are made."""

    lease: int
    layout_json: str
    files: dict[str, bytes]


@dataclass(frozen=True)
class NodeReady:
    """The node's sum is in place from this chunk to the last; with chunk 0 what is told of its micro-batches: losses,
    and which of them have gradients that are not finite."""

    lease: int
    chunk: int
    losses: tuple[float, ...] = ()
    non_finite: tuple[NonFinite, ...] = ()


@dataclass(frozen=True)
class LeaseComputed:
    """All of a TRAIN lease is computed, in so many seconds beside those in which it waited for weights, or of a VERIFY
    lease; with the checksums that it asked for."""

    lease: int
    seconds: float
    tokens: int
    checksums: tuple[Checksum, ...] = ()


@dataclass(frozen=True)
class LeaseEvaluated:
    """All of an EVALUATE lease is evaluated."""

    lease: int
    losses: tuple[BatchLoss, ...]


@dataclass(frozen=True)
class LeaseFailed:
    """A lease can't be fulfilled."""

    lease: int
    reason: str


Input = (
    Connected
    | Disconnected
    | Ordered
    | WeightsArrived
    | Built
    | BuildFailed
    | BuildDue
    | Loaded
    | Described
    | NodeReady
    | LeaseComputed
    | LeaseEvaluated
    | LeaseFailed
)

# ---- effects ----


@dataclass(frozen=True)
class Say:
    """Send a message to the aggregator."""

    body: WorkerBody


@dataclass(frozen=True)
class Build:
    """Build the job on the mesh, then tell with Built or BuildFailed."""

    job: str
    spec_json: str


@dataclass(frozen=True)
class BuildLater:
    """After so long, tell with BuildDue."""

    attempt: int
    seconds: float


@dataclass(frozen=True)
class DropJob:
    """Take the job off the mesh."""


@dataclass(frozen=True)
class Load:
    """Put the payload that just arrived on the mesh; with the last one of its version, tell with Loaded."""

    header: ChunkHeader


@dataclass(frozen=True)
class Perform:
    """Fulfil a lease, as fast as its weights arrive, the first of which have.

    Tell of it with Described, NodeReady, LeaseComputed, LeaseEvaluated or LeaseFailed.
    """

    lease: Lease


@dataclass(frozen=True)
class DropLease:
    """Stop working on a lease and forget its sum."""

    lease: int


Effect = Say | Build | BuildLater | DropJob | Load | Perform | DropLease
