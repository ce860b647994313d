"""The optimizer's state machine: the link to the aggregator, and a state machine for each open job. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from optimizer.core import events as ev
from optimizer.core.checkpoint_schedule import CheckpointSchedule
from optimizer.core.job_core import JobCore
from optimizer.core.open_job import OpenJob
from protos import cluster_pb2 as pb
from protos import plane_pb2 as plane
from protos.tensors_pb2 import ChunkHeader
from services.errors import Refusal, name_internal_error
from services.protocol.envelope import OptimizerOrder
from services.protocol.hello import HelloExpectations, HelloRefusal, Role, check_hello
from services.tensors.stripes import Stripe


class OptimizerCore:
    """State machine of one optimizer process.

    An unexpected error while a job takes an input ends that job here; the others go on.

    Args:
        name: name of the optimizer.
        epoch: highest epoch that an earlier process of this optimizer obeyed.

    Attributes:
        epoch: epoch of the aggregator that is obeyed.
        jobs: jobs that are open, loading or closing, by id.
    """

    def __init__(self, *, name: str, epoch: int = 0) -> None:
        self.name = name
        self.epoch = epoch
        self.jobs: dict[str, JobCore] = {}
        self._out = ev.OptimizerOutbox()
        self._checkpoints = CheckpointSchedule(self._out)

    def opened(self, job: str) -> OpenJob | None:
        """Return the state of a job that is open; None if it is not, or is still loading."""
        found = self.jobs.get(job)
        return found.opened if found is not None else None

    def has_open(self, job: str) -> bool:
        """Return whether a job is open, loading or closing."""
        return job in self.jobs

    def expected_elements(self, job: str) -> int | None:
        """Return the number of elements of the job's layout; None if it is not open or its layout is unknown."""
        opened = self.opened(job)
        return opened.elements or None if opened is not None else None

    @property
    def is_idle(self) -> bool:
        """Whether no job is open and no checkpoint is being written."""
        return not self.jobs and not self._checkpoints.writes

    def awaits_plane(self, job: str, stripe: Stripe) -> bool:
        """Return whether a plane's report on its part of a job's step is awaited."""
        opened = self.opened(job)
        return opened is not None and opened.awaits(stripe)

    def is_loading(self, job: str) -> bool:
        """Return whether the answer to this job's Load is awaited."""
        found = self.jobs.get(job)
        return found is not None and found.is_loading

    def check_chunk(self, header: ChunkHeader) -> Refusal | None:
        """Return why a chunk is stale; None if its job can use it."""
        if header.epoch != self.epoch:
            return Refusal(f"the chunk's epoch is {header.epoch}, this optimizer obeys epoch {self.epoch}")
        job = self.jobs.get(header.job)
        if job is None:
            return Refusal(f"the chunk's job is {header.job!r}, which is not open; open it first")
        return job.check_chunk(header)

    def handle(self, event: ev.Input) -> list[ev.Effect]:
        """Take one input and return its effects, in the order in which they must be carried out."""
        try:
            self._route(event)
            begun = self._checkpoints.start_next()
            if begun is not None:
                self._in_job(begun, JobCore.finish_closing)
        except Exception as error:  # outside of any job, so none can be trusted
            self._out.take()
            self._checkpoints = CheckpointSchedule(self._out)
            for job in list(self.jobs) or [""]:
                self._break(job, error)
        return self._out.take()

    def _route(self, event: ev.Input) -> None:
        match event:
            case ev.ChunksArrived():
                if event.header.epoch == self.epoch:
                    self._in_job(event.header.job, JobCore.take_chunks, event)
            case ev.FromPlane():
                self._checkpoints.now_seconds = event.now_seconds
                self._in_job(event.body.job, JobCore.take_plane_report, event)
            case ev.Ordered():
                if event.epoch == self.epoch:
                    self._take_order(event.body)
            case ev.Saved():
                self._saved(event.written)
            case ev.SaveFailed():
                self._save_failed(event)
            case ev.RetryDue():
                self._in_job(event.job, JobCore.retry)
            case ev.Loaded():
                self._in_job(event.job, JobCore.loaded, event)
            case ev.Allocated():
                self._in_job(event.job, JobCore.allocated, event)
            case ev.Connected():
                self._connect(event.hello)
            case ev.Disconnected():
                self._out.connected = False
                self._in_all_jobs(JobCore.disconnect)
            case ev.OperationFailed():
                self._in_job(event.job, JobCore.fail, event.reason)
            case ev.TensorsLost():
                self._in_all_jobs(JobCore.lose_tensors)
            case ev.Stopping():
                self._in_all_jobs(JobCore.close_with_checkpoint)

    def _in_job(
        self,
        job: str,
        act: Callable[..., None],
        *arguments: Any,
    ) -> None:
        """Have a job that is here take an input. An unexpected error ends that job alone."""
        core = self.jobs.get(job)
        if core is None:
            return
        before = len(self._out.effects)
        try:
            act(core, *arguments)
            if core.opened is not None and core.opened.closing:
                core.finish_closing()
        except Exception as error:
            del self._out.effects[before:]
            self._break(job, error)
            return
        if core.is_over:
            del self.jobs[job]

    def _in_all_jobs(
        self,
        act: Callable[..., None],
        *arguments: Any,
    ) -> None:
        for job in list(self.jobs):
            self._in_job(job, act, *arguments)

    def _break(self, job: str, error: Exception) -> None:
        """Forget a job after an unexpected error: what is known of it can't be trusted."""
        self._out.put(ev.JobBroke(job, error))
        core = self.jobs.pop(job, None)
        if core is None:
            return
        if core.opened is not None:
            self._checkpoints.set_due(core.opened, False)
            self._checkpoints.job_ended(core.opened)
        self._out.put(plane.DropPart(job=job))
        reason = f"the optimizer failed while it ran this job: {name_internal_error(error)}; see its log"
        self._out.send(pb.Failure(job=job, reason=reason))

    # ---- the link ----

    def check_hello(self, hello: pb.Hello) -> HelloRefusal | None:
        """Return why this aggregator is refused; None if it is accepted."""
        return check_hello(hello, HelloExpectations("optimizer", Role.AGGREGATOR, self.epoch))

    def _connect(self, hello: pb.Hello) -> None:
        """Obey an aggregator. It is told the state of each open job, and closes those for which it has no use."""
        refusal = self.check_hello(hello)
        if refusal is not None:
            self._out.put(ev.Refuse(refusal.reason))
            return
        if hello.epoch_seen > self.epoch:
            self._out.put(ev.SaveEpoch(hello.epoch_seen))
        self.epoch, self._out.connected = hello.epoch_seen, True
        self._in_all_jobs(JobCore.connect, self.epoch)

    def _take_order(self, body: OptimizerOrder) -> None:
        if isinstance(body, pb.Hello | pb.Heartbeat):
            return
        if isinstance(body, pb.Open) and body.job not in self.jobs:
            self.jobs[body.job] = JobCore(
                body.job, epoch=self.epoch, out=self._out, checkpoints=self._checkpoints
            )
        self._in_job(body.job, JobCore.take_order, body)

    # ---- checkpoints ----

    def _saved(self, written: pb.CheckpointWritten) -> None:
        job_ended = self._checkpoints.finish(written)
        core = self.jobs.get(written.job)
        if core is not None and core.owns(written.generation):
            self._in_job(written.job, JobCore.saved, written)
            return
        if job_ended:
            self._out.send(written)
        self._in_job(written.job, JobCore.checkpoint_settled)

    def _save_failed(self, event: ev.SaveFailed) -> None:
        job_ended = self._checkpoints.finish(event)
        core = self.jobs.get(event.job)
        if core is not None and core.owns(event.generation):
            self._in_job(event.job, JobCore.save_failed, event)
            return
        if job_ended:
            missed = pb.CheckpointMissed(
                job=event.job, generation=event.generation, step=event.step, reason=event.reason
            )
            self._out.send(missed)
        self._in_job(event.job, JobCore.checkpoint_settled)
