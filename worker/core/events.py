"""Inputs and effects of the worker's core: plain data.

The service and the device thread pass inputs to `WorkerCore.handle` and carry out the effects that it returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from protos import plane_pb2 as plane
from protos.cluster_pb2 import BatchLoss, Checksum, Lease, Row
from protos.files_pb2 import FileRef
from protos.tensors_pb2 import ChunkHeader, NonFinite
from services.pipeline.split import StageRun
from services.protocol.bounds import MAX_MICRO_BATCHES
from services.protocol.envelope import WorkerBody, WorkerOrder
from services.protocol.plan import WireTypes
from services.protocol.versions import Version
from services.tensors.layout_parts import LayoutParts, join_parts


@dataclass(frozen=True)
class DamagedInput:
    """A damaged file on this host that was made or fetched by the worker.

    Attributes:
        path: its path.
        inode: its number on the disk; a file that has replaced it has another one.
    """

    path: str
    inode: int


# ---- inputs ----


@dataclass(frozen=True)
class Connected:
    """The control stream to an aggregator is open."""


@dataclass(frozen=True)
class Disconnected:
    """The streams to the aggregator have ended."""


@dataclass(frozen=True)
class Ordered:
    """An order of the aggregator, under its epoch."""

    epoch: int
    body: WorkerOrder


@dataclass(frozen=True)
class WeightsArrived:
    """A chunk of weights has arrived, and its payload has been checked against its header."""

    header: ChunkHeader


@dataclass(frozen=True)
class Built:
    """The job is built on the mesh.

    Attributes:
        job: id of the job.
        layout_hash: hash of the model's layout, which all workers of a job must share.
        elements: number of elements of the layout.
        evaluation_batches: number of held-out batches.
        tokens_per_micro_batch: tokens (samples, for a regression) in one micro-batch.
        fingerprint: what the bits of this worker's gradients depend on.
        wire: types in which the job's tensors travel.
        flops_per_token: floating-point operations of training on a token; None if the model has no formula.
        peak_flops: peak of the mesh in floating-point operations a second; None if it is unknown.
        stages: the stages of the job's pipeline that are built; None for the whole model of a job without a pipeline.
        parts: with stages, the parts of the layout whose gradients it computes.
        shared: with stages, other parts whose weights it needs too.
        micro_batches: number of micro-batches of a step.
        number: number of the Build: this worker may have left the job, and joined it again, while it was built.
    """

    job: str
    layout_hash: str
    elements: int
    evaluation_batches: int
    tokens_per_micro_batch: int
    fingerprint: dict[str, str] = field(default_factory=dict)
    wire: WireTypes = field(default_factory=WireTypes)
    flops_per_token: int | None = None
    peak_flops: float | None = None
    stages: StageRun | None = None
    parts: LayoutParts = field(default_factory=lambda: LayoutParts(()))
    shared: LayoutParts = field(default_factory=lambda: LayoutParts(()))
    micro_batches: int = MAX_MICRO_BATCHES
    number: int = 0

    @cached_property
    def sends(self) -> LayoutParts:
        """Pieces of the layout that it sends: chunks, without stages."""
        return LayoutParts([(0, self.elements)]) if self.stages is None else self.parts

    @cached_property
    def loads(self) -> LayoutParts:
        """Pieces of the weights that it needs: chunks, without stages."""
        return self.sends if self.stages is None else join_parts([self.parts, self.shared])


@dataclass(frozen=True)
class BuildFailed:
    """The job can't be built on this worker.

    Attributes:
        job: id of the job.
        reason: one line for people.
        unfit: whether the reason may pass: the mesh could not be opened, or an input is missing. The worker tries
            again.
        too_large: whether its stages don't fit the memory of the mesh, so that fewer of them may.
        died: whether the compute process ended by itself meanwhile, as the reason says.
        number: number of the Build.
    """

    job: str
    reason: str
    unfit: bool = False
    too_large: bool = False
    died: bool = False
    number: int = 0


@dataclass(frozen=True)
class Printed:
    """The job's code has printed something.

    Attributes:
        job: id of the job.
        lines: printable lines.
    """

    job: str
    lines: Sequence[str]


@dataclass(frozen=True)
class Fetching:
    """The job's inputs are on their way from the aggregator, or are being read on this host.

    Attributes:
        job: id of the job.
        field: setting of the job that names the input.
        bytes: number of bytes that are here, over all files that were missing; or that were read.
        size: number of bytes of the files whose sizes are known.
        problem: why it does not go on; empty if it does.
        local: whether files of this host are read, to verify or convert them, and none from the aggregator.
    """

    job: str
    field: str
    bytes: int
    size: int
    problem: str = ""
    local: bool = False


@dataclass(frozen=True)
class BuildDue:
    """The pause of the BuildLater with this number is over."""

    attempt: int


@dataclass(frozen=True)
class Loaded:
    """The complete weights of a version are on the mesh."""

    job: str
    version: Version


@dataclass(frozen=True)
class LoadFailed:
    """The job can't go on here: weights can't be put on the mesh, or its bits can't be relied on.

    Attributes:
        job: id of the job.
        reason: one line for people.
        too_large: whether the mesh lacks the memory for the stages that are built.
        died: whether the compute process ended by itself meanwhile, as the reason says.
    """

    job: str
    reason: str
    too_large: bool = False
    died: bool = False


@dataclass(frozen=True)
class InputDamaged:
    """A file of the job is damaged on this host, which a lease or the building of the job has found.

    Attributes:
        job: id of the job.
        input: the file; None for one that a person has put there, which the worker can't replace.
        reason: one line for people.
    """

    job: str
    input: DamagedInput | None
    reason: str


@dataclass(frozen=True)
class InitialWeightsMade:
    """An INITIALISE lease has made the initial weights, and the aggregator has the files that describe them.

    Attributes:
        lease: id of the lease.
        layout: the model's layout as `Layout.dumps` writes it, uploaded to the aggregator.
        files: files of a checkpoint that describe the model, by name, uploaded too.
    """

    lease: int
    layout: FileRef
    files: dict[str, FileRef]


@dataclass(frozen=True)
class NodeReady:
    """The sum of a TRAIN lease, or the initial weights of a stage, are computed from one element to the last.

    Attributes:
        lease: id of the lease.
        first_element: index in the layout of the first element that is computed.
        losses: losses of the lease's micro-batches, given with element 0.
        non_finite: micro-batches whose gradients are not finite, given with element 0.
        count: number of tokens (or samples) that count in the losses, given with element 0.
    """

    lease: int
    first_element: int
    losses: tuple[float, ...] = ()
    non_finite: tuple[NonFinite, ...] = ()
    count: int = 0


@dataclass(frozen=True)
class LeaseComputed:
    """A TRAIN or VERIFY lease is computed.

    Attributes:
        lease: id of the lease.
        seconds: time it took without waiting for weights; 0 for a VERIFY lease.
        tokens: tokens (or samples) it trained on; 0 for a VERIFY lease.
        checksums: checksums of the micro-batches that the lease names for it.
    """

    lease: int
    seconds: float
    tokens: int
    checksums: tuple[Checksum, ...] = ()


@dataclass(frozen=True)
class LeaseEvaluated:
    """An EVALUATE lease is computed."""

    lease: int
    losses: tuple[BatchLoss, ...]


@dataclass(frozen=True)
class LeaseFailed:
    """A lease can't be computed on this worker.

    Attributes:
        lease: id of the lease.
        reason: one line for people.
        neighbour: name of the worker of the row that it can't exchange arrays with; empty if the fault is its own.
        too_large: whether the mesh lacks the memory for the stages that are built.
        died: whether the compute process ended by itself meanwhile, as the reason says. The worker goes on with
            another one.
    """

    lease: int
    reason: str
    neighbour: str = ""
    too_large: bool = False
    died: bool = False


Input = (
    Connected
    | Disconnected
    | Ordered
    | WeightsArrived
    | Built
    | BuildFailed
    | Fetching
    | Printed
    | BuildDue
    | Loaded
    | LoadFailed
    | InputDamaged
    | InitialWeightsMade
    | NodeReady
    | LeaseComputed
    | LeaseEvaluated
    | LeaseFailed
)

# ---- effects ----


@dataclass(frozen=True)
class ToAggregator:
    """Send a message to the aggregator."""

    body: WorkerBody


@dataclass(frozen=True)
class Build:
    """Fetch a job's inputs from the aggregator and build it on the mesh.

    The answer is Built, BuildFailed or InputDamaged.

    Attributes:
        job: id of the job.
        spec_json: config of the job.
        damaged: file to remove first, if it is the worker's own copy, so that it is fetched again; None for none.
        stages: the stages of the job's pipeline to build; None for the whole model.
        number: number of the order to build, rising.
    """

    job: str
    spec_json: str
    damaged: DamagedInput | None = None
    stages: StageRun | None = None
    number: int = 0


@dataclass(frozen=True)
class BuildLater:
    """Wait, then answer with BuildDue."""

    attempt: int
    seconds: float


@dataclass(frozen=True)
class DropJob:
    """Take the job off the mesh."""


@dataclass(frozen=True)
class OpenRow:
    """Exchange arrays with the other workers of a row, and no longer with those of the row before.

    Attributes:
        row: the row.
        epoch: epoch of the aggregator that made it.
    """

    row: Row
    epoch: int


@dataclass(frozen=True)
class CloseRow:
    """Exchange no arrays with other workers any longer."""


@dataclass(frozen=True)
class Load:
    """Put the payload that has just arrived on the mesh. The answer to a version's last chunk is Loaded."""

    header: ChunkHeader


@dataclass(frozen=True)
class Perform:
    """Compute a lease as its weights arrive; the first of them has arrived.

    The answers are InitialWeightsMade, NodeReady, LeaseComputed, LeaseEvaluated, LeaseFailed or InputDamaged.
    """

    lease: Lease


@dataclass(frozen=True)
class DropLease:
    """Stop computing a lease and free its sum; DropPieces comes before."""

    lease: int


PlaneOrder = plane.PassJob | plane.SendSum | plane.DropPieces
"""Orders to the worker's plane (protos/plane.proto)."""

Effect = (
    ToAggregator | PlaneOrder | Build | BuildLater | DropJob | OpenRow | CloseRow | Load | Perform | DropLease
)
