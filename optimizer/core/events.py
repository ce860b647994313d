"""Inputs and effects of the optimizer's core.

Both are plain data, so that a run can be recorded and replayed (services/runtime/recording.py). Effects on tensors are
orders of protos/plane.proto, whose reports are inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from protos import plane_pb2 as plane
from protos.cluster_pb2 import CheckpointWritten, Hello, Void
from protos.files_pb2 import FileRef
from protos.tensors_pb2 import ChunkHeader
from services.protocol.envelope import OptimizerBody, OptimizerOrder
from services.protocol.outbox import Outbox
from services.protocol.plan import JobPlan
from services.tensors.stripes import Stripe

# ---- inputs ----


@dataclass(frozen=True)
class Connected:
    """Hello of an aggregator that opened a link."""

    hello: Hello


@dataclass(frozen=True)
class Disconnected:
    """Loss of the link to the aggregator."""


@dataclass(frozen=True)
class Ordered:
    """Order of an aggregator, with the epoch under which it was sent."""

    epoch: int
    body: OptimizerOrder


@dataclass(frozen=True)
class ChunksArrived:
    """Arrival of chunks of a step's sum or of initial weights, after their bytes were checked against their headers.

    Attributes:
        header: header of the first chunk. Those of the others differ in index, offset and elements.
        chunks: indices of the chunks, all of one plane; chunk 0 comes alone.
    """

    header: ChunkHeader
    chunks: Sequence[int]


@dataclass(frozen=True)
class Loaded:
    """Answer to Load: what the disk holds of a job.

    Attributes:
        job: job id.
        plan: shape of the job in steps.
        generation: highest generation given out so far; 0 if there was none.
        layout_hash: hash of the checkpoint's layout; empty without a checkpoint.
        elements: number of elements of that layout.
        checkpoint: newest complete checkpoint; None if there is none.
        notices: one line for each newer checkpoint that was passed over, with the reason.
    """

    job: str
    plan: JobPlan
    generation: int
    layout_hash: str = ""
    elements: int = 0
    checkpoint: CheckpointWritten | None = None
    notices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Allocated:
    """Answer to Allocate: the arrays for a job's initial weights exist."""

    job: str
    layout_hash: str
    elements: int


@dataclass(frozen=True)
class FromPlane:
    """Report of a plane on its part of a step.

    Attributes:
        stripe: chunks of the plane.
        body: the report.
        now_seconds: time of the report, by a monotonic clock.
    """

    stripe: Stripe
    body: plane.StagedChunks | plane.UpdatedPart
    now_seconds: float = 0.0


@dataclass(frozen=True)
class Saved:
    """Answer to Snapshot: the checkpoint is complete on disk."""

    written: CheckpointWritten


@dataclass(frozen=True)
class SaveFailed:
    """Answer to Snapshot: no checkpoint was written, and older checkpoints are unchanged.

    Attributes:
        job: job id.
        generation: generation of the snapshot.
        step: step of the snapshot.
        reason: error text for people.
        out_of_space: whether the disk is full, so that a later attempt may succeed.
    """

    job: str
    generation: int
    step: int
    reason: str
    out_of_space: bool = False


@dataclass(frozen=True)
class RetryDue:
    """Answer to RetryLater: its time has passed."""

    job: str


@dataclass(frozen=True)
class OperationFailed:
    """Failure of an effect other than Snapshot; the job cannot go on."""

    job: str
    reason: str


@dataclass(frozen=True)
class Stopping:
    """The process stops because it was asked to."""


@dataclass(frozen=True)
class TensorsLost:
    """Loss of a process that holds tensors; all jobs must be loaded again from their newest checkpoints."""


Input = (
    Connected
    | Disconnected
    | Ordered
    | ChunksArrived
    | Loaded
    | Allocated
    | FromPlane
    | Saved
    | SaveFailed
    | RetryDue
    | OperationFailed
    | Stopping
    | TensorsLost
)

# ---- effects ----


@dataclass(frozen=True)
class ToAggregator:
    """Request to send a message to the aggregator."""

    body: OptimizerBody


@dataclass(frozen=True)
class Refuse:
    """Request to end the link and to tell the aggregator the reason."""

    reason: str


@dataclass(frozen=True)
class Load:
    """Request to look a job up on disk, without its void checkpoints; answered by Loaded or OperationFailed."""

    job: str
    spec_json: str
    void: tuple[Void, ...] = ()


@dataclass(frozen=True)
class SaveGeneration:
    """Request to put the generation on disk before any later effect is carried out."""

    job: str
    generation: int


@dataclass(frozen=True)
class SaveEpoch:
    """Request to put the aggregator's epoch on disk before any later effect is carried out."""

    epoch: int


@dataclass(frozen=True)
class Allocate:
    """Request to read a layout and files, and to allocate arrays; answered by Allocated or OperationFailed."""

    job: str
    layout: FileRef
    files: dict[str, FileRef] = field(default_factory=dict)


TensorOrder = plane.StageChunks | plane.UpdatePart | plane.MakeWeights | plane.SendVersion | plane.DropPart
"""Orders to the planes about a job's tensors. The payload of a StageChunks is that of the chunk that arrived."""


@dataclass(frozen=True)
class Snapshot:
    """Request to copy weights and state and to write them as a checkpoint; answered by Saved or SaveFailed.

    The core waits for that answer before the next request, of any job. So there is at most one copy, however slow the
    disk is and however many jobs there are.
    """

    job: str
    generation: int
    step: int


@dataclass(frozen=True)
class RetryLater:
    """Request for one RetryDue after some seconds."""

    job: str
    seconds: float


@dataclass(frozen=True)
class JobBroke:
    """Request to log an unexpected error, after which nothing of a job is here.

    Attributes:
        job: job id; empty for an error while no job was here.
        error: the error, with its traceback. A recording has its text.
    """

    job: str
    error: Exception


Effect = (
    ToAggregator
    | Refuse
    | Load
    | SaveGeneration
    | SaveEpoch
    | Allocate
    | TensorOrder
    | Snapshot
    | RetryLater
    | JobBroke
)


def job_of(effect: Effect) -> str:
    """Return the id of the job that an effect concerns; empty if it concerns none."""
    return str(getattr(effect.body if isinstance(effect, ToAggregator) else effect, "job", ""))


@dataclass
class OptimizerOutbox(Outbox[Effect]):
    """Effects of one input of the optimizer's core.

    Attributes:
        connected: whether an aggregator is connected; messages are dropped while there is none.
    """

    connected: bool = False

    def send(self, body: OptimizerBody) -> None:
        """Append a message to the aggregator, if one is connected."""
        if self.connected:
            self.put(ToAggregator(body))
