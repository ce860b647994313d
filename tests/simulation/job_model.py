"""What an undisturbed run of a job gives. Payloads of the simulation are small values that can be held against it.

A chunk of weights is one integer. A gradient is a `Sum`: which node of the reduction tree, which chunk, and a key of
the weights (all chunks of them) and the step that it was computed from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from protos.cluster_pb2 import BatchLoss
from services.protocol.plan import JobPlan
from services.tensors.layout import CHUNK_ELEMENTS, Layout
from services.tensors.reduction_tree import Node, children

PARAMETER = "weight"
"""The only one of a job's layout."""
POISON, SICK = "there is no such token", "out of memory"
"""Why leases fail: on every worker, and on one."""


class SimulationFailed(AssertionError):
    """Something that must hold did not."""


def require(condition: object, text: str) -> None:
    """Fail with `text` unless the condition holds (where it happens often, spare the making of the text)."""
    if not condition:
        raise SimulationFailed(text)


class Sum(NamedTuple):
    """The gradient of one chunk, summed over these micro-batches."""

    node: Node
    micro_batches: tuple[int, ...]
    chunk: int
    key: int


def node_sum(node: Node, chunk: int, key: int) -> Sum:
    """What a worker computes."""
    return Sum(node, tuple(range(node.first, node.first + node.count)), chunk, key)


def merged(left: Sum, right: Sum, parent: Node) -> Sum:
    """The sum of two siblings of the same chunk, held to be that; of unlike keys, one that is nobody's."""
    if children(parent) != (left.node, right.node):
        raise SimulationFailed(f"{left} + {right} is not a node of the tree: {parent}")
    if left.chunk != right.chunk:
        raise SimulationFailed(f"added unlike sums: {left} + {right}")
    key = left.key if left.key == right.key else hash((left.key, right.key))
    return Sum(parent, left.micro_batches + right.micro_batches, left.chunk, key)


def key_of(number: int, step: int, weights: tuple[int, ...]) -> int:
    """Names the gradient of a step of job `number` at these weights."""
    return hash((number, step, weights))


def updated(weights: int, key: int) -> int:
    """A chunk of weights after an update with the gradient of that key."""
    return hash((weights, key))


@dataclass
class SimulatedJob:
    """One job, with what must come of it.

    Attributes:
        number: from 0.
        plan: its shape.
        chunks: of its layout.
        evaluation_batches: of its held-out split.
        submitted_seconds: when a person submits it.
        cancelled_seconds: when somebody cancels it; None: never.
        full_disk_at: its checkpoint of that step can't be written; None: all can.
        poisoned_at: the step of which one micro-batch fails on every worker; None: all can be computed.
        keep_last: checkpoints that stay; 0: all.
    """

    number: int
    plan: JobPlan
    chunks: int
    evaluation_batches: int
    submitted_seconds: float
    cancelled_seconds: float | None = None
    full_disk_at: int | None = None
    poisoned_at: int | None = None
    keep_last: int = 0

    def __post_init__(self) -> None:
        self.id = f"job-{self.number}"
        self.elements = self.chunks * CHUNK_ELEMENTS - 1000 * self.number - 1
        self.layout = Layout.build([(PARAMETER, (self.elements,), True, "weight", False)])
        self.layout_json = self.layout.dumps()
        self.applied = [
            hash((self.number, step, 5 + self.number * self.plan.steps)) % 23 != 0
            for step in range(self.plan.steps)
        ]
        self.weights = [tuple(hash((self.number, chunk)) for chunk in range(self.chunks))]
        self.keys: list[int] = []
        for step, applied in enumerate(self.applied):
            before = self.weights[-1]
            key = key_of(self.number, step, before)
            self.keys.append(key)
            self.weights.append(tuple(updated(each, key) for each in before) if applied else before)

    def culprit(self, step: int) -> int | None:
        """The micro-batch of a step whose gradient is not finite."""
        return None if self.applied[step] else hash((self.number, step)) % self.plan.micro_batches

    def poisoned(self, step: int, micro_batches: range) -> bool:
        """Whether these of a step can't be computed."""
        return (
            step == self.poisoned_at and hash((self.number, step)) % self.plan.micro_batches in micro_batches
        )

    @property
    def expected_failure(self) -> str:
        """Some of what is said when the job fails, as it must; empty if it needn't."""
        stops = [step for step, applied in enumerate(self.applied) if not applied]
        stops_at = stops[0] if stops and self.plan.on_non_finite == "stop" else None
        if self.poisoned_at is not None and (stops_at is None or self.poisoned_at <= stops_at):
            return POISON
        if stops_at is None:
            return ""
        return f"micro-batch {self.culprit(stops_at)}, parameter {PARAMETER} (on_non_finite: stop)"

    def loss(self, step: int, micro_batch: int) -> float:
        """Loss of a micro-batch."""
        return (self.keys[step] % 1009) / 7 + micro_batch / 3

    def step_loss(self, step: int) -> float:
        """Mean loss of a step."""
        count = self.plan.micro_batches
        return math.fsum(self.loss(step, index) for index in range(count)) / count

    def batch_loss(self, weights: tuple[int, ...], index: int) -> BatchLoss:
        """Loss of a held-out batch."""
        return BatchLoss(index=index, sum=(hash((weights, index)) % 1009) / 7, tokens=10 + index)

    def validation_loss(self, step: int) -> float:
        """Loss over the held-out split at the weights after `step` updates."""
        losses = [self.batch_loss(self.weights[step], index) for index in range(self.evaluation_batches)]
        return math.fsum(each.sum for each in losses) / sum(each.tokens for each in losses)
