"""The optimizer's state machine: decides when a step happens, and that it happens once. Pure.

It stages a step's sum chunk by chunk. When the sum is complete and measured, it commits the step (apply or skip),
has the master weights updated and streams them back. A job found on disk continues from its newest checkpoint, under a
new generation.
"""

from __future__ import annotations

from optimizer.core.checkpoint_schedule import CheckpointSchedule
from optimizer.core.events import (
    Allocate,
    Allocated,
    ChunkArrived,
    Connected,
    Disconnected,
    DropJob,
    Effect,
    Input,
    Load,
    Loaded,
    Measure,
    Measured,
    OperationFailed,
    OptimizerOutbox,
    Ordered,
    Refuse,
    RetryDue,
    Saved,
    SaveEpoch,
    SaveFailed,
    SaveGeneration,
    Stage,
    Stopping,
    StoreInitial,
    TensorsLost,
    Unstage,
    Update,
    Updated,
)
from optimizer.core.open_job import OpenJob, is_void
from protos import cluster_pb2 as pb
from protos.tensors_pb2 import GRADIENT, INITIAL_WEIGHTS, WEIGHTS, ChunkHeader
from services.errors import Refusal
from services.protocol.findings import check_count
from services.protocol.hello import HelloExpectations, HelloRefusal, Role, check_hello
from services.protocol.non_finite import describe_non_finite
from services.protocol.versions import LAST_GENERATION
from services.tensors.layout import chunk_range


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
        self._to_send: int | None = (
            None  # next chunk of weights to stream; None until the aggregator asks for weights
        )
        self._out = OptimizerOutbox()
        self._checkpoints = CheckpointSchedule(self._out)

    def next_weights(self) -> ChunkHeader | None:
        """Return the header of the next chunk of weights to stream and count it as sent; None: nothing to send yet."""
        job = self.open_job
        if job is None or self._to_send is None or self._to_send >= job.updated_chunks:
            return None
        chunk = self._to_send
        self._to_send += 1
        start, stop = chunk_range(job.elements, chunk)
        return ChunkHeader(
            job=job.job,
            epoch=self.epoch,
            generation=job.generation,
            step=job.step,
            kind=WEIGHTS,
            index=chunk,
            offset=start,
            elements=stop - start,
            dtype=job.plan.wire.weights,
        )

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

    def is_loading(self, job: str) -> bool:
        """Return whether the answer to this job's Load is awaited."""
        return bool(job) and self._loading_job == job

    def handle(self, event: Input) -> list[Effect]:
        """Take one input and return its effects, in the order in which they must be carried out."""
        match event:
            case ChunkArrived():
                self._chunk(event.header)
            case Updated():
                self._updated(event)
            case Ordered():
                if event.epoch == self.epoch:
                    self._handle_order(event)
            case Measured():
                self._checkpoints.now_seconds = event.now_seconds
                self._commit(event)
            case Saved():
                self._saved(event.written)
            case SaveFailed():
                self._save_failed(event)
            case RetryDue():
                self._checkpoints.retry(self.open_job)
            case Loaded():
                self._loaded(event)
            case Allocated():
                self._allocated(event)
            case Connected():
                self._connect(event.hello)
            case Disconnected():
                self._out.connected, self._to_send, self._next_open = False, None, None
            case OperationFailed():
                self._operation_failed(event)
            case TensorsLost():
                self._loading_job = ""
                self._drop()
            case Stopping():
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
            self._out.put(Refuse(refusal.reason))
            return
        if hello.epoch_seen > self.epoch:
            self._out.put(SaveEpoch(hello.epoch_seen))
        self.epoch, self._out.connected, self._to_send = hello.epoch_seen, True, None

    def _handle_order(self, event: Ordered) -> None:
        body = event.body
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
        """Stream the requested version, or the newer one that has replaced it, and every later version."""
        job = self.open_job
        if job is not None and (order.job, order.generation) == (job.job, job.generation):
            self._to_send = 0 if order.step <= job.step else job.chunks

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
        self._out.put(Load(job, self._spec_json, self._void))

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
                self._out.send(
                    job.newest_checkpoint
                )  # it may have been written while no aggregator was connected
            self._checkpoints.job_ended(job)
            self._drop()
        if self._next_open is not None and self.open_job is None:
            order, self._next_open = self._next_open, None
            self._open(order)

    def _drop(self) -> None:
        if self.open_job is not None:
            self.open_job, self._to_send = None, None
            self._out.put(DropJob())

    def _loaded(self, event: Loaded) -> None:
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
        self._out.put(SaveGeneration(job.job, job.generation))
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

    def _operation_failed(self, event: OperationFailed) -> None:
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
        self._out.put(Allocate(order.job, order.layout, dict(order.files)))

    def _allocated(self, event: Allocated) -> None:
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
        if job.state == pb.OptimizerStatus.RECEIVING:
            initial = header.kind == INITIAL_WEIGHTS
            return None if initial else Refusal("the chunk is a gradient, but the job has no weights yet")
        if header.kind != GRADIENT or (header.generation, header.step) != (job.generation, job.step):
            return Refusal(
                f"the chunk's kind is {header.kind}, generation {header.generation}, step {header.step}; the job waits "
                f"for gradients of generation {job.generation}, step {job.step}"
            )
        return None if header.index else check_count(header.findings.count, job.plan.micro_batches)

    def _chunk(self, header: ChunkHeader) -> None:
        """Stage a chunk; drop it if it is stale or a repetition."""
        job = self.open_job
        if job is None or self.check_chunk(header) or job.deciding or job.allocating_layout:
            return
        if header.index >= job.chunks or header.index in job.staged:
            return
        initial = job.state == pb.OptimizerStatus.RECEIVING
        self._out.put(StoreInitial(header.index) if initial else Stage(header.index))
        job.staged.add(header.index)
        if header.index == 0:
            job.non_finite, job.count = list(header.findings.non_finite), header.findings.count
        if len(job.staged) < job.chunks:
            return
        job.deciding = True
        if initial:
            self._checkpoints.request(job)
        else:
            self._out.put(Measure(job.job, job.step))

    def _commit(self, event: Measured) -> None:
        job = self.open_job
        if job is None or (event.job, event.step) != (job.job, job.step) or not job.deciding:
            return
        if job.closing:
            return  # its open step is dropped
        if job.state != pb.OptimizerStatus.TRAINING:
            return  # it is about weights that were dropped since, and the first checkpoint is awaited
        if job.starts_over:
            self._begin_generation(job)
            return
        if not event.finite and job.plan.on_non_finite == "stop":
            text = describe_non_finite(job.non_finite, job.plan.wire.gradients)
            reason = f"step {job.step + 1}: {text} (on_non_finite: stop)"
            self._operation_failed(OperationFailed(job.job, reason))
            return
        self._out.send(
            pb.Commit(
                job=job.job,
                generation=job.generation,
                step=job.step,
                applied=event.finite,
                grad_norm=event.norm,
                learning_rate=event.learning_rate,
                non_finite=() if event.finite else job.non_finite,
            )
        )
        self._out.put(Update(job.job, job.step, event.finite, event.norm, event.learning_rate))
        job.step += 1
        job.updated_chunks, job.deciding = 0, False
        job.staged.clear()
        if self._to_send is not None:
            self._to_send = 0

    def _updated(self, event: Updated) -> None:
        job = self.open_job
        if job is None or (event.job, event.step + 1, event.chunk) != (job.job, job.step, job.updated_chunks):
            return
        job.updated_chunks += 1
        if job.updated_chunks == job.chunks:
            self._checkpoints.step_completed(job)

    # ---- a step that starts over ----

    def _start_over(self, order: pb.StartOver) -> None:
        """Discard the staged sum; the same step is computed again under the next generation."""
        job = self.open_job
        if job is None or job.closing or job.job != order.job or job.state != pb.OptimizerStatus.TRAINING:
            return  # the job ends, or gets a later generation when it is opened
        if order.generation < job.generation:
            self._out.send(job.optimizer_status())
        elif job.deciding:
            job.starts_over = True  # the pending measurement must not be taken for that of the next sum
        else:
            self._begin_generation(job)

    def _begin_generation(self, job: OpenJob) -> None:
        generation = self._generation_after(job.job, job.generation)
        if generation is None:
            return
        job.generation, job.deciding, job.starts_over = generation, False, False
        job.staged.clear()
        self._to_send = None
        self._out.put(SaveGeneration(job.job, generation))
        self._out.put(Unstage())
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

    def _save_failed(self, event: SaveFailed) -> None:
        job_ended = self._checkpoints.finish(event)
        job = self.open_job
        if job is not None and job.owns(event.job, event.generation):
            if job.failure_reason is not None:
                self._send_failure(job)
            elif refusal := self._checkpoints.handle_failure(job, event):
                self._operation_failed(OperationFailed(job.job, refusal.reason))
        elif job_ended:
            self._out.send(
                pb.CheckpointMissed(
                    job=event.job, generation=event.generation, step=event.step, reason=event.reason
                )
            )
        self._checkpoints.start_if_possible(job)
