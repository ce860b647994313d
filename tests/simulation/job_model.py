"""The expected results of a job. Payloads of the simulation are small values that can be compared with them.

A chunk of weights is one integer. A gradient is a `Sum`: a node of the reduction tree, a chunk, and a key. The key
identifies the weights (all chunks) and the step from which the gradient was computed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from protos.cluster_pb2 import BatchLoss
from services.pipeline.split import StageRun
from services.protocol.file_refs import make_ref
from services.protocol.plan import EvaluationBatches, JobPlan, ParameterCount
from services.tensors.layout import CHUNK_ELEMENTS, Layout
from services.tensors.reduction_tree import Node, children
from tests.simulation.pipeline_model import SimulatedPipeline

TOKENS = 100
"""Number of tokens in a micro-batch."""
CLUSTER = "0123456789abcdef"
"""Identity of the simulated cluster."""
PARAMETER = "weight"
"""Name of the only parameter of a layout."""
CRASH = "SIGSEGV in layer at model.py:7"
"""Fault that kills a worker."""
POISON, SICK = "there is no such token", "out of memory"
"""Reasons for failed leases: POISON fails on every worker, SICK on one."""


class SimulationFailed(AssertionError):
    """A check of the simulation that failed."""


class InjectedError(Exception):
    """An error that a test makes a core raise."""


def require(condition: object, text: str) -> None:
    """Raise unless the condition is true. Frequent checks should use `if`, which avoids formatting the text."""
    if not condition:
        raise SimulationFailed(text)


class Sum(NamedTuple):
    """Gradient of one chunk, summed over these micro-batches."""

    node: Node
    micro_batches: tuple[int, ...]
    chunk: int
    key: int


def node_sum(node: Node, chunk: int, key: int) -> Sum:
    """Return the sum that a worker computes for a node."""
    return Sum(node, tuple(range(node.first, node.first + node.count)), chunk, key)


def merged(left: Sum, right: Sum, parent: Node) -> Sum:
    """Return the sum of two siblings. Check that they are siblings of one chunk. Unlike keys give an unknown key."""
    if children(parent) != (left.node, right.node):
        raise SimulationFailed(f"{left} + {right} is not a node of the tree: {parent}")
    if left.chunk != right.chunk:
        raise SimulationFailed(f"added unlike sums: {left} + {right}")
    key = join_keys([left.key, right.key])
    return Sum(parent, left.micro_batches + right.micro_batches, left.chunk, key)


def assembled(pieces: Sequence[Sum | int]) -> Sum | int:
    """Return the chunk of which these are all pieces. Check that they are of one node, and that weights are alike."""
    first, *others = pieces
    if isinstance(first, Sum):
        if any(not isinstance(each, Sum) or each[:3] != first[:3] for each in others):
            raise SimulationFailed(f"unlike pieces: {pieces}")
        return first._replace(key=join_keys([each.key for each in pieces if isinstance(each, Sum)]))
    require(all(each == first for each in others), f"unlike pieces: {pieces}")
    return first


def join_keys(keys: Sequence[int]) -> int:
    """Return the key of a sum of gradients with these keys: their own if they are alike, else an unknown one."""
    return keys[0] if len(set(keys)) == 1 else hash(tuple(keys))


def key_of(number: int, step: int, weights: tuple[int, ...]) -> int:
    """Return the key of the gradient of a step at these weights."""
    return hash((number, step, weights))


def updated(weights: int, key: int) -> int:
    """Return a chunk of weights after an update with the gradient of this key."""
    return hash((weights, key))


@dataclass
class SimulatedJob:
    """A job and its expected results.

    Attributes:
        number: number of the job, from 0.
        plan: steps, micro-batches and policies.
        chunks: chunks of its layout.
        evaluation_batches: batches of its held-out split.
        submitted_seconds: time of its submission.
        cancelled_seconds: time at which a user cancels it, or None.
        pauses: times at which a user pauses it, each with its duration.
        priorities: times at which a user changes its priority, each with the new one.
        full_disk_at: step whose checkpoint can't be written, or None.
        poisoned_at: step with a micro-batch that fails on every worker, or None.
        deadly_at: step with a micro-batch that kills every compute process, or None.
        keep_last: number of checkpoints that are kept, or 0 for all.
        earlier: job whose newest checkpoint this one goes on from once it has ended, or None.
        first_step: step that it begins at.
        pipeline: how it is split over workers; None if each of them has the whole model.
    """

    number: int
    plan: JobPlan
    chunks: int
    evaluation_batches: int
    submitted_seconds: float
    cancelled_seconds: float | None = None
    pauses: tuple[tuple[float, float], ...] = ()
    priorities: tuple[tuple[float, int], ...] = ()
    full_disk_at: int | None = None
    poisoned_at: int | None = None
    keep_last: int = 0
    deadly_at: int | None = None
    earlier: SimulatedJob | None = None
    first_step: int = 0
    pipeline: SimulatedPipeline | None = None

    def __post_init__(self) -> None:
        self.id = f"job-{self.number}"
        self.elements = self.chunks * CHUNK_ELEMENTS - 1000 * self.number - 1
        self.plan = replace(self.plan, parameters=ParameterCount(self.elements, ""))
        if (
            hash((self.number, self.evaluation_batches, self.plan.steps)) % 2
        ):  # its submitter could count them
            counted = EvaluationBatches(self.evaluation_batches, "")
            self.plan = replace(self.plan, evaluation_batches=counted)
        self.layout = Layout.build([(PARAMETER, (self.elements,), True, "weight", False)])
        self.layout_ref = make_ref(self.layout.dumps().encode())
        self.applied = [
            hash((self.number, step, 5 + self.number * self.plan.steps)) % 23 != 0
            for step in range(self.plan.steps)
        ]
        self._train(tuple(hash((self.number, chunk)) for chunk in range(self.chunks)))

    @property
    def fewest_workers(self) -> int:
        """Number of workers without which it waits."""
        pipeline = self.pipeline
        rows = 1 if pipeline is None else -(-pipeline.stages // pipeline.most_stages)
        return max(rows, self.plan.min_workers)

    def is_paused_at(self, seconds: float) -> bool:
        """Return whether a user wants it paused at this time."""
        return any(begin <= seconds < begin + lasts for begin, lasts in self.pauses)

    def counts_batches(self, stages: StageRun | None) -> bool:
        """Return whether a worker with these stages, or with the whole model, knows the number of held-out batches."""
        reads_data = stages is None or not stages.first or stages.stop == self.plan.stages
        return reads_data or self.plan.evaluation_batches.known is not None

    def split(self, draw: random.Random, workers: int) -> None:
        """Give the job a pipeline that so many workers suffice for."""
        self.pipeline = SimulatedPipeline.draw(draw, self.elements, workers)
        self.plan = replace(self.plan, stages=self.pipeline.stages)
        if (
            self.poisoned_at is not None
        ):  # The others must be able to go on without the first worker that sees it.
            self.pipeline = replace(self.pipeline, most_stages=self.pipeline.stages)
            self.plan = replace(self.plan, min_workers=1)
            self.poisoned_at = self.poisoned_at if workers > 1 else None

    def begin_at(self, step: int, weights: tuple[int, ...]) -> None:
        """Begin at a step with these weights. What comes before it is never looked at."""
        self.first_step = step
        self._train(weights)

    def _train(self, weights: tuple[int, ...]) -> None:
        """Compute the weights after each step, and the keys of the steps' gradients."""
        self.weights = [weights] * (self.first_step + 1)
        self.keys = [0] * self.first_step
        for step, applied in list(enumerate(self.applied))[self.first_step :]:
            before = self.weights[-1]
            key = key_of(self.number, step, before)
            self.keys.append(key)
            self.weights.append(tuple(updated(each, key) for each in before) if applied else before)

    def culprit(self, step: int) -> int | None:
        """Return the micro-batch of a step whose gradient is not finite, or None."""
        return None if self.applied[step] else hash((self.number, step)) % self.plan.micro_batches

    def poisoned(self, step: int, micro_batches: range) -> bool:
        """Return whether the step's failing micro-batch is among these."""
        return (
            step == self.poisoned_at and hash((self.number, step)) % self.plan.micro_batches in micro_batches
        )

    def deadly(self, step: int, micro_batches: range) -> bool:
        """Return whether the step's micro-batch that kills workers is among these."""
        return step == self.deadly_at and hash((self.number, step)) % self.plan.micro_batches in micro_batches

    @property
    def expected_failure(self) -> str:
        """Part of the text with which the job must fail; empty if it may succeed."""
        stops = [step for step, applied in enumerate(self.applied) if not applied]
        stops_at = stops[0] if stops and self.plan.on_non_finite == "stop" else None
        if self.poisoned_at is not None and (stops_at is None or self.poisoned_at <= stops_at):
            return POISON
        if self.deadly_at is not None and (stops_at is None or self.deadly_at <= stops_at):
            return CRASH
        if stops_at is None:
            return ""
        return f"micro-batch {self.culprit(stops_at)}, parameter {PARAMETER} (on_non_finite: stop)"

    def loss(self, step: int, micro_batch: int) -> float:
        """Return the loss of a micro-batch."""
        return (self.keys[step] % 1009) / 7 + micro_batch / 3

    def count(self, micro_batches: range) -> int:
        """Return how many tokens count in the losses of micro-batches: not the same number in each."""
        return sum(TOKENS - index % 7 for index in micro_batches)

    def step_loss(self, step: int) -> float:
        """Return the mean loss of a step."""
        count = self.plan.micro_batches
        return math.fsum(self.loss(step, index) for index in range(count)) / count

    def batch_loss(self, weights: tuple[int, ...], index: int) -> BatchLoss:
        """Return the loss of a held-out batch."""
        return BatchLoss(index=index, sum=(hash((weights, index)) % 1009) / 7, tokens=10 + index)

    def validation_loss(self, step: int) -> float:
        """Return the loss over the held-out split at the weights after `step` updates."""
        losses = [self.batch_loss(self.weights[step], index) for index in range(self.evaluation_batches)]
        return math.fsum(each.sum for each in losses) / sum(each.tokens for each in losses)
