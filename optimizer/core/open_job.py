"""A job that an optimizer has open: its layout, its step, and what its planes have staged and updated. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain

from optimizer.schedules import clip_coefficient, first_moment_decay, learning_rate
from protos import cluster_pb2 as pb
from protos import plane_pb2 as plane
from protos.tensors_pb2 import GRADIENT, INITIAL_WEIGHTS, ChunkHeader, NonFinite
from services.errors import Refusal
from services.protocol.findings import check_count
from services.protocol.plan import JobPlan
from services.tensors.chunk_set import ChunkSet, to_ranges
from services.tensors.layout import chunk_count
from services.tensors.stripes import Stripe


class StagedSums:
    """The newest report on each chunk of a step's sum: the sums of squares of its blocks.

    A step may start over while reports on its chunks are on their way. So a report counts only if no later order to
    stage the same chunk is still without one.
    """

    def __init__(self) -> None:
        self._pending: Counter[int] = Counter()  # by chunk: orders without a report
        self._reports: dict[int, Sequence[float]] = {}

    def note_order(self, chunk: int) -> None:
        """Note that the plane of a chunk is told to stage its sum. What it has reported before is void."""
        self._pending[chunk] += 1
        self._reports.pop(chunk, None)

    def note_report(self, chunk: int, block_sums: Sequence[float]) -> None:
        """Note a plane's report on a chunk, unless a later order makes it void or none asked for it."""
        if self._pending[chunk] == 1:
            self._reports[chunk] = block_sums
        self._pending[chunk] = max(0, self._pending[chunk] - 1)

    def awaits(self, chunks: Iterable[int]) -> bool:
        """Return whether a report on one of these chunks is on its way."""
        return any(self._pending[chunk] for chunk in chunks)

    def take(self, chunks: int) -> list[float] | None:
        """Return the block sums of all chunks and forget them; None if the report on one of `chunks` is missing."""
        if len(self._reports) < chunks:
            return None
        reports, self._reports = self._reports, {}
        return list(chain.from_iterable(reports.values()))

    def clear(self) -> None:
        """Forget the reports; those that are on their way are not expected any less."""
        self._reports.clear()


class OpenJob:
    """State of a job that the optimizer has open.

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
        sums: what planes have reported of the step's sum.
        count: number of tokens (or samples) that count in the losses of the staged sum; it comes with chunk 0.
        deciding: whether all chunks have arrived, and planes' reports on them or the first checkpoint are awaited.
        updated_chunks: number of chunks, from the first, whose weights are those of `step`.
        allocating_layout: hash of the layout for which arrays are being allocated; empty if there is none.
        failure_reason: reason why the job cannot go on; None while it can.
        loaded: checkpoint that was loaded when the job was opened; None if there was none.
        newest_checkpoint: newest checkpoint on disk that counts.
        checkpoint_timer_seconds: start of the time to the next checkpoint, by a monotonic clock; None: not started.
        waits_for_space: whether its next checkpoint waits until the disk, which was full, is tried again.
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
        self.sums = StagedSums()
        self.non_finite: list[NonFinite] = []
        self.count = 0
        self.deciding = False
        self.updated_chunks = 0
        self._updated: Counter[int] = Counter()  # by plane: number of its chunks that are updated
        self.allocating_layout = ""
        self.failure_reason: str | None = None
        self.loaded = self.newest_checkpoint = loaded
        self.waits_for_space = False
        self.checkpoint_timer_seconds: float | None = None
        self.failed_checkpoint_step: int | None = None
        self.closing = False

    def set_layout(self, layout_hash: str, elements: int) -> None:
        """Set the layout's hash, its number of elements and of chunks, after planes have opened the job with it."""
        self.layout_hash, self.elements, self.chunks = layout_hash, elements, chunk_count(elements)
        self.staged, self.sums = ChunkSet(self.chunks), StagedSums()

    def start_training(self, step: int) -> None:
        """Enter TRAINING with complete weights of `step`."""
        self.state, self.step = pb.OptimizerStatus.TRAINING, step
        self.updated_chunks, self.deciding = self.chunks, False
        self.staged.clear()

    def check_chunk(self, header: ChunkHeader) -> Refusal | None:
        """Return why a chunk of this job is stale; None if the job can use it."""
        if self.state == pb.OptimizerStatus.RECEIVING:
            initial = header.kind == INITIAL_WEIGHTS
            return None if initial else Refusal("the chunk is a gradient, but the job has no weights yet")
        if header.kind != GRADIENT or (header.generation, header.step) != (self.generation, self.step):
            return Refusal(
                f"the chunk's kind is {header.kind}, generation {header.generation}, step {header.step}; the job waits "
                f"for gradients of generation {self.generation}, step {self.step}"
            )
        return None if header.index else check_count(header.findings.count, self.plan.micro_batches)

    def commit(self, epoch: int, norm: float) -> tuple[pb.Commit, plane.UpdatePart]:
        """Enter the next step; return the COMMIT of the one before, and the order to make its weights.

        Args:
            epoch: epoch of the aggregator.
            norm: global norm of the mean gradient; the step is skipped if it is not finite.
        """
        finite, plan = math.isfinite(norm), self.plan
        commit = pb.Commit(
            job=self.job,
            generation=self.generation,
            step=self.step,
            applied=finite,
            grad_norm=norm,
            learning_rate=learning_rate(plan.schedule, plan.learning_rate, self.step),
            non_finite=() if finite else self.non_finite,
        )
        update = plane.UpdatePart(
            job=self.job,
            epoch=epoch,
            generation=self.generation,
            step=self.step,
            applied=finite,
            grad_norm=norm,
            learning_rate=commit.learning_rate,
            clip=clip_coefficient(norm, plan.clip_grad_norm),
            beta1=first_moment_decay(plan.schedule, self.step),
        )
        self.step += 1
        self.updated_chunks, self.deciding = 0, False
        self.staged.clear()
        self._updated.clear()
        return commit, update

    def note_updated(self, stripe: Stripe, chunks: int) -> None:
        """Note that a plane has updated the first of its chunks."""
        self._updated[stripe.index] = max(chunks, self._updated[stripe.index])
        firsts = (Stripe(each, stripe.count).to_global(self._updated[each]) for each in range(stripe.count))
        self.updated_chunks = min(self.chunks, *firsts)

    def awaits(self, stripe: Stripe) -> bool:
        """Return whether a report of a plane on its part of a sum or of an update is awaited."""
        if self.state != pb.OptimizerStatus.TRAINING:
            return False
        own = stripe.chunk_indices(self.elements)
        is_updating = self.updated_chunks < self.chunks and self._updated[stripe.index] < len(own)
        return is_updating or self.sums.awaits(own)

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
