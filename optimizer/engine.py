"""Carries out what the optimizer's core decides: planes compute, a disk thread writes checkpoints.

The core runs on the event loop. An engine lives in the optimizer's process (3-tier) or in the aggregator's (2-tier and
shards).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

from optimizer.checkpoint_store import CheckpointStore
from optimizer.checkpoint_writer import CheckpointWriter
from optimizer.core import events as ev
from optimizer.core.optimizer import OptimizerCore
from optimizer.disk_thread import DiskThread
from optimizer.job_files import JobFiles
from optimizer.job_opener import JobOpener
from optimizer.job_tensors import JobTensors, to_operation_failed, to_save_failed
from plane.group import PlaneGroup
from plane.link import PlaneLink
from protos import cluster_pb2 as pb
from protos import plane_pb2 as plane
from services.checkpoints.write import Fence
from services.errors import Failed
from services.files.store import FileStore
from services.instrumentation import timeline
from services.instrumentation.failpoints import hit_failpoint
from services.protocol.envelope import OptimizerBody
from services.runtime.metrics import OptimizerMetrics
from services.runtime.number_file import NumberFile
from services.runtime.recording import make_core
from services.runtime.stop_watch import saving
from services.tasks import start_call
from services.tensors.kernels.arithmetic import BLOCK_ELEMENTS, Float32Array
from services.tensors.layout import chunk_range

log = logging.getLogger("tiermesh.optimizer")

_LISTED_AT_ONCE = 100
"""Checkpoints that a thread lists at once."""


@dataclass(frozen=True)
class EngineCallbacks:
    """Callbacks by which an engine reaches the aggregator; all are called on the event loop.

    Attributes:
        send: called with each message for the aggregator.
        refuse: called with the reason for which the link to the aggregator must end.
    """

    send: Callable[[OptimizerBody], None]
    refuse: Callable[[str], None]


class OptimizerEngine:
    """One optimizer: its core, the tensors of its jobs, and their checkpoints.

    Args:
        name: name of the optimizer.
        state_dir: folder that holds the folder of checkpoints.
        files: files that orders refer to.
        metrics: metrics of the optimizer.
        record: file that receives the core's inputs and effects; None records nothing.
        planes: planes that have the tensors.
        epoch_file: file of the highest epoch that was obeyed; None if the aggregator stores it.
        fence: context manager entered while a file gets its final name, see `CheckpointStore`.

    Attributes:
        core: state machine that decides.
        checkpoint_store: checkpoints on disk.
    """

    def __init__(
        self,
        *,
        name: str,
        state_dir: Path,
        files: FileStore,
        metrics: OptimizerMetrics,
        record: Path | None,
        planes: PlaneGroup,
        epoch_file: NumberFile | None = None,
        fence: Fence = nullcontext,
    ) -> None:
        self.name = name
        self.checkpoint_store = CheckpointStore(state_dir / "checkpoints", fence)
        self._files = files
        self._epoch_file = epoch_file
        epoch = epoch_file.read() if epoch_file else 0
        self.core = make_core(OptimizerCore, record, name=name, epoch=epoch)
        self._metrics = metrics
        self._callbacks: EngineCallbacks | None = None
        self._disk = DiskThread()
        start_call(self._disk.of(""), "removal of checkpoints", self._finish_removals)
        self._loop = asyncio.get_running_loop()
        self._planes = planes
        planes.report_handlers.update(
            {plane.StagedChunks: self._chunks_staged, plane.UpdatedPart: self._part_updated}
        )
        self._tensors = JobTensors(self._reported, planes)
        self._opener = JobOpener(
            self.core,
            self._tensors,
            JobFiles(files, self.checkpoint_store),
            self._disk,
            feed=self.feed,
            report_no_space=self._report_no_space,
        )
        self._writer = CheckpointWriter(self.checkpoint_store, files, self._disk, metrics, self._reported)
        self._updating: dict[str, tuple[plane.UpdatePart, float]] = {}  # by job, with its start time
        self._closed = False
        self._idle: asyncio.Event | None = None  # set once the core is idle, after `save_weights` was called

    async def save_weights(self) -> None:
        """Close all jobs, and wait until the weights of their last COMMITs are on disk, or until that has failed."""
        self._idle = asyncio.Event()
        what = "the last checkpoint of a job"
        opened = [each.opened for each in self.core.jobs.values() if each.opened is not None]
        for job in opened:
            log.info("job %s: its weights of step %d are saved before the stop", job.job, job.step)
        if opened:
            what = " and ".join(f"the checkpoint of step {job.step} of job {job.job}" for job in opened)
        with saving(what):
            self.feed(ev.Stopping())
            await self._idle.wait()

    def close(self) -> None:
        """Stop the threads, after the checkpoint that is being written."""
        self._closed = True
        self._opener.close()
        self._tensors.close()
        self._disk.close()

    # ---- the link to the aggregator ----

    def connect(self, hello: pb.Hello, callbacks: EngineCallbacks) -> None:
        """Connect an aggregator; its callbacks replace those of the previous one."""
        self._callbacks = callbacks
        self.feed(ev.Connected(hello))

    def disconnect(self, callbacks: EngineCallbacks) -> None:
        """Disconnect the aggregator with these callbacks, unless another one has replaced it."""
        if self._callbacks is callbacks:
            self.feed(ev.Disconnected())
            self._callbacks = None

    # ---- the core ----

    def feed(self, event: ev.Input, values: Float32Array | None = None) -> None:
        """Give the core an input and carry out its effects.

        Args:
            event: input for the core.
            values: payload of the chunk that just arrived from another process, [elements of the chunk] float32; None
                if its plane has it.
        """
        if self._closed:
            return  # a late callback: the threads that would carry out effects have stopped
        if (
            isinstance(event, ev.Ordered)
            and isinstance(event.body, pb.Close)
            and event.epoch == self.core.epoch
        ):
            job = event.body.job
            start_call(self._disk.of(job), f"job {job}: release of its files", self._files.release, job)
        self._carry_out_all(self.core.handle(event), values)
        if self._idle is not None and self.core.is_idle:
            self._idle.set()

    def _carry_out_all(self, effects: Sequence[ev.Effect], values: Float32Array | None) -> None:
        """Carry out effects in sequence. After an error of one, those of the other jobs follow."""
        for number, effect in enumerate(effects, 1):
            try:
                self._carry_out(effect, values)
            except Exception as error:  # it fails the job, not the process
                job = ev.job_of(effect)
                self._carry_out_all([each for each in effects[number:] if ev.job_of(each) != job], values)
                if isinstance(effect, ev.Snapshot):
                    self._reported(to_save_failed(effect, error))
                else:
                    self.feed(to_operation_failed(job, error))
                return

    def _carry_out(self, effect: ev.Effect, values: Float32Array | None) -> None:
        match effect:
            case plane.StageChunks():
                if values is not None:
                    assert self._planes.local is not None, "sums come to shards alone"
                    (chunk,) = effect.chunks
                    self._planes.local.put_finished_sum(effect.job, chunk, values)
                self._planes.send_order(effect)
                self._expect(effect.job, "its part of the norm", self._planes.link_of_chunk(effect.chunks[0]))
            case plane.UpdatePart():
                timeline.mark("kernel", "COMMIT", effect.step, job=effect.job)
                self._updating[effect.job] = effect, time.perf_counter()
                self._planes.send_order(effect)
                for link in self._planes.links:
                    self._expect(effect.job, "its part of the update", link)
            case ev.ToAggregator(body=pb.Commit()):
                hit_failpoint("optimizer.commit.before")
                if self._callbacks is not None:
                    self._callbacks.send(effect.body)
                hit_failpoint("optimizer.commit.after")
            case ev.ToAggregator():
                if self._callbacks is not None:
                    self._callbacks.send(effect.body)
            case ev.Snapshot():
                contents = self._opener.contents(effect.job)
                self._tensors.snapshot(effect, partial(self._writer.save, effect, contents))
            case ev.RetryLater():
                self._loop.call_later(effect.seconds, self.feed, ev.RetryDue(effect.job))
            case ev.Refuse():
                if self._callbacks is not None:
                    self._callbacks.refuse(effect.reason)
            case ev.SaveGeneration():
                self.checkpoint_store.save_generation(effect.job, effect.generation)
            case ev.SaveEpoch():
                self._save_epoch(effect.epoch)
            case ev.Load():
                self._opener.load(effect)
            case ev.Allocate():
                self._opener.allocate(effect)
            case plane.MakeWeights() | plane.SendVersion():
                self._planes.send_order(effect)
            case plane.DropPart():
                self._opener.drop(effect.job)
                self._updating.pop(effect.job, None)
                self._tensors.drop(effect.job)
                self._metrics.end_job(effect.job)
            case ev.JobBroke():
                log.error("job %s: the optimizer failed", effect.job or "none", exc_info=effect.error)

    def _expect(self, job: str, what: str, link: PlaneLink) -> None:
        link.expect(job, what, lambda: self.core.awaits_plane(job, link.stripe))

    def _save_epoch(self, epoch: int) -> None:
        """Store the epoch; if that fails it is obeyed all the same, since a full disk must not stop a job."""
        if self._epoch_file is None:
            return
        try:
            self._epoch_file.write(epoch)
        except Failed as failed:
            log.warning(
                "epoch %d is obeyed but could not be stored, so a restarted optimizer may obey an older one: %s",
                epoch,
                failed,
            )

    # ---- a step ----

    def _chunks_staged(self, link: PlaneLink, body: plane.StagedChunks) -> None:
        elements = self.core.expected_elements(body.job) or 0
        own = link.stripe.chunk_indices(elements)
        for staged in body.chunks:
            if staged.chunk not in own:
                return  # a report about a former job
            start, stop = chunk_range(elements, staged.chunk)
            blocks, found = -(-(stop - start) // BLOCK_ELEMENTS), len(staged.block_sums)
            fault = f"{found} block sums, expected {blocks}" if found != blocks else ""
            if any(each < 0 for each in staged.block_sums):
                fault = f"sum of squares {min(staged.block_sums):g}, expected at least 0"
            if fault:
                link.close(f"StagedChunks, chunk {staged.chunk}: {fault}")
                return
        self.feed(ev.FromPlane(link.stripe, body, self._loop.time()))

    def _part_updated(self, link: PlaneLink, body: plane.UpdatedPart) -> None:
        self.feed(ev.FromPlane(link.stripe, body, self._loop.time()))
        job = self.core.opened(body.job)
        if body.job in self._updating and job is not None and job.updated_chunks == job.chunks:
            order, started = self._updating.pop(body.job)
            self._metrics.record_update(
                order.job,
                seconds=time.perf_counter() - started,
                grad_norm=order.grad_norm,
                learning_rate=order.learning_rate,
            )

    # ---- checkpoints ----

    def _reported(self, event: ev.Saved | ev.SaveFailed | ev.OperationFailed) -> None:
        if isinstance(event, ev.SaveFailed):
            log.warning("job %s: no checkpoint of step %d: %s", event.job, event.step, event.reason)
            self._metrics.count_checkpoint_failure(event.job)
        self.feed(event)

    def _report_no_space(self, job: str, reason: str) -> None:
        log.warning("job %s: %s", job, reason)
        if self._callbacks is not None:
            self._callbacks.send(pb.CheckpointMissed(job=job, reason=reason))

    # ---- removal of what ended jobs have left ----

    async def list_checkpoints(
        self, request: pb.ListCheckpointsRequest
    ) -> AsyncIterator[pb.StoredCheckpoint]:
        """Yield the checkpoints of some jobs, oldest first within a job; a thread reads the disk.

        Raises:
            Refused: a job's id is malformed.
        """
        found = self.checkpoint_store.removal.find(request)
        while batch := await asyncio.to_thread(lambda: list(islice(found, _LISTED_AT_ONCE))):
            for each in batch:
                yield each

    async def remove_checkpoints(self, request: pb.RemoveCheckpointsRequest) -> pb.RemoveCheckpointsReply:
        """Remove checkpoints of a job that has ended, in a thread.

        Raises:
            Refused: the job's id is malformed.
            Failed: the disk failed, or another aggregator took over.
        """
        if self.core.has_open(request.job):
            return pb.RemoveCheckpointsReply(kept="the optimizer has the job open")
        return await asyncio.to_thread(self.checkpoint_store.removal.remove, request)

    def _finish_removals(self) -> None:
        """Delete what a crash has left of removed checkpoints, on the disk thread."""
        for problem in self.checkpoint_store.removal.finish():
            log.warning("%s", problem)
