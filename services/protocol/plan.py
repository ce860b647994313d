"""What the cores need to know of a job: how its steps are counted, nothing of its model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from protos.tensors_pb2 import FLOAT32, GRADIENT, WEIGHTS, ChunkKind, DType

WINDOW_CHUNKS = 8
"""Maximum number of float32 chunks that a worker may send ahead of the finished ones.

With many senders it is fewer: see `TOTAL_WINDOW_CHUNKS`.
"""
TOTAL_WINDOW_CHUNKS = 16
"""How many chunks ahead of the finished ones all leases of a step together may send: what the aggregator keeps is
bounded, however many workers there are."""
MIN_WINDOW_CHUNKS = 1
"""With so many workers the chunks of the others are on their way while one waits for its next."""


@dataclass(frozen=True)
class WireTypes:
    """How a job's tensors travel between workers and aggregator, and weights from the optimizer.

    Attributes:
        gradients: of a worker's sums.
        weights: of every version.
    """

    gradients: DType = FLOAT32
    weights: DType = FLOAT32

    @property
    def gradients_per_float32(self) -> int:
        """How many elements of a gradient travel in the room of one in float32."""
        return 1 if self.gradients == FLOAT32 else 2

    def dtype_of(self, kind: ChunkKind) -> DType:
        """The type of chunks of this kind; initial weights are float32 whatever the job says."""
        return {GRADIENT: self.gradients, WEIGHTS: self.weights}.get(kind, FLOAT32)


@dataclass(frozen=True)
class JobPlan:
    """The shape of a job in steps.

    Attributes:
        steps: updates in all.
        micro_batches: of each step, the leaves of its reduction tree.
        evaluate_every: steps between evaluations; 0: only after the last step.
        checkpoint_every: steps between checkpoints; 0: only after the last step.
        checkpoint_seconds: time after a checkpoint at which the next is due, if it isn't by steps; 0: none.
        stops_without_checkpoint: whether the job fails with the first checkpoint that can't be written.
        exact: whether workers must have the fingerprint of the first one.
        min_workers: with fewer of them no more work is given out.
        wire: how its tensors travel.
        on_non_finite: what becomes of a step whose gradient is not finite: it is skipped, or the job stops.
        verify_fraction: share of the micro-batches whose gradients a second worker computes too.
        on_faulty: when a worker is found faulty, go back to a checkpoint, or on from the step that the job is at.
    """

    steps: int
    micro_batches: int
    evaluate_every: int = 0
    checkpoint_every: int = 0
    checkpoint_seconds: float = 0.0
    stops_without_checkpoint: bool = False
    exact: bool = True
    min_workers: int = 1
    wire: WireTypes = WireTypes()
    on_non_finite: Literal["skip", "stop"] = "skip"
    verify_fraction: float = 0.0
    on_faulty: Literal["go_back", "go_on"] = "go_back"

    def evaluates_at(self, step: int) -> bool:
        """Whether the weights after `step` updates are evaluated."""
        return step == self.steps or (
            step > 0 and self.evaluate_every > 0 and step % self.evaluate_every == 0
        )

    def checkpoints_at(self, step: int) -> bool:
        """Whether the weights after `step` updates become a checkpoint, whatever time has gone by."""
        return step in (0, self.steps) or (self.checkpoint_every > 0 and step % self.checkpoint_every == 0)
