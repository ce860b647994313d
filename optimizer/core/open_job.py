"""The job that an optimizer has open: its layout, its step, and the chunks staged for the next step. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from protos import cluster_pb2 as pb
from protos.tensors_pb2 import NonFinite
from services.protocol.plan import JobPlan
from services.tensors.chunk_set import ChunkSet, to_ranges
from services.tensors.layout import chunk_count


class OpenJob:
    """State of the job that the optimizer has open.

    Args:
        job: job id.
        plan: shape of the job in steps.
        generation: generation under which the job was opened.
        loaded: checkpoint that was loaded; None if there was none.

    Attributes:
        opened_generation: generation under which the job was opened; `generation` rises when a step starts over.
        state: EMPTY without weights, RECEIVING while initial weights arrive, TRAINING from then on.
        step: number of updates that made the newest weights.
        staged: chunks of the step's sum, or of the initial weights, that have arrived.
        non_finite: micro-batches of the staged sum whose own gradient is not finite; they come with chunk 0.
        count: number of tokens (or samples) that count in the losses of the staged sum; it comes with chunk 0.
        deciding: whether all chunks are staged, and the measurement or the first checkpoint is awaited.
        starts_over: whether the step starts over as soon as its measurement has come.
        updated_chunks: number of chunks whose weights are those of `step`.
        allocating_layout: hash of the layout for which arrays are being allocated; empty if there is none.
        failure_reason: reason why the job cannot go on; None while it can.
        loaded: checkpoint that was loaded when the job was opened; None if there was none.
        newest_checkpoint: newest checkpoint on disk that counts.
        checkpoint_due: whether a snapshot is to be taken as soon as the weights and the disk allow it.
        checkpoint_timer_seconds: start of the time to the next checkpoint, by a monotonic clock; None: not started.
        failed_checkpoint_step: step of the newest checkpoint if it could not be written.
        closing: whether the job ends as soon as the checkpoint that is due has been begun.
    """

    def __init__(
        self, job: str, plan: JobPlan, generation: int, loaded: pb.CheckpointWritten | None = None
    ) -> None:
        self.job = job
        self.plan = plan
        self.generation = self.opened_generation = generation
        self.state: pb.OptimizerStatus.State = pb.OptimizerStatus.EMPTY
        self.step = 0
        self.layout_hash = ""
        self.elements = 0
        self.chunks = 0
        self.staged = ChunkSet(0)
        self.non_finite: list[NonFinite] = []
        self.count = 0
        self.deciding = False
        self.starts_over = False
        self.updated_chunks = 0
        self.allocating_layout = ""
        self.failure_reason: str | None = None
        self.loaded = self.newest_checkpoint = loaded
        self.checkpoint_due = False
        self.checkpoint_timer_seconds: float | None = None
        self.failed_checkpoint_step: int | None = None
        self.closing = False

    def set_layout(self, layout_hash: str, elements: int) -> None:
        """Set the layout's hash, its number of elements and of chunks."""
        self.layout_hash, self.elements, self.chunks = layout_hash, elements, chunk_count(elements)
        self.staged = ChunkSet(self.chunks)

    def start_training(self, step: int) -> None:
        """Enter TRAINING with complete weights of `step`."""
        self.state, self.step = pb.OptimizerStatus.TRAINING, step
        self.updated_chunks, self.deciding = self.chunks, False
        self.staged.clear()

    def goes_on(self, order: pb.Open) -> bool:
        """Return whether the aggregator that opens this job can go on with what is in memory.

        It can't if what was declared void may be in it: made since the job was opened, or loaded then. It can't either
        if the job has reached a later generation at another optimizer, which runs on a copy of the state dir.
        """
        made_since = any(each.generation >= self.opened_generation for each in order.void)
        return order.generation <= self.generation and not (made_since or is_void(self.loaded, order.void))

    def owns(self, job: str, generation: int) -> bool:
        """Return whether a checkpoint was taken since this job was opened, in this or an earlier generation."""
        return job == self.job and self.opened_generation <= generation <= self.generation

    @property
    def has_unsaved_step(self) -> bool:
        """Whether a step was committed since the newest checkpoint."""
        newest = self.newest_checkpoint
        if self.state != pb.OptimizerStatus.TRAINING or self.failure_reason is not None:
            return False
        return newest is None or newest.step < self.step

    @property
    def is_consistent(self) -> bool:
        """Whether all weights are there and are those of one step, so that a snapshot can be taken."""
        if self.state == pb.OptimizerStatus.RECEIVING:
            return self.deciding
        return self.updated_chunks == self.chunks

    def optimizer_status(self) -> pb.OptimizerStatus:
        """Return the job's state, with the chunks that are missing of the step's sum or of the initial weights.

        If there are very many gaps, chunks between them are named too; they come again and are dropped.
        """
        missing = [] if self.deciding else to_ranges(self.staged.gaps())
        return pb.OptimizerStatus(
            job=self.job,
            state=self.state,
            generation=self.generation,
            step=self.step,
            layout_hash=self.layout_hash,
            elements=self.elements,
            missing=missing,
        )


def is_void(checkpoint: pb.CheckpointWritten | None, void: Iterable[pb.Void]) -> bool:
    """Return whether a checkpoint was declared void: it may contain the work of a faulty worker or of replaced code."""
    return checkpoint is not None and any(
        checkpoint.generation <= each.generation
        and (checkpoint.step > each.step or not each.HasField("step"))
        for each in void
    )
