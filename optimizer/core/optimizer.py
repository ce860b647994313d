"""The optimizer's mind: it decides when a step happens, and that it happens once. Pure.

It stages a step's sum chunk by chunk; when all of it is there and measured, it commits (apply or skip), updates its
master weights and streams them back. A job it finds on disk continues from its newest checkpoint under a new
generation.
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
    Ordered,
    Outbox,
    Refuse,
    Saved,
    SaveEpoch,
    SaveFailed,
    SaveGeneration,
    Stage,
    StoreInitial,
    TensorsLost,
    Unstage,
    Update,
    Updated,
)
from optimizer.core.open_job import OpenJob, is_void
from protos import cluster_pb2 as pb
from protos.tensors_pb2 import GRADIENT, INITIAL_WEIGHTS, WEIGHTS, ChunkHeader
from services.protocol.non_finite import describe_non_finite
from services.protocol.versions import LAST_EPOCH, LAST_GENERATION, PROTOCOL_VERSION
from services.tensors.layout import chunk_range


class OptimizerCore:
    """The state machine of one optimizer process.

    Args:
        name: of the optimizer.
        epoch: the highest that one of its processes has obeyed.
    """

    def __init__(self, *, name: str, epoch: int = 0) -> None:
        self.name = name
        self.epoch = epoch
        self.open_job: OpenJob | None = None
        self._loading = ""
        self._spec_json = ""
        self._least_generation = 0
        self._void: tuple[pb.Void, ...] = ()  # checkpoints of the job that is loading or open
        self._to_send: int | None = None  # next chunk of weights to stream; None: nobody asked on this link
        self._out = Outbox()
        self._checkpoints = CheckpointSchedule(self._out)

    def next_weights(self) -> ChunkHeader | None:
        """The header of the next chunk of weights to stream, counted as sent; None: nothing for now."""
        job = self.open_job
        if job is None or self._to_send is None or self._to_send >= job.updated:
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
        """Elements of the job's layout; None: it is not open or its layout not known."""
        return (
            self.open_job.elements or None if self.open_job is not None and self.open_job.job == job else None
        )

    def is_loading(self, job: str) -> bool:
        """Whether the job's Loaded is waited for."""
        return bool(job) and self._loading == job

    def handle(self, event: Input) -> list[Effect]:
        """Take one input; return what is to be done, in order."""
        match event:
            case ChunkArrived():
                self._chunk(event.header)
            case Updated():
                self._updated(event)
            case Ordered():
                if event.epoch == self.epoch:
                    self._ordered(event)
            case Measured():
                self._checkpoints.now_seconds = event.now_seconds
                self._commit(event)
            case Saved():
                self._saved(event.written)
            case SaveFailed():
                self._not_saved(event)
            case Loaded():
                self._loaded(event)
            case Allocated():
                self._allocated(event)
            case Connected():
                self._connect(event.hello)
            case Disconnected():
                self._out.connected, self._to_send = False, None
            case OperationFailed():
                self._broke(event)
            case TensorsLost():
                self._loading = ""
                self._drop()
        return self._out.take()

    # ---- the link ----

    def why_not(self, hello: pb.Hello) -> str:
        """Why this aggregator is turned away; empty if it is welcome."""
        if hello.protocol != PROTOCOL_VERSION:
            return (
                f"aggregator {hello.name} speaks protocol {hello.protocol}, this optimizer {PROTOCOL_VERSION}; "
                "install the same version of Tiermesh on both"
            )
        if hello.role != "aggregator":
            return f"{hello.name} says that it is a {hello.role!r}; only aggregators attend an optimizer"
        if hello.epoch_seen < self.epoch:
            return (
                f"aggregator {hello.name} is of epoch {hello.epoch_seen}, this optimizer obeys epoch "
                f"{self.epoch}: a newer aggregator has taken over; stop this one"
            )
        if hello.epoch_seen > LAST_EPOCH:
            return (
                f"aggregator {hello.name} is of epoch {hello.epoch_seen}, the last that there is is {LAST_EPOCH}: it "
                "is damaged, or something else"
            )
        return ""

    def _connect(self, hello: pb.Hello) -> None:
        reason = self.why_not(hello)
        if reason:
            self._out.put(Refuse(reason))
            return
        if hello.epoch_seen > self.epoch:
            self._out.put(SaveEpoch(hello.epoch_seen))
        self.epoch, self._out.connected, self._to_send = hello.epoch_seen, True, None

    def _ordered(self, event: Ordered) -> None:
        body = event.body
        match body:
            case pb.Open():
                self._open(body)
            case pb.Initialise():
                self._initialise(body)
            case pb.SendWeights():
                self._send_weights(body)
            case pb.Close():
                self._close(body.job)
            case pb.StartOver():
                self._start_over(body)

    def _send_weights(self, order: pb.SendWeights) -> None:
        """Whoever asks for a version is sent it, or what has come of it since; and then every later one."""
        job = self.open_job
        if job is not None and (order.job, order.generation) == (job.job, job.generation):
            self._to_send = 0 if order.step <= job.step else job.chunks

    # ---- opening a job ----

    def _open(self, order: pb.Open) -> None:
        job, self._void = self.open_job, tuple(order.void)
        if job is not None and job.job == order.job and job.counts(order.void):
            self._tell_standing()
            return
        if job is not None and job.job != order.job:
            self._leave(job)
        self._drop()
        self._least_generation, self._spec_json = order.generation, order.spec_json
        if self._loading != order.job:
            self._load(order.job)

    def _load(self, job: str) -> None:
        self._loading = job
        self._out.put(Load(job, self._spec_json, self._void))

    def _close(self, job: str) -> None:
        if self._loading == job:
            self._loading = ""
        if self.open_job is not None and self.open_job.job == job:
            self._leave(self.open_job)
            self._drop()

    def _leave(self, job: OpenJob) -> None:
        """The job has ended: its record is to name what is on the disk of it, and what will be."""
        if job.newest_checkpoint is not None:
            self._out.say(job.newest_checkpoint)  # it may have been written while nobody listened
        self._checkpoints.leave(job)

    def _drop(self) -> None:
        if self.open_job is not None:
            self.open_job, self._to_send = None, None
            self._out.put(DropJob())

    def _loaded(self, event: Loaded) -> None:
        if event.job != self._loading:
            return
        if is_void(event.checkpoint, self._void):
            self._load(event.job)  # it became so while it was looked up
            return
        self._loading = ""
        generation = self._after(event.job, max(event.generation, self._least_generation))
        if generation is None:
            return
        job = OpenJob(event.job, event.plan, generation)
        self._out.put(SaveGeneration(job.job, job.generation))
        self.open_job = job
        if event.checkpoint is not None:
            job.take_layout(event.layout_json, event.elements)
            job.state, job.step, job.updated = pb.OptimizerStatus.TRAINING, event.checkpoint.step, job.chunks
            job.newest_checkpoint = event.checkpoint
        self._tell_standing()

    def _after(self, job: str, generation: int) -> int | None:
        """The generation that follows; None: there is none, and the aggregator is told."""
        if generation < LAST_GENERATION:
            return generation + 1
        reason = (
            f"generation {LAST_GENERATION} is the last that there is, and the job needs another; the file that "
            "says so is damaged, or the aggregator's record of the job"
        )
        self._out.say(pb.Failure(job=job, reason=reason))
        return None

    def _tell_standing(self) -> None:
        job = self.open_job
        if job is None:
            return
        self._out.say(job.optimizer_status())
        if job.newest_checkpoint is not None:
            self._out.say(job.newest_checkpoint)
        self._tell_broken(job)

    def _broke(self, event: OperationFailed) -> None:
        if event.job == self._loading:
            self._loading = ""
        job = self.open_job
        if job is not None and job.job == event.job:
            job.broken = event.reason  # told again to an aggregator that comes later
            self._tell_broken(job)
        else:
            self._out.say(pb.Failure(job=event.job, reason=event.reason))

    def _tell_broken(self, job: OpenJob) -> None:
        """The last word on a job that can't go on: it comes after what became of the checkpoint being written."""
        if job.broken and not self._checkpoints.is_written_of(job):
            self._out.say(pb.Failure(job=job.job, reason=job.broken))

    # ---- initial weights ----

    def _initialise(self, order: pb.Initialise) -> None:
        job = self.open_job
        if job is None or job.job != order.job or job.state == pb.OptimizerStatus.TRAINING:
            return
        if job.deciding or (
            job.state == pb.OptimizerStatus.RECEIVING and job.layout_json == order.layout_json
        ):
            self._tell_standing()
            return
        if job.allocating == order.layout_json:
            return
        job.allocating = order.layout_json
        self._out.put(Allocate(order.job, order.layout_json, dict(order.files)))

    def _allocated(self, event: Allocated) -> None:
        job = self.open_job
        if job is None or (job.job, job.allocating) != (event.job, event.layout_json):
            return
        job.allocating = ""
        job.take_layout(event.layout_json, event.elements)
        job.state = pb.OptimizerStatus.RECEIVING
        job.staged.clear()
        self._tell_standing()

    # ---- a step ----

    def why_stale(self, header: ChunkHeader) -> str:
        """Why a chunk is of no use (any more), for people; empty if it is of use."""
        job = self.open_job
        if header.epoch != self.epoch:
            return f"of epoch {header.epoch}: this optimizer obeys epoch {self.epoch}"
        if job is None or header.job != job.job:
            return f"of job {header.job!r}: the open job is {job.job if job else 'none'}"
        if job.state == pb.OptimizerStatus.RECEIVING:
            return "" if header.kind == INITIAL_WEIGHTS else "of a gradient: the job has no weights yet"
        if header.kind != GRADIENT or (header.generation, header.step) != (job.generation, job.step):
            return (
                f"of kind {header.kind}, generation {header.generation}, step {header.step}: the job waits for "
                f"gradients of generation {job.generation}, step {job.step}"
            )
        return ""

    def _chunk(self, header: ChunkHeader) -> None:
        """Stage a chunk; stale ones are dropped, repeated ones harmless."""
        job = self.open_job
        if job is None or self.why_stale(header) or job.deciding or job.allocating:
            return
        if header.index >= job.chunks or header.index in job.staged:
            return
        initial = job.state == pb.OptimizerStatus.RECEIVING
        self._out.put(StoreInitial(header.index) if initial else Stage(header.index))
        job.staged.add(header.index)
        if header.index == 0:
            job.non_finite = list(header.non_finite)
        if len(job.staged) < job.chunks:
            return
        job.deciding = True
        if initial:
            self._checkpoints.due(job)
        else:
            self._out.put(Measure(job.job, job.step))

    def _commit(self, event: Measured) -> None:
        job = self.open_job
        if job is None or (event.job, event.step) != (job.job, job.step) or not job.deciding:
            return
        if job.void:
            self._next_generation(job)
            return
        if not event.finite and job.plan.on_non_finite == "stop":
            why = describe_non_finite(job.non_finite, job.plan.wire.gradients)
            self._broke(OperationFailed(job.job, f"step {job.step + 1}: {why} (on_non_finite: stop)"))
            return
        self._out.say(
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
        job.updated, job.deciding = 0, False
        job.staged.clear()
        if self._to_send is not None:
            self._to_send = 0

    def _updated(self, event: Updated) -> None:
        job = self.open_job
        if job is None or (event.job, event.step + 1, event.chunk) != (job.job, job.step, job.updated):
            return
        job.updated += 1
        if job.updated == job.chunks:
            self._checkpoints.stepped(job)

    # ---- a step that starts over ----

    def _start_over(self, order: pb.StartOver) -> None:
        """What is staged is void: the same step is made again, under the next generation."""
        job = self.open_job
        if job is None or job.job != order.job or job.state != pb.OptimizerStatus.TRAINING:
            return  # whoever opens it is told of a later generation
        if order.generation < job.generation:
            self._out.say(job.optimizer_status())
        elif job.deciding:
            job.void = True  # its measure is on the way, and must not be taken for the next one's
        else:
            self._next_generation(job)

    def _next_generation(self, job: OpenJob) -> None:
        generation = self._after(job.job, job.generation)
        if generation is None:
            return
        job.generation, job.deciding, job.void = generation, False, False
        job.staged.clear()
        self._to_send = None
        self._out.put(SaveGeneration(job.job, generation))
        self._out.put(Unstage())
        self._out.say(job.optimizer_status())

    # ---- checkpoints ----

    def _saved(self, written: pb.CheckpointWritten) -> None:
        left = self._checkpoints.answered(written)
        job = self.open_job
        if job is not None and job.made(written.job, written.generation):
            job.newest_checkpoint, job.failed_step = written, None
            if job.state == pb.OptimizerStatus.RECEIVING:
                job.state, job.step, job.updated, job.deciding = (
                    pb.OptimizerStatus.TRAINING,
                    0,
                    job.chunks,
                    False,
                )
                job.staged.clear()
                self._tell_standing()
            else:
                self._out.say(written)
                self._tell_broken(job)
        elif left:
            self._out.say(written)
        self._checkpoints.make_if_free(job)

    def _not_saved(self, event: SaveFailed) -> None:
        self._checkpoints.answered(event)
        job = self.open_job
        if job is not None and job.made(event.job, event.generation):
            if job.broken:
                self._tell_broken(job)
            elif why := self._checkpoints.why_not_without(job, event):
                self._broke(OperationFailed(job.job, why))
        self._checkpoints.make_if_free(job)
