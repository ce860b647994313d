"""The state machine of one job: decides when a step happens, and that it happens once. Pure.

It has planes stage a step's sum chunk by chunk. When the sum is complete and measured, it commits the step (apply or
skip), has the master weights updated and streams them back. A job found on disk continues from its newest checkpoint,
under a new generation.
"""

from __future__ import annotations

import math

from optimizer.core import events as ev
from optimizer.core.checkpoint_schedule import CheckpointSchedule
from optimizer.core.open_job import OpenJob, is_void
from optimizer.schedules import gradient_norm
from plane.bookkeeping import AGGREGATOR_SESSION
from protos import cluster_pb2 as pb
from protos import plane_pb2 as plane
from protos.tensors_pb2 import ChunkHeader
from services.errors import Refusal
from services.protocol.envelope import OptimizerOrder
from services.protocol.non_finite import describe_non_finite
from services.protocol.versions import LAST_GENERATION


class JobCore:
    """State machine of one job, from its Open until nothing of it is here.

    Args:
        job: job id.
        epoch: epoch of the aggregator that is obeyed.
        out: outbox for effects.
        checkpoints: schedule of all jobs' checkpoints.

    Attributes:
        job: as above.
        opened: state of the job; None while it is loaded.
        is_over: whether nothing of the job is here, nor comes.
    """

    def __init__(
        self, job: str, *, epoch: int, out: ev.OptimizerOutbox, checkpoints: CheckpointSchedule
    ) -> None:
        self.job = job
        self.opened: OpenJob | None = None
        self.is_over = False
        self._epoch = epoch
        self._out = out
        self._checkpoints = checkpoints
        self._loads = False  # whether the job is to be loaded
        self._load_waits = False  # whether Load waits for the checkpoint of an earlier opening
        self._spec_json = ""
        self._least_generation = 0
        self._void: tuple[pb.Void, ...] = ()
        self._reopen: pb.Open | None = None  # carried out once the job is closed
        self._sends_weights = False  # whether the aggregator has asked for the job's weights

    @property
    def is_loading(self) -> bool:
        """Whether the answer to Load is awaited."""
        return self._loads and not self._load_waits

    # ---- the link ----

    def connect(self, epoch: int) -> None:
        """Tell an aggregator that has connected how far the job is."""
        self._epoch, self._sends_weights = epoch, False
        if self.opened is not None and not self.opened.closing:
            self._send_status()

    def disconnect(self) -> None:
        """Note the loss of the link to the aggregator."""
        self._sends_weights, self._reopen = False, None

    def take_order(self, body: OptimizerOrder) -> None:
        """Carry out an order of the aggregator about this job."""
        match body:
            case pb.Open():
                self._open(body)
            case pb.Initialise():
                self._initialise(body)
            case pb.SendWeights():
                self._send_weights(body)
            case pb.Close():
                self._close(body.checkpoint)
            case pb.SaveCheckpoint():
                self._save_checkpoint()
            case pb.StartOver():
                self._start_over(body)

    def _send_weights(self, order: pb.SendWeights) -> None:
        """Have the requested version made and sent, or the newer one that has replaced it, and every later one."""
        job = self.opened
        if job is None or order.generation != job.generation:
            return
        if job.state != pb.OptimizerStatus.TRAINING:
            return  # it has none
        self._sends_weights = True
        if order.step <= job.step:
            if job.updated_chunks == job.chunks:  # else the update that is under way makes them
                self._out.put(
                    plane.MakeWeights(
                        job=job.job, epoch=self._epoch, generation=job.generation, step=job.step
                    )
                )
            self._send_version(job)

    def _send_version(self, job: OpenJob) -> None:
        """Have a plane that workers don't reach send its weights to the aggregator."""
        self._out.put(
            plane.SendVersion(
                job=job.job, session=AGGREGATOR_SESSION, generation=job.generation, step=job.step
            )
        )

    # ---- opening and closing ----

    def _open(self, order: pb.Open) -> None:
        if self.opened is not None and self.opened.closing:
            self._reopen = order
            return
        self._void = tuple(order.void)
        if self.opened is not None and self.opened.goes_on(order):
            self._send_status()
            return
        self._drop()
        self._least_generation, self._spec_json = order.generation, order.spec_json
        if not self._loads:
            self._load()

    def _load(self) -> None:
        """Have the job looked up on disk, behind a checkpoint of it that is on its way there."""
        self._loads, self._load_waits = True, self._checkpoints.is_writing_job(self.job)
        if not self._load_waits:
            self._out.put(ev.Load(self.job, self._spec_json, self._void))

    def checkpoint_settled(self) -> None:
        """Note that the checkpoint of an earlier opening was written, or has failed."""
        if self._load_waits:
            self._load()

    def close_with_checkpoint(self) -> None:
        """Close the job because the process stops."""
        self._close(checkpoint=True)

    def _close(self, checkpoint: bool) -> None:
        """Close the job; if a checkpoint of its newest weights is wanted and missing, once that is begun."""
        self._reopen = None
        if self.opened is None:
            self._loads, self.is_over = False, True
        elif not self.opened.closing:
            self.opened.closing = True
            self._checkpoints.set_due(self.opened, checkpoint and self._checkpoints.lacks_newest(self.opened))

    def finish_closing(self) -> None:
        """Drop the job if it closes, once its last checkpoint has begun; open it again if that was ordered."""
        job = self.opened
        if job is None or not job.closing or (self._checkpoints.is_due(job) and job.has_unsaved_step):
            return
        if job.newest_checkpoint is not None:
            # It may have been written while no aggregator was connected.
            self._out.send(job.newest_checkpoint)
        self._checkpoints.job_ended(job)
        self._drop()
        order, self._reopen = self._reopen, None
        if order is not None:
            self._open(order)
        else:
            self.is_over = True

    def lose_tensors(self) -> None:
        """Forget the job, whose tensors are gone; the next Open loads it."""
        self._loads, self.is_over = False, True
        self._drop()

    def _drop(self) -> None:
        if self.opened is not None:
            self._checkpoints.set_due(self.opened, False)
            self.opened, self._sends_weights = None, False
            self._out.put(plane.DropPart(job=self.job))

    def loaded(self, event: ev.Loaded) -> None:
        """Begin with what the disk has of the job."""
        if not self.is_loading:
            return
        if is_void(event.checkpoint, self._void):
            self._load()  # the checkpoint was declared void while the disk was searched
            return
        self._loads = False
        generation = self._generation_after(max(event.generation, self._least_generation))
        if generation is None:
            self.is_over = True
            return
        self.opened = job = OpenJob(self.job, event.plan, generation, event.checkpoint)
        self._out.put(ev.SaveGeneration(job.job, job.generation))
        if event.checkpoint is not None:
            job.set_layout(event.layout_hash, event.elements)
            job.start_training(event.checkpoint.step)
        self._send_status()

    def _generation_after(self, generation: int) -> int | None:
        """Return the next generation; None, after a message to the aggregator, if there is none."""
        if generation < LAST_GENERATION:
            return generation + 1
        reason = (
            f"the job needs a generation after {LAST_GENERATION}, which is the last one; either the file "
            "`generation` in the job's checkpoint folder is damaged, or the aggregator's record of the job is"
        )
        self._out.send(pb.Failure(job=self.job, reason=reason))
        return None

    def _send_status(self) -> None:
        job = self.opened
        if job is None:
            return
        self._out.send(job.optimizer_status())
        if job.newest_checkpoint is not None:
            self._out.send(job.newest_checkpoint)
        self._send_failure(job)

    def fail(self, reason: str) -> None:
        """Note that the job can't go on, and tell the aggregator."""
        if self.opened is not None:
            self.opened.failure_reason = reason  # sent again to an aggregator that connects later
            self._send_failure(self.opened)
        elif self.is_loading:
            self._loads, self.is_over = False, True
            self._out.send(pb.Failure(job=self.job, reason=reason))

    def _send_failure(self, job: OpenJob) -> None:
        """Report a failed job, after the outcome of its checkpoint: the aggregator closes the job at once."""
        if job.failure_reason is not None and not self._checkpoints.is_writing(job):
            self._out.send(pb.Failure(job=job.job, reason=job.failure_reason))

    # ---- initial weights ----

    def _initialise(self, order: pb.Initialise) -> None:
        job = self.opened
        if job is None or job.state == pb.OptimizerStatus.TRAINING:
            return
        receiving_them = job.state == pb.OptimizerStatus.RECEIVING and job.layout_hash == order.layout.sha256
        if job.deciding or receiving_them:
            self._send_status()
            return
        if job.allocating_layout == order.layout.sha256:
            return
        job.allocating_layout = order.layout.sha256
        self._out.put(ev.Allocate(order.job, order.layout, dict(order.files)))

    def allocated(self, event: ev.Allocated) -> None:
        """Receive initial weights in the arrays that were allocated."""
        job = self.opened
        if job is None or job.allocating_layout != event.layout_hash:
            return
        job.allocating_layout = ""
        job.set_layout(event.layout_hash, event.elements)
        job.state = pb.OptimizerStatus.RECEIVING
        job.staged.clear()
        self._send_status()

    # ---- a step ----

    def check_chunk(self, header: ChunkHeader) -> Refusal | None:
        """Return why a chunk is stale; None if the job can use it."""
        if self.opened is None or self.opened.closing:
            return Refusal(f"the chunk's job is {header.job!r}, which is not open; open it first")
        return self.opened.check_chunk(header)

    def take_chunks(self, arrived: ev.ChunksArrived) -> None:
        """Have chunks staged; drop those that are stale or repetitions."""
        header, job = arrived.header, self.opened
        if job is None or self.check_chunk(header) or job.deciding or job.allocating_layout:
            return
        chunks = [each for each in arrived.chunks if each < job.chunks and each not in job.staged]
        if not chunks:
            return
        initial = job.state == pb.OptimizerStatus.RECEIVING
        self._out.put(plane.StageChunks(job=job.job, chunks=chunks, initial=initial))
        for chunk in chunks:
            job.staged.add(chunk)
            if not initial:
                job.sums.note_order(chunk)
        if header.index == 0:
            job.non_finite, job.count = list(header.findings.non_finite), header.findings.count
        job.deciding = len(job.staged) == job.chunks
        if job.deciding and initial:
            self._checkpoints.request(job)

    def take_plane_report(self, event: ev.FromPlane) -> None:
        """Commit the step once its sum is staged, and end it once all weights are updated."""
        job, body = self.opened, event.body
        if job is None:
            return
        match body:
            case plane.StagedChunks():
                for each in body.chunks:
                    job.sums.note_report(each.chunk, tuple(each.block_sums))
                block_sums = job.sums.take(job.chunks) if job.deciding and not job.closing else None
                if block_sums is not None:
                    self._commit(job, gradient_norm(block_sums))
            case plane.UpdatedPart() if body.step + 1 == job.step and job.updated_chunks < job.chunks:
                job.note_updated(event.stripe, body.chunks)
                if job.updated_chunks == job.chunks:
                    self._checkpoints.step_completed(job)

    def _commit(self, job: OpenJob, norm: float) -> None:
        if not math.isfinite(norm) and job.plan.on_non_finite == "stop":
            text = describe_non_finite(job.non_finite, job.plan.wire.gradients)
            self.fail(f"step {job.step + 1}: {text} (on_non_finite: stop)")
            return
        commit, update = job.commit(self._epoch, norm)
        self._out.send(commit)
        self._out.put(update)
        if self._sends_weights:
            self._send_version(job)

    # ---- a step that starts over ----

    def _start_over(self, order: pb.StartOver) -> None:
        """Discard the staged sum; the same step is computed again under the next generation."""
        job = self.opened
        if job is None or job.closing or job.state != pb.OptimizerStatus.TRAINING:
            return  # the job ends, or gets a later generation when it is opened
        if order.generation < job.generation:
            self._out.send(job.optimizer_status())
        else:
            self._begin_generation(job)

    def _begin_generation(self, job: OpenJob) -> None:
        generation = self._generation_after(job.generation)
        if generation is None:
            return
        job.generation, job.deciding = generation, False
        job.staged.clear()
        job.sums.clear()
        self._sends_weights = False
        self._out.put(ev.SaveGeneration(job.job, generation))
        self._out.send(job.optimizer_status())

    # ---- checkpoints ----

    def _save_checkpoint(self) -> None:
        """Have the newest weights become a checkpoint in its turn."""
        if self.opened is not None and self._checkpoints.lacks_newest(self.opened):
            self._checkpoints.set_due(self.opened, True)

    def owns(self, generation: int) -> bool:
        """Return whether a checkpoint of the job was taken since it was opened, in this or an earlier generation."""
        return self.opened is not None and self.opened.owns(self.job, generation)

    def saved(self, written: pb.CheckpointWritten) -> None:
        """Note that a checkpoint taken since the job was opened is on disk."""
        job = self.opened
        assert job is not None
        job.newest_checkpoint, job.failed_checkpoint_step = written, None
        if job.state == pb.OptimizerStatus.RECEIVING:
            job.start_training(step=0)
            self._send_status()
        else:
            self._out.send(written)
            self._send_failure(job)

    def save_failed(self, event: ev.SaveFailed) -> None:
        """Note that a checkpoint taken since the job was opened could not be written."""
        job = self.opened
        assert job is not None
        if job.failure_reason is not None:
            self._send_failure(job)
        elif refusal := self._checkpoints.handle_failure(job, event):
            self.fail(refusal.reason)

    def retry(self) -> None:
        """Let the checkpoint that waits for space be tried again."""
        if self.opened is not None:
            self.opened.waits_for_space = False
