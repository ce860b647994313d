"""What goes into the optimizer's core and what comes out of it. Plain data, so that a run can be recorded."""

from __future__ import annotations

from dataclasses import dataclass, field

from protos.cluster_pb2 import CheckpointWritten, Hello, Void
from protos.tensors_pb2 import ChunkHeader
from services.protocol.envelope import OptimizerBody, OptimizerOrder
from services.protocol.plan import JobPlan

# ---- inputs ----


@dataclass(frozen=True)
class Connected:
    """An aggregator opened the link."""

    hello: Hello


@dataclass(frozen=True)
class Disconnected:
    """The link to the aggregator is down."""


@dataclass(frozen=True)
class Ordered:
    """An order of the aggregator, under its epoch."""

    epoch: int
    body: OptimizerOrder


@dataclass(frozen=True)
class ChunkArrived:
    """A chunk of a step's sum or of initial weights came; its bytes match its header."""

    header: ChunkHeader


@dataclass(frozen=True)
class Loaded:
    """A job has been looked up on disk.

    Attributes:
        job: its id.
        plan: its shape in steps.
        generation: the highest that was ever given out, 0 if none.
        layout_json: of its checkpoint; empty if there is none.
        elements: of that layout.
        checkpoint: the newest complete one, None if there is none.
        notices: what was wrong with newer ones.
    """

    job: str
    plan: JobPlan
    generation: int
    layout_json: str = ""
    elements: int = 0
    checkpoint: CheckpointWritten | None = None
    notices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Allocated:
    """Room for the initial weights has been made."""

    job: str
    layout_json: str
    elements: int


@dataclass(frozen=True)
class Measured:
    """The mean gradient's norm is known.

    Attributes:
        job: its id.
        step: index of the update, from 0.
        norm: global L2 norm.
        finite: whether every element is finite.
        learning_rate: that this step would be made with.
        now_seconds: of a clock that never goes back.
    """

    job: str
    step: int
    norm: float
    finite: bool
    learning_rate: float
    now_seconds: float = 0.0


@dataclass(frozen=True)
class Updated:
    """The weights of one chunk are those after `step` + 1 updates."""

    job: str
    step: int
    chunk: int


@dataclass(frozen=True)
class Saved:
    """A checkpoint is complete on disk."""

    written: CheckpointWritten


@dataclass(frozen=True)
class SaveFailed:
    """A snapshot did not become a checkpoint; those before it are as they were.

    Attributes:
        job: its id.
        generation: of the snapshot.
        step: of the snapshot.
        reason: what went wrong, for people.
    """

    job: str
    generation: int
    step: int
    reason: str


@dataclass(frozen=True)
class OperationFailed:
    """Something that was asked for could not be done."""

    job: str
    reason: str


@dataclass(frozen=True)
class TensorsLost:
    """What the tensors lived in is gone: the job is no longer open, and must be loaded from its newest checkpoint."""


Input = (
    Connected
    | Disconnected
    | Ordered
    | ChunkArrived
    | Loaded
    | Allocated
    | Measured
    | Updated
    | Saved
    | SaveFailed
    | OperationFailed
    | TensorsLost
)

# ---- effects ----


@dataclass(frozen=True)
class Say:
    """Send a message to the aggregator."""

    body: OptimizerBody


@dataclass(frozen=True)
class Refuse:
    """End the link, telling the aggregator why."""

    reason: str


@dataclass(frozen=True)
class Load:
    """Look a job up on disk, but for what is void there, then tell with Loaded (or Broke)."""

    job: str
    spec_json: str
    void: tuple[Void, ...] = ()


@dataclass(frozen=True)
class SaveGeneration:
    """Put the generation on disk before any effect that follows."""

    job: str
    generation: int


@dataclass(frozen=True)
class SaveEpoch:
    """Put the epoch of the aggregator that is obeyed on disk before any effect that follows."""

    epoch: int


@dataclass(frozen=True)
class Allocate:
    """Make room for weights of this layout, then tell with Allocated (or Broke)."""

    job: str
    layout_json: str
    files: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class StoreInitial:
    """Take the payload that just arrived as this chunk of the weights."""

    chunk: int


@dataclass(frozen=True)
class Stage:
    """Take the payload that just arrived as this chunk of the step's sum."""

    chunk: int


@dataclass(frozen=True)
class Unstage:
    """Forget what is staged of the step's sum."""


@dataclass(frozen=True)
class Measure:
    """Measure the staged gradient, then tell with Measured."""

    job: str
    step: int


@dataclass(frozen=True)
class Update:
    """Update all weights, first chunk first, telling with Updated of each.

    Attributes:
        job: its id.
        step: index of the update, from 0.
        applied: False leaves the weights as they are.
        norm: global norm of the mean gradient.
        learning_rate: of this update.
    """

    job: str
    step: int
    applied: bool
    norm: float
    learning_rate: float


@dataclass(frozen=True)
class Snapshot:
    """Copy weights and state as they are, write them as a checkpoint, then tell with Saved or SaveFailed, always.

    The next one is asked for after that answer, so there is one copy at most, however slow the disk is.
    """

    job: str
    generation: int
    step: int


@dataclass(frozen=True)
class DropJob:
    """Forget the job's tensors."""


Effect = (
    Say
    | Refuse
    | Load
    | SaveGeneration
    | SaveEpoch
    | Allocate
    | StoreInitial
    | Stage
    | Unstage
    | Measure
    | Update
    | Snapshot
    | DropJob
)


@dataclass
class Outbox:
    """Collects the effects of one input.

    Attributes:
        connected: whether there is an aggregator to be told anything.
    """

    connected: bool = False
    effects: list[Effect] = field(default_factory=list)

    def put(self, effect: Effect) -> None:
        """Append an effect."""
        self.effects.append(effect)

    def say(self, body: OptimizerBody) -> None:
        """Append a message to the aggregator, if there is one."""
        if self.connected:
            self.put(Say(body))

    def take(self) -> list[Effect]:
        """All effects so far, leaving none."""
        effects, self.effects = self.effects, []
        return effects
