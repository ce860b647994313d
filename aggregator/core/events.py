"""What goes into the aggregator's core and what comes out of it.

Inputs tell what happened; effects tell the service what to do, in order. Both are plain data, so that a run can be
recorded and replayed (services/runtime/recording.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from protos.cluster_pb2 import Hello
from protos.jobs_pb2 import Job
from protos.tensors_pb2 import ChunkHeader
from services.protocol import outbox
from services.protocol.envelope import OptimizerBody, OptimizerOrder, WorkerBody, WorkerOrder
from services.protocol.plan import JobPlan
from services.tensors.reduction_tree import Node

# ---- inputs ----


@dataclass(frozen=True)
class Submitted:
    """A person submitted a job."""

    job: Job
    spec_json: str
    plan: JobPlan


@dataclass(frozen=True)
class CancelAsked:
    """A person cancels a job."""

    job: str


@dataclass(frozen=True)
class OptimizerConnected:
    """The link to the optimizer is up."""

    name: str


@dataclass(frozen=True)
class OptimizerLost:
    """The link to the optimizer is down."""

    reason: str


@dataclass(frozen=True)
class FromOptimizer:
    """A control message of the optimizer."""

    body: OptimizerBody


@dataclass(frozen=True)
class WeightsArrived:
    """A chunk of weights came from the optimizer."""

    header: ChunkHeader


@dataclass(frozen=True)
class WorkerConnected:
    """A worker opened its control stream; `session` is unique per connection."""

    session: int
    hello: Hello


@dataclass(frozen=True)
class ExchangeOpened:
    """The worker's data stream is up."""

    session: int


@dataclass(frozen=True)
class WorkerLost:
    """One of the worker's streams ended."""

    session: int
    reason: str


@dataclass(frozen=True)
class FromWorker:
    """A control message of a worker, under the epoch that it obeys."""

    session: int
    epoch: int
    body: WorkerBody


@dataclass(frozen=True)
class ChunkArrived:
    """A chunk of a gradient or of initial weights came from a worker; its bytes match its header.

    Attributes:
        session: of the worker.
        header: of the chunk.
        in_place: whether it is read in the worker's own memory, where it stays until the COMMIT and costs none here.
    """

    session: int
    header: ChunkHeader
    in_place: bool = False


@dataclass(frozen=True)
class Ticked:
    """Time went by."""


Input = (
    Submitted
    | CancelAsked
    | OptimizerConnected
    | OptimizerLost
    | FromOptimizer
    | WeightsArrived
    | WorkerConnected
    | ExchangeOpened
    | WorkerLost
    | FromWorker
    | ChunkArrived
    | Ticked
)

# ---- effects ----


@dataclass(frozen=True)
class SaveJob:
    """Put the job on disk before any effect that follows."""

    job: Job
    spec_json: str
    fingerprint: dict[str, str]


@dataclass(frozen=True)
class ToWorker:
    """Send an order on a worker's control stream."""

    session: int
    body: WorkerOrder


@dataclass(frozen=True)
class CloseWorker:
    """End a worker's streams, telling it why."""

    session: int
    reason: str


@dataclass(frozen=True)
class ToOptimizer:
    """Send an order on the optimizer's control stream."""

    body: OptimizerOrder


@dataclass(frozen=True)
class Keep:
    """Keep the payload that just arrived as the sum of `node`."""

    chunk: int
    node: Node


@dataclass(frozen=True)
class Drop:
    """Forget the kept sum of `node`."""

    chunk: int
    node: Node


@dataclass(frozen=True)
class Merge:
    """Add two kept sums into that of their parent."""

    chunk: int
    left: Node
    right: Node
    parent: Node


@dataclass(frozen=True)
class Forward:
    """Send the kept sum of `node` on to the optimizer under this header, and forget it."""

    header: ChunkHeader
    node: Node


@dataclass(frozen=True)
class DropAll:
    """Forget every kept sum."""


SumEffect = Keep | Drop | DropAll | Merge | Forward
"""What is done with payloads on their way up."""


@dataclass(frozen=True)
class StoreWeights:
    """Keep the payload that just arrived from the optimizer as this chunk of the newest weights."""

    header: ChunkHeader
    elements: int


@dataclass(frozen=True)
class Note:
    """Tell people: one line for the job's log and its watchers."""

    kind: str
    text: str
    job: Job
    grad_norm: float | None = None
    learning_rate: float | None = None


@dataclass(frozen=True)
class Verified:
    """A check of a micro-batch is closed: passed, faulty, undecided or abandoned. For the metrics."""

    job: str
    outcome: str


Effect = (
    SaveJob
    | ToWorker
    | CloseWorker
    | ToOptimizer
    | Keep
    | Drop
    | Merge
    | Forward
    | DropAll
    | StoreWeights
    | Note
    | Verified
)


Outbox: TypeAlias = outbox.Outbox[Effect]
"""Effects of one input of the aggregator's core."""
