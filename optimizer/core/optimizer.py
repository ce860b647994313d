"""The optimizer's state machine: decides when a step happens, and that it happens once. Pure.

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
from protos import cluster_pb2 as pb
from protos import plane_pb2 as plane
from protos.tensors_pb2 import ChunkHeader
from services.errors import Refusal
from services.protocol.envelope import OptimizerOrder
from services.protocol.hello import HelloExpectations, HelloRefusal, Role, check_hello
from services.protocol.non_finite import describe_non_finite
from services.protocol.versions import LAST_GENERATION
from services.tensors.stripes import Stripe


class OptimizerCore:
    """State machine of one optimizer process.

    Args:
        name: name of the optimizer.
        epoch: highest epoch that an earlier process of this optimizer obeyed.

    Attributes:
        epoch: epoch of the aggregator that is obeyed.
        open_job: job that is open; None if there is none.
    """

    def __init__(self, *, name: str, epoch: int = 0) -> None:
        self.name = name
        self.epoch = epoch
        self.open_job: OpenJob | None = None
        self._loading_job = ""  # job whose Loaded is awaited
        self._spec_json = ""  # spec of that job
        self._least_generation = 0
        self._void: tuple[pb.Void, ...] = ()  # void checkpoints of the job that is loading or open
        self._next_open: pb.Open | None = None  # carried out once the job before it is closed
        self._sends_weights = False  # whether the aggregator has asked for the open job's weights
        self._out = ev.OptimizerOutbox()
        self._checkpoints = CheckpointSchedule(self._out)

    def expected_elements(self, job: str) -> int | None:
        """Return the number of elements of the job's layout; None if it is not open or its layout is unknown."""
        if self.open_job is None or self.open_job.job != job:
            return None
        return self.open_job.elements or None

    @property
    def current_job(self) -> str:
        """The job that is open or loading; empty if there is none."""
        return self.open_job.job if self.open_job is not None else self._loading_job

    @property
    def is_idle(self) -> bool:
        """Whether no job is open and no checkpoint is being written."""
        return not self.current_job and not self._checkpoints.writes

    def awaits_plane(self, stripe: Stripe) -> bool:
        """Return whether a plane's report on its part of a step is awaited."""
        return self.open_job is not None and self.open_job.awaits(stripe)

    def is_loading(self, job: str) -> bool:
        """Return whether the answer to this job's Load is awaited."""
        return bool(job) and self._loading_job == job

    def handle(self, event: ev.Input) -> list[ev.Effect]:
        """Take one input and return its effects, in the order in which they must be carried out."""
        match event:
            case ev.ChunkArrived():
                self._chunk(event.header)
            case ev.FromPlane():
                self._checkpoints.now_seconds = event.now_seconds
                self._plane_reported(event)
            case ev.Ordered() if event.epoch == self.epoch:
                self._handle_order(event.body)
            case ev.Saved():
                self._saved(event.written)
            case ev.SaveFailed():
                self._save_failed(event)
            case ev.RetryDue():
                self._checkpoints.retry(self.open_job)
            case ev.Loaded():
                self._loaded(event)
            case ev.Allocated():
                self._allocated(event)
            case ev.Connected():
                self._connect(event.hello)
            case ev.Disconnected():
                self._out.connected, self._sends_weights, self._next_open = False, False, None
            case ev.OperationFailed():
                self._operation_failed(event)
            case ev.TensorsLost():
                self._loading_job = ""
                self._drop()
            case ev.Stopping():
                self._next_open = None
                self._close(pb.Close(job=self.current_job, checkpoint=True))
        self._finish_closing()
        return self._out.take()

    # ---- the link ----

    def check_hello(self, hello: pb.Hello) -> HelloRefusal | None:
        """Return why this aggregator is refused; None if it is accepted."""
        return check_hello(hello, HelloExpectations("optimizer", Role.AGGREGATOR, self.epoch))

    def _connect(self, hello: pb.Hello) -> None:
        refusal = self.check_hello(hello)
        if refusal is not None:
            self._out.put(ev.Refuse(refusal.reason))
            return
        if hello.epoch_seen > self.epoch:
            self._out.put(ev.SaveEpoch(hello.epoch_seen))
        self.epoch, self._out.connected, self._sends_weights = hello.epoch_seen, True, False

    def _handle_order(self, body: OptimizerOrder) -> None:
        match body:
            case pb.Open():
                self._open(body)
            case pb.Initialise():
                self._initialise(body)
            case pb.SendWeights():
                self._send_weights(body)
            case pb.Close():
                self._close(body)
            case pb.StartOver():
                self._start_over(body)

    def _send_weights(self, order: pb.SendWeights) -> None:
        """Have the requested version made and sent, or the newer one that has replaced it, and every later one."""
        job = self.open_job
        if job is None or (order.job, order.generation) != (job.job, job.generation):
            return
        if job.state != pb.OptimizerStatus.TRAINING:
            return  # it has none
        self._sends_weights = True
        if order.step <= job.step:
            if job.updated_chunks == job.chunks:  # else the update that is under way makes them
                self._out.put(
                    plane.MakeWeights(job=job.job, epoch=self.epoch, generation=job.generation, step=job.step)
                )
            self._send_version(job)

    def _send_version(self, job: OpenJob) -> None:
        """Have a plane that workers don't reach send its weights to the aggregator."""
        self._out.put(
            plane.SendVersion(
                job=job.job, session=ev.AGGREGATOR_SESSION, generation=job.generation, step=job.step
            )
        )

    # ---- opening a job ----

    def _open(self, order: pb.Open) -> None:
        job = self.open_job
        if job is not None and (job.closing or job.job != order.job):
            self._next_open = order
            self._leave(job, keep_weights=True)  # its Close got lost, or came already
            return
        self._void = tuple(order.void)
        if job is not None and job.goes_on(order):
            self._send_status()
            return
        self._drop()
        self._least_generation, self._spec_json = order.generation, order.spec_json
        if self._loading_job != order.job:
            self._load(order.job)

    def _load(self, job: str) -> None:
        self._loading_job = job
        self._out.put(ev.Load(job, self._spec_json, self._void))

    def _close(self, order: pb.Close) -> None:
        if self._loading_job == order.job:
            self._loading_job = ""
        if self._next_open is not None and self._next_open.job == order.job:
            self._next_open = None
        if self.open_job is not None and self.open_job.job == order.job:
            self._leave(self.open_job, keep_weights=order.checkpoint)

    def _leave(self, job: OpenJob, *, keep_weights: bool) -> None:
        """Close the open job; if a checkpoint of its newest weights is wanted and missing, once that is begun."""
        if job.closing:
            return
        job.closing = True
        job.checkpoint_due = (
            keep_weights and job.has_unsaved_step and not self._checkpoints.writes_newest(job)
        )
        self._checkpoints.start_if_possible(job)

    def _finish_closing(self) -> None:
        """Drop the job that closes, unless its last checkpoint waits for the one before it; open the next job."""
        job = self.open_job
        if job is not None and job.closing and not (job.checkpoint_due and job.has_unsaved_step):
            if job.newest_checkpoint is not None:
                # It may have been written while no aggregator was connected.
                self._out.send(job.newest_checkpoint)
            self._checkpoints.job_ended(job)
            self._drop()
        if self._next_open is not None and self.open_job is None:
            order, self._next_open = self._next_open, None
            self._open(order)

    def _drop(self) -> None:
        if self.open_job is not None:
            self._out.put(plane.DropPart(job=self.open_job.job))
            self.open_job, self._sends_weights = None, False

    def _loaded(self, event: ev.Loaded) -> None:
        if event.job != self._loading_job:
            return
        if is_void(event.checkpoint, self._void):
            self._load(event.job)  # the checkpoint was declared void while the disk was searched
            return
        self._loading_job = ""
        generation = self._generation_after(event.job, max(event.generation, self._least_generation))
        if generation is None:
            return
        job = OpenJob(event.job, event.plan, generation, event.checkpoint)
        self._out.put(ev.SaveGeneration(job.job, job.generation))
        self.open_job = job
        if event.checkpoint is not None:
            job.set_layout(event.layout_hash, event.elements)
            job.start_training(event.checkpoint.step)
        self._send_status()

    def _generation_after(self, job: str, generation: int) -> int | None:
        """Return the next generation; None, after a message to the aggregator, if there is none."""
        if generation < LAST_GENERATION:
            return generation + 1
        reason = (
            f"the job needs a generation after {LAST_GENERATION}, which is the last one; either the file "
            "`generation` in the job's checkpoint folder is damaged, or the aggregator's record of the job is"
        )
        self._out.send(pb.Failure(job=job, reason=reason))
        return None

    def _send_status(self) -> None:
        job = self.open_job
        if job is None:
            return
        self._out.send(job.optimizer_status())
        if job.newest_checkpoint is not None:
            self._out.send(job.newest_checkpoint)
        self._send_failure(job)

    def _operation_failed(self, event: ev.OperationFailed) -> None:
        if event.job == self._loading_job:
            self._loading_job = ""
        job = self.open_job
        if job is not None and job.job == event.job:
            job.failure_reason = event.reason  # sent again to an aggregator that connects later
            self._send_failure(job)
        else:
            self._out.send(pb.Failure(job=event.job, reason=event.reason))

    def _send_failure(self, job: OpenJob) -> None:
        """Report a failed job, after the outcome of its checkpoint: the aggregator closes the job at once."""
        if job.failure_reason is not None and not self._checkpoints.is_writing(job):
            self._out.send(pb.Failure(job=job.job, reason=job.failure_reason))

    # ---- initial weights ----

    def _initialise(self, order: pb.Initialise) -> None:
        job = self.open_job
        if job is None or job.job != order.job or job.state == pb.OptimizerStatus.TRAINING:
            return
        receiving_them = job.state == pb.OptimizerStatus.RECEIVING and job.layout_hash == order.layout.sha256
        if job.deciding or receiving_them:
            self._send_status()
            return
        if job.allocating_layout == order.layout.sha256:
            return
        job.allocating_layout = order.layout.sha256
        self._out.put(ev.Allocate(order.job, order.layout, dict(order.files)))

    def _allocated(self, event: ev.Allocated) -> None:
        job = self.open_job
        if job is None or (job.job, job.allocating_layout) != (event.job, event.layout_hash):
            return
        job.allocating_layout = ""
        job.set_layout(event.layout_hash, event.elements)
        job.state = pb.OptimizerStatus.RECEIVING
        job.staged.clear()
        self._send_status()

    # ---- a step ----

    def check_chunk(self, header: ChunkHeader) -> Refusal | None:
        """Return why a chunk is stale; None if the open job can use it."""
        job = self.open_job
        if header.epoch != self.epoch:
            return Refusal(f"the chunk's epoch is {header.epoch}, this optimizer obeys epoch {self.epoch}")
        if job is None or job.closing or header.job != job.job:
            return Refusal(f"the chunk's job is {header.job!r}, the open job is {job.job if job else 'none'}")
        return job.check_chunk(header)

    def _chunk(self, header: ChunkHeader) -> None:
        """Have a chunk staged; drop it if it is stale or a repetition."""
        job = self.open_job
        if job is None or self.check_chunk(header) or job.deciding or job.allocating_layout:
            return
        if header.index >= job.chunks or header.index in job.staged:
            return
        initial = job.state == pb.OptimizerStatus.RECEIVING
        self._out.put(plane.StageChunk(job=job.job, chunk=header.index, initial=initial))
        job.staged.add(header.index)
        if not initial:
            job.sums.note_order(header.index)
        if header.index == 0:
            job.non_finite, job.count = list(header.findings.non_finite), header.findings.count
        job.deciding = len(job.staged) == job.chunks
        if job.deciding and initial:
            self._checkpoints.request(job)

    def _plane_reported(self, event: ev.FromPlane) -> None:
        """Commit the step once its sum is staged, and end it once all weights are updated."""
        job, body = self.open_job, event.body
        if job is None or body.job != job.job:
            return
        match body:
            case plane.StagedChunk():
                job.sums.note_report(body.chunk, tuple(body.block_sums))
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
            reason = f"step {job.step + 1}: {text} (on_non_finite: stop)"
            self._operation_failed(ev.OperationFailed(job.job, reason))
            return
        commit, update = job.commit(self.epoch, norm)
        self._out.send(commit)
        self._out.put(update)
        if self._sends_weights:
            self._send_version(job)

    # ---- a step that starts over ----

    def _start_over(self, order: pb.StartOver) -> None:
        """Discard the staged sum; the same step is computed again under the next generation."""
        job = self.open_job
        if job is None or job.closing or job.job != order.job or job.state != pb.OptimizerStatus.TRAINING:
            return  # the job ends, or gets a later generation when it is opened
        if order.generation < job.generation:
            self._out.send(job.optimizer_status())
        else:
            self._begin_generation(job)

    def _begin_generation(self, job: OpenJob) -> None:
        generation = self._generation_after(job.job, job.generation)
        if generation is None:
            return
        job.generation, job.deciding = generation, False
        job.staged.clear()
        job.sums.clear()
        self._sends_weights = False
        self._out.put(ev.SaveGeneration(job.job, generation))
        self._out.send(job.optimizer_status())

    # ---- checkpoints ----

    def _saved(self, written: pb.CheckpointWritten) -> None:
        job_ended = self._checkpoints.finish(written)
        job = self.open_job
        if job is not None and job.owns(written.job, written.generation):
            job.newest_checkpoint, job.failed_checkpoint_step = written, None
            if job.state == pb.OptimizerStatus.RECEIVING:
                job.start_training(step=0)
                self._send_status()
            else:
                self._out.send(written)
                self._send_failure(job)
        elif job_ended:
            self._out.send(written)
        self._checkpoints.start_if_possible(job)

    def _save_failed(self, event: ev.SaveFailed) -> None:
        job_ended = self._checkpoints.finish(event)
        job = self.open_job
        if job is not None and job.owns(event.job, event.generation):
            if job.failure_reason is not None:
                self._send_failure(job)
            elif refusal := self._checkpoints.handle_failure(job, event):
                self._operation_failed(ev.OperationFailed(job.job, refusal.reason))
        elif job_ended:
            self._out.send(
                pb.CheckpointMissed(
                    job=event.job, generation=event.generation, step=event.step, reason=event.reason
                )
            )
        self._checkpoints.start_if_possible(job)
