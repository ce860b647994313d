"""The job that an optimizer holds: its layout, its step, what of the next one is staged. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from protos import cluster_pb2 as pb
from protos.tensors_pb2 import NonFinite
from services.protocol.plan import JobPlan
from services.tensors.chunk_ranges import to_ranges
from services.tensors.layout import chunk_count


class OpenJob:
    """The job that the optimizer holds."""

    def __init__(self, job: str, plan: JobPlan, generation: int) -> None:
        self.job = job
        self.plan = plan
        self.generation = self.opened_generation = generation
        self.state = pb.OptimizerStatus.EMPTY
        self.step = 0
        self.layout_json = ""
        self.elements = 0
        self.chunks = 0
        self.staged: set[int] = set()
        self.non_finite: list[NonFinite] = []  # of the micro-batches whose sum is staged; told with chunk 0
        self.deciding = False
        self.void = False  # what is being decided is to be forgotten: the step starts over
        self.updated = 0  # chunks whose weights are those of `step`
        self.allocating = ""  # the layout that room is being made for
        self.broken = ""  # why the job can't go on here
        self.newest_checkpoint: pb.CheckpointWritten | None = None
        self.due = False  # a checkpoint is to be made as soon as the weights rest and the disk is free
        self.counting_since_seconds: float | None = None  # the minutes to the next checkpoint
        self.failed_step: int | None = None  # whose checkpoint could not be written, at the newest attempt

    def take_layout(self, layout_json: str, elements: int) -> None:
        """The layout is known."""
        self.layout_json, self.elements, self.chunks = layout_json, elements, chunk_count(elements)

    def counts(self, void: Iterable[pb.Void]) -> bool:
        """Whether nothing that a faulty worker did is in it, or it went back since."""
        return all(each.generation < self.generation for each in void)

    def made(self, job: str, generation: int) -> bool:
        """Whether what was made of a job under a generation is this one's: a step that starts over undoes none."""
        return job == self.job and self.opened_generation <= generation <= self.generation

    @property
    def rests(self) -> bool:
        """Whether the weights are those of one step, all of them."""
        return self.deciding if self.state == pb.OptimizerStatus.RECEIVING else self.updated == self.chunks

    def optimizer_status(self) -> pb.OptimizerStatus:
        """Where the job stands, and what is missing of what comes in now."""
        missing = [] if self.deciding else [each for each in range(self.chunks) if each not in self.staged]
        return pb.OptimizerStatus(
            job=self.job,
            state=self.state,
            generation=self.generation,
            step=self.step,
            layout_json=self.layout_json,
            missing=to_ranges(missing),
        )


def is_void(checkpoint: pb.CheckpointWritten | None, void: Iterable[pb.Void]) -> bool:
    """Whether a checkpoint is one of those that do not count."""
    return checkpoint is not None and any(
        checkpoint.generation <= each.generation and checkpoint.step > each.step for each in void
    )
