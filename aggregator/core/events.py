"""Inputs and effects of the aggregator's core.

An input says what happened. An effect says what the service must do. Both are plain data, so that a run can be
recorded and replayed (services/runtime/recording.py). Effects on payloads are the orders of protos/plane.proto.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from aggregator.core.scheduling.host_memories import ToldMemory
from aggregator.core.scheduling.room import RoleNeed
from aggregator.core.verification.opinions import CheckOutcome
from protos import plane_pb2 as plane
from protos.cluster_pb2 import CheckpointMissed, CheckpointWritten, Hello
from protos.jobs_pb2 import Job, StepSplit
from protos.tensors_pb2 import ChunkHeader
from services.protocol import outbox
from services.protocol.envelope import OptimizerBody, OptimizerOrder, WorkerBody, WorkerOrder
from services.protocol.plan import JobPlan
from services.tensors.layout_parts import Piece

# ---- inputs ----


@dataclass(frozen=True)
class Submitted:
    """A user submitted a job, which is on disk.

    Attributes:
        job: the job's record.
        spec_json: the complete job.
        plan: what the aggregator needs to know of the job's configuration.
        needs: memory that it needs, by role; empty if that is unknown.
    """

    job: Job
    spec_json: str
    plan: JobPlan
    needs: Mapping[str, RoleNeed] = field(default_factory=dict)


@dataclass(frozen=True)
class CancelRequested:
    """A user cancelled a job; its record on disk says so.

    Attributes:
        job: id of the job.
        now: whether no checkpoint of its last COMMIT is wanted.
    """

    job: str
    now: bool = False


@dataclass(frozen=True)
class PauseRequested:
    """A person paused a job; its record on disk says so."""

    job: str


@dataclass(frozen=True)
class ResumeRequested:
    """A person resumed a job that is paused, or about to be; its record on disk says so."""

    job: str


@dataclass(frozen=True)
class PriorityRequested:
    """A person changed the priority of a job; its record on disk says so."""

    job: str
    priority: int


@dataclass(frozen=True)
class TrustRequested:
    """A person trusts what a worker says of a job; the job's record on disk says so.

    Attributes:
        job: the job's id.
        worker: the worker's name.
    """

    job: str
    worker: str


@dataclass(frozen=True)
class ClusterCheckBegan:
    """A check of meshes and links began; its workers serve no job until it has ended.

    Attributes:
        sessions: the workers' sessions.
    """

    sessions: tuple[int, ...]


@dataclass(frozen=True)
class ClusterCheckEnded:
    """The check of meshes and links has ended."""


@dataclass(frozen=True)
class MemoryTold:
    """A process that is no worker, or this one, has told of its host's memory."""

    role: str
    name: str
    memory: ToldMemory


@dataclass(frozen=True)
class OptimizerConnected:
    """The link to the optimizer is up.

    Attributes:
        name: the optimizer's name.
        features: names of the features of the optimizer or the shards, by peer, of those in other processes.
    """

    name: str
    features: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class OptimizerLost:
    """The link to the optimizer is down."""

    reason: str


@dataclass(frozen=True)
class FromOptimizer:
    """A control message from the optimizer."""

    body: OptimizerBody


@dataclass(frozen=True)
class LateCheckpoint:
    """The optimizer named a checkpoint of a job that has ended, or said why there is none.

    Attributes:
        job: the job's record on disk.
        outcome: what it said.
    """

    job: Job
    outcome: CheckpointWritten | CheckpointMissed


@dataclass(frozen=True)
class WeightsArrived:
    """A chunk of weights arrived from the optimizer."""

    header: ChunkHeader


@dataclass(frozen=True)
class WorkerConnected:
    """A worker opened its control stream.

    Attributes:
        session: number of the connection, unique.
        hello: its first message.
        pipeline_address: HOST:PORT at which workers of other stages reach it; empty if it takes no stages.
        voice: first of the names that its certificate is bound to; empty if it is bound to none.
    """

    session: int
    hello: Hello
    pipeline_address: str = ""
    voice: str = ""


@dataclass(frozen=True)
class DataStreamOpened:
    """The worker's data stream is up."""

    session: int


@dataclass(frozen=True)
class WorkerLost:
    """One of the worker's streams ended."""

    session: int
    reason: str


@dataclass(frozen=True)
class FromWorker:
    """A control message from a worker, with the epoch the worker obeys."""

    session: int
    epoch: int
    body: WorkerBody


@dataclass(frozen=True)
class PiecesArrived:
    """Pieces of chunks of a gradient or of initial weights arrived from a worker; their bytes match their headers.

    A whole chunk is one piece.

    Attributes:
        session: the worker's session.
        header: the first piece's header. Those of the others differ in index, offset and elements; findings are those
            that came with chunk 0.
        pieces: the pieces, of one lease and one plane.
        in_place: whether the payloads stay in memory that the worker shares, and so cost none here until COMMIT.
        arrival: id of the first piece's arrival in the plane that has the payloads; the others' follow it.
    """

    session: int
    header: ChunkHeader
    pieces: Sequence[Piece]
    in_place: bool = False
    arrival: int = 0

    @property
    def arrivals(self) -> range:
        """The ids of the pieces' arrivals."""
        return range(self.arrival, self.arrival + len(self.pieces))


@dataclass(frozen=True)
class MessageRefused:
    """A message about a job is too large to be sent; the job can't go on."""

    job: str
    reason: str


@dataclass(frozen=True)
class Ticked:
    """Some time has passed."""


@dataclass(frozen=True)
class Stopping:
    """The process stops because it was asked to."""


Input = (
    Submitted
    | CancelRequested
    | PauseRequested
    | ResumeRequested
    | PriorityRequested
    | TrustRequested
    | ClusterCheckBegan
    | ClusterCheckEnded
    | MemoryTold
    | OptimizerConnected
    | OptimizerLost
    | FromOptimizer
    | LateCheckpoint
    | WeightsArrived
    | WorkerConnected
    | DataStreamOpened
    | WorkerLost
    | FromWorker
    | PiecesArrived
    | MessageRefused
    | Ticked
    | Stopping
)

# ---- effects ----


@dataclass(frozen=True)
class SaveJob:
    """Write the job's record to disk before any later effect is carried out.

    Attributes:
        job: the record.
    """

    job: Job


@dataclass(frozen=True)
class ToWorker:
    """Send an order on a worker's control stream."""

    session: int
    body: WorkerOrder


@dataclass(frozen=True)
class CloseWorker:
    """Close a worker's streams, with the reason as the status text."""

    session: int
    reason: str


@dataclass(frozen=True)
class ToOptimizer:
    """Send an order on the optimizer's control stream."""

    body: OptimizerOrder


PlaneOrder = (
    plane.KeepPieces
    | plane.DiscardPieces
    | plane.KeepSum
    | plane.DropPieces
    | plane.DropSum
    | plane.MergeSums
    | plane.FinishSum
    | plane.DropSums
    | plane.PassJob
    | plane.SendVersion
)
"""Orders to the planes about payloads that travel between workers and the optimizer (protos/plane.proto)."""


@dataclass(frozen=True)
class StoreWeights:
    """Store the payload that just arrived from the optimizer as this chunk of the newest weights."""

    header: ChunkHeader
    elements: int


class NoticeKind(str, Enum):
    """What the target of a job's `notify` is told of; the value is part of the message."""

    ENDED = "ended"
    FAILED = "failed"
    LOSS_SPIKE = "loss_spike"
    NON_FINITE = "non_finite"
    STALLED = "stalled"
    WORKER_LOST = "worker_lost"
    DISK_LOW = "disk_low"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Note:
    """Publish one line to the job's log and its watchers, and the figures of a step.

    `tells` says what the target of the job's `notify` is told by this line, as far as the core decides that.
    """

    kind: str
    text: str
    job: Job
    grad_norm: float | None = None
    learning_rate: float | None = None
    step_seconds: float | None = None
    split: StepSplit | None = None
    waited_for: str = ""
    tells: NoticeKind | None = None


@dataclass(frozen=True)
class JobBroke:
    """Log an unexpected error of a job's part of the core, and count it against the job.

    Attributes:
        job: the job's id.
        text: the error and what happens next, for people.
        error: the error.
    """

    job: str
    text: str
    error: Exception


@dataclass(frozen=True)
class CheckClosed:
    """Count the outcome of a micro-batch's check in the metrics.

    Attributes:
        job: the job's id.
        outcome: the outcome.
        workers: the workers whose work was found right.
    """

    job: str
    outcome: CheckOutcome
    workers: tuple[str, ...] = ()


Effect = (
    SaveJob | ToWorker | CloseWorker | ToOptimizer | PlaneOrder | StoreWeights | Note | JobBroke | CheckClosed
)


Outbox: TypeAlias = outbox.Outbox[Effect]
"""Effects of one input of the aggregator's core."""
