"""A job as the cores see it: its steps, micro-batches and wire types, but nothing of its model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from protos.tensors_pb2 import FLOAT32, GRADIENT, WEIGHTS, ChunkKind, DType
from services.caps import MOST_PARAMETERS
from services.errors import Refusal

WINDOW_CHUNKS = 8
"""Maximum number of float32 chunks that a worker may send ahead of the finished ones.

With many senders it is fewer: see `TOTAL_WINDOW_CHUNKS`.
"""
TOTAL_WINDOW_CHUNKS = 16
"""Number of chunks that all leases of a step together may send ahead of the finished ones.

It bounds what the aggregator keeps, however many workers there are.
"""
MIN_WINDOW_CHUNKS = 1
"""Minimum window of a lease. With so many senders, chunks of the others arrive while one waits for its next."""
MOST_EVALUATION_BATCHES = 1 << 18
"""Maximum number of held-out batches. The aggregator keeps one loss of each."""
MOST_BATCHES_PER_LEASE = 1 << 14
"""Maximum number of held-out batches of one lease. Their losses take less than 512 KiB of a message."""

MOST_WORKERS = 1 << 16
"""Largest `max_workers` of a job, far above the number of workers that can be connected."""


@dataclass(frozen=True)
class WireTypes:
    """Element types of a job's tensors on the wire.

    Attributes:
        gradients: type of the gradient sums that workers send.
        weights: type of the weights that workers receive.
    """

    gradients: DType = FLOAT32
    weights: DType = FLOAT32

    @property
    def gradients_per_float32(self) -> int:
        """Number of gradient elements on the wire that take the bytes of one float32."""
        return 1 if self.gradients == FLOAT32 else 2

    def dtype_of(self, kind: ChunkKind) -> DType:
        """Return the wire type of a kind of chunk. Initial weights are always float32."""
        return {GRADIENT: self.gradients, WEIGHTS: self.weights}.get(kind, FLOAT32)


@dataclass(frozen=True)
class ParameterCount:
    """Number of parameters of a job's model, to which every layout of the job is held.

    Attributes:
        number: number of parameters, without the padding of a mesh; or their maximum.
        maximum_of: for a maximum, the setting or reason that it follows from; empty for an exact number.
    """

    number: int = MOST_PARAMETERS
    maximum_of: str = "the size of any layout"

    def check(self, elements: int) -> Refusal | None:
        """Return why a layout with so many elements is not of the job's model; None if it may be."""
        if elements == self.number or (self.maximum_of and 0 < elements < self.number):
            return None
        found = f"the layout has {elements} elements, expected"
        if self.maximum_of:
            advice = f"at most {self.number} ({self.maximum_of}); raise that, or correct the model"
        else:
            advice = f"the {self.number} parameters of the job's model; give all hosts the same version of Tiermesh"
        return Refusal(f"{found} {advice}")

    def check_most(self, most: int) -> Refusal | None:
        """Return why an aggregator that takes at most so many parameters can't run the job; None if it can."""
        if self.number <= most:
            return None
        given = (
            f"at most {self.number} parameters ({self.maximum_of})"
            if self.maximum_of
            else f"{self.number} parameters"
        )
        return Refusal(
            f"the job's model has {given}, expected at most {most}; make it smaller, or start the aggregator with a "
            "larger --max-parameters"
        )


@dataclass(frozen=True)
class EvaluationBatches:
    """Number of held-out batches of an evaluation, to which every worker that reads the data is held.

    Attributes:
        number: number of batches, 0 for no evaluation; or their maximum.
        maximum_of: for a maximum, the setting or reason that it follows from; empty for an exact number.
    """

    number: int = MOST_EVALUATION_BATCHES
    maximum_of: str = "the most of any evaluation"

    @property
    def known(self) -> int | None:
        """The exact number; None if only workers can count the tokens."""
        return None if self.maximum_of else self.number

    def check(self, batches: int) -> Refusal | None:
        """Return why so many held-out batches are not those of the job; None if they may be."""
        if batches == self.number or (self.maximum_of and 0 < batches < self.number):
            return None
        expected, fix = f"the job's {self.number}", "give all hosts the same version of Tiermesh"
        if self.maximum_of:
            expected = f"1 to {self.number} ({self.maximum_of})"
            fix = f"raise validation_batch_size, or {fix}"
        return Refusal(f"it has {batches} held-out batches, expected {expected}; {fix}")


@dataclass(frozen=True)
class Schedule:
    """Learning rate, and beta1 of AdamW, over the steps; `ScheduleConfig` (services/config) explains the fields."""

    type: Literal["identity", "warmup_linear", "warmup_cosine", "speedrun", "step"] = "identity"
    total_steps: int = 1000
    warmup_steps: int = 0
    hold_steps: int = 0
    min_lr: float = 0.0
    step_size: int = 1
    gamma: float = 1.0
    beta1_warmup_steps: int = 0
    beta1_start: float = 0.0
    beta1_end: float = 0.0


@dataclass(frozen=True)
class JobPlan:
    """A job's plan: how many steps it has, of what size, and when it evaluates and checkpoints.

    Attributes:
        steps: number of steps of the whole job.
        micro_batches: number of micro-batches per step, the leaves of the reduction tree.
        evaluate_every: number of steps between evaluations; 0 means only after the last step.
        checkpoint_every: number of steps between checkpoints; 0 means only after the last step.
        checkpoint_seconds: longest time between checkpoints, even if none is due by steps; 0 means no limit.
        stops_without_checkpoint: whether the job fails with the first checkpoint that can't be written.
        exact: whether workers must have the fingerprint of the first one.
        min_workers: number of workers below which no work is leased.
        max_workers: number of workers above which it gets no more.
        preemptible: whether jobs of a higher priority may take its workers while it runs.
        priority: priority that it was submitted with; its record has the present one.
        wire: element types of the job's tensors on the wire.
        on_non_finite: action on a step whose gradient is not finite: skip it, or stop the job.
        verify_fraction: share of the micro-batches that a second worker computes again, to compare the gradients.
        on_faulty: action when a worker is found faulty: go back to a checkpoint, or go on from the current step.
        batch_size: number of sequences (or samples) of a micro-batch, for people.
        validation_batch_size: number of those of a held-out batch, for people.
        stages: number of stages of the rows of workers that leases go to; 1 if each worker holds the whole model.
        pipelines: number of such rows that the job's `num_workers` makes; any number of rows computes the same.
        parameters: number of parameters of its model.
        evaluation_batches: number of batches of its evaluations.
        learning_rate: learning rate of its optimizer, before the schedule.
        schedule: learning rate and beta1 over the steps.
        clip_grad_norm: global norm to which gradients are clipped; None: no clipping.
        features: names of the features that its peers must have.
        external: whether processes of users compute its gradients, which join workers for this job alone.
    """

    steps: int
    micro_batches: int
    evaluate_every: int = 0
    checkpoint_every: int = 0
    checkpoint_seconds: float = 0.0
    stops_without_checkpoint: bool = False
    exact: bool = True
    min_workers: int = 1
    max_workers: int = MOST_WORKERS
    preemptible: bool = True
    priority: int = 0
    wire: WireTypes = WireTypes()
    on_non_finite: Literal["skip", "stop"] = "skip"
    verify_fraction: float = 0.0
    on_faulty: Literal["go_back", "go_on"] = "go_back"
    batch_size: int = 1
    validation_batch_size: int = 1
    stages: int = 1
    pipelines: int = 1
    parameters: ParameterCount = ParameterCount()
    evaluation_batches: EvaluationBatches = EvaluationBatches()
    learning_rate: float = 3e-4
    schedule: Schedule = Schedule()
    clip_grad_norm: float | None = None
    features: tuple[str, ...] = ()
    external: bool = False

    def evaluates_at(self, step: int) -> bool:
        """Return whether the weights after `step` updates are evaluated."""
        if self.evaluation_batches.known == 0:
            return False
        return step == self.steps or (
            step > 0 and self.evaluate_every > 0 and step % self.evaluate_every == 0
        )

    def evaluations_after(self, step: int) -> int:
        """Return how many evaluations are due of weights after more than `step` updates."""
        if step >= self.steps or self.evaluation_batches.known == 0:
            return 0
        if not self.evaluate_every:
            return 1
        at_multiples = self.steps // self.evaluate_every - step // self.evaluate_every
        return at_multiples + (self.steps % self.evaluate_every > 0)

    def checkpoints_at(self, step: int) -> bool:
        """Return whether a checkpoint of the weights after `step` updates is due by steps, regardless of time."""
        return step in (0, self.steps) or (self.checkpoint_every > 0 and step % self.checkpoint_every == 0)
