"""Carries out what the optimizer's core decides: planes compute, a disk thread writes checkpoints.

The core runs on the event loop. An engine lives in the optimizer's process (3-tier) or in the aggregator's (2-tier and
shards).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from optimizer.checkpoint_store import CheckpointStore
from optimizer.core import events as ev
from optimizer.core.checkpoint_schedule import SPACE_RETRY_SECONDS
from optimizer.core.optimizer import OptimizerCore
from optimizer.job_files import CheckpointContents, JobFiles
from optimizer.job_tensors import JobTensors, to_operation_failed, to_save_failed
from plane import update_rules
from plane.errors import PlaneLost
from plane.group import PlaneGroup
from plane.link import PlaneLink
from protos import cluster_pb2 as pb
from protos import plane_pb2 as plane
from services.checkpoints.write import Fence
from services.config.job import JobConfig
from services.errors import Failed, is_out_of_space, name_internal_error
from services.files.store import FileStore
from services.instrumentation import timeline
from services.instrumentation.failpoints import hit_failpoint
from services.protocol.envelope import OptimizerBody
from services.runtime.metrics import OptimizerMetrics
from services.runtime.number_file import NumberFile
from services.runtime.recording import make_core
from services.runtime.stop_watch import saving
from services.tasks import call_in, start_call, start_task
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
    """One optimizer: its core, the tensors of its job, and its checkpoints.

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
        update_rules.prepare()
        self.checkpoint_store = CheckpointStore(state_dir / "checkpoints", fence)
        self._files = files
        self._job_files = JobFiles(files, self.checkpoint_store)
        self._epoch_file = epoch_file
        self._record = record
        self._replaced = 0
        self.core = self._make_core(epoch_file.read() if epoch_file else 0)
        self._metrics = metrics
        self._hello: pb.Hello | None = None
        self._callbacks: EngineCallbacks | None = None
        self._config: JobConfig | None = None
        self._contents: CheckpointContents | None = None
        self._disk = ThreadPoolExecutor(1, "disk")
        start_call(self._disk, "removal of checkpoints", self._finish_removals)
        self._loop = asyncio.get_running_loop()
        self._planes = planes
        planes.report_handlers.update(
            {plane.StagedChunk: self._chunk_staged, plane.UpdatedPart: self._part_updated}
        )
        self._tensors = JobTensors(self._reported, planes)
        self._updating: tuple[plane.UpdatePart, float] | None = None  # with its start time
        self._closed = False
        self._idle: asyncio.Event | None = None  # set once the core is idle, after `save_weights` was called
        self._open_lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def _make_core(self, epoch: int) -> OptimizerCore:
        return make_core(OptimizerCore, self._record, name=self.name, epoch=epoch)

    async def save_weights(self) -> None:
        """Close the open job, and wait until the weights of its last COMMIT are on disk, or until that has failed."""
        self._idle = asyncio.Event()
        what = "the last checkpoint of a job"
        if job := self.core.open_job:
            log.info("job %s: its weights of step %d are saved before the stop", job.job, job.step)
            what = f"the checkpoint of step {job.step} of job {job.job}"
        with saving(what):
            self.feed(ev.Stopping())
            await self._idle.wait()

    def close(self) -> None:
        """Stop the threads, after the checkpoint that is being written."""
        self._closed = True
        self._tensors.close()
        self._disk.shutdown()

    # ---- the link to the aggregator ----

    def connect(self, hello: pb.Hello, callbacks: EngineCallbacks) -> None:
        """Connect an aggregator; its callbacks replace those of the previous one."""
        self._callbacks, self._hello = callbacks, hello
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
            start_call(self._disk, f"job {job}: release of its files", self._files.release, job)
        try:
            effects = self.core.handle(event)
        except Exception as error:
            self._replace_core(event, error)
            effects = []
        for effect in effects:
            try:
                self._carry_out(effect, values)
            except Exception as error:  # it fails the job, not the process
                job = self.core.open_job.job if self.core.open_job else ""
                self.feed(to_operation_failed(job, error))
                return
        if self._idle is not None and self.core.is_idle:
            self._idle.set()

    def _replace_core(self, event: ev.Input, error: Exception) -> None:
        """Begin with a new core after an unexpected error of the old one, whose memory can't be trusted.

        It fails the open job, not the process: the aggregator goes on with the next one.
        """
        ordered = getattr(event.body, "job", "") if isinstance(event, ev.Ordered) else ""
        job = ordered or self.core.current_job
        reason = f"the optimizer failed while it ran this job: {name_internal_error(error)}; see its log"
        log.error("job %s: %s", job or "none", reason, exc_info=error)
        self._replaced += 1
        if self._record is not None:  # the recording of the core that failed stays
            self._record = self._record.with_name(f"{self._record.name}.{self._replaced}")
        self.core = self._make_core(self.core.epoch)
        self._carry_out(plane.DropPart(job=job), None)
        if self._callbacks is None or self._hello is None:
            return
        self.feed(ev.Connected(self._hello))
        if job:
            self._callbacks.send(pb.Failure(job=job, reason=reason))

    def _carry_out(self, effect: ev.Effect, values: Float32Array | None) -> None:
        match effect:
            case plane.StageChunk():
                if values is not None:
                    assert self._planes.local is not None, "sums come to shards alone"
                    self._planes.local.put_finished_sum(effect.job, effect.chunk, values)
                self._planes.send_order(effect)
                self._expect(effect.job, "its part of the norm", self._planes.link_of_chunk(effect.chunk))
            case plane.UpdatePart():
                timeline.mark("kernel", "COMMIT", effect.step)
                self._updating = effect, time.perf_counter()
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
                assert self._contents is not None
                self._tensors.snapshot(effect, partial(self._save, effect, self._contents))
            case ev.RetryLater():
                self._loop.call_later(effect.seconds, self.feed, ev.RetryDue())
            case ev.Refuse():
                if self._callbacks is not None:
                    self._callbacks.refuse(effect.reason)
            case ev.SaveGeneration():
                self.checkpoint_store.save_generation(effect.job, effect.generation)
            case ev.SaveEpoch():
                self._save_epoch(effect.epoch)
            case ev.Load():
                self._start(effect.job, self._load(effect))
            case ev.Allocate():
                self._start(effect.job, self._allocate(effect))
            case plane.MakeWeights() | plane.SendVersion():
                self._planes.send_order(effect)
            case plane.DropPart():
                self._contents, self._config, self._updating = None, None, None
                self._tensors.drop()
                self._metrics.end_job()

    def _expect(self, job: str, what: str, link: PlaneLink) -> None:
        link.expect(job, what, lambda: self.core.awaits_plane(link.stripe))

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

    # ---- opening a job ----

    def _start(self, job: str, work: Coroutine[Any, Any, None]) -> None:
        task = start_task(self._guarded(job, work), f"job {job}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, job: str, work: Coroutine[Any, Any, None]) -> None:
        """Run work so that an error fails the job, not the process; one call at a time."""
        async with self._open_lock:
            try:
                await work
            except PlaneLost as lost:
                log.info("job %s: %s", job, lost)
            except Exception as error:
                if not self._closed:  # else the threads that work have stopped
                    self.feed(to_operation_failed(job, error))

    async def _load(self, effect: ev.Load) -> None:
        await self._prepare(effect)
        config, checkpoint, loaded = await call_in(self._disk, self._job_files.look_up, effect)
        if not self.core.is_loading(effect.job):
            return  # the job was closed in the meantime
        contents: CheckpointContents | None = None
        if checkpoint is not None:
            await self._tensors.open(effect.job, config, checkpoint.layout, checkpoint)
            if not self.core.is_loading(effect.job):
                self._tensors.drop()
                return
            contents = CheckpointContents(config, checkpoint.layout, dict(checkpoint.files))
        self._config, self._contents = config, contents
        self.feed(loaded)

    async def _prepare(self, effect: ev.Load) -> None:
        """Prepare the job's files, and wait while the disk has no space for them (TiermeshError).

        The file of its generation later changes on a full disk too.
        """
        job = effect.job
        is_reported = False
        while self.core.is_loading(job):
            try:
                await call_in(self._disk, self._job_files.prepare, effect)
                return
            except Failed as failed:
                if not is_out_of_space(failed):
                    raise
                if not is_reported:
                    is_reported = True
                    self._report_no_space(job, f"{failed}; the job begins once there is space")
            await asyncio.sleep(SPACE_RETRY_SECONDS)

    def _report_no_space(self, job: str, reason: str) -> None:
        log.warning("job %s: %s", job, reason)
        if self._callbacks is not None:
            self._callbacks.send(pb.CheckpointMissed(job=job, reason=reason))

    async def _allocate(self, effect: ev.Allocate) -> None:
        config = self._config
        if config is None:
            return  # the job was dropped in the meantime
        layout, files = await call_in(self._disk, self._job_files.read_description, effect, config)
        await self._tensors.open(effect.job, config, layout, None)
        if self._config is not config:
            self._tensors.drop()
            return
        self._contents = CheckpointContents(config, layout, files)
        self.feed(ev.Allocated(effect.job, layout.hash, layout.elements))

    # ---- a step ----

    def _chunk_staged(self, link: PlaneLink, body: plane.StagedChunk) -> None:
        elements = self.core.expected_elements(body.job) or 0
        if body.chunk not in link.stripe.chunk_indices(elements):
            return  # a report about the former job
        start, stop = chunk_range(elements, body.chunk)
        blocks = -(-(stop - start) // BLOCK_ELEMENTS)
        if len(body.block_sums) != blocks:
            link.close(f"StagedChunk {body.chunk}: {len(body.block_sums)} block sums, expected {blocks}")
        elif any(each < 0 for each in body.block_sums):
            link.close(
                f"StagedChunk {body.chunk}: sum of squares {min(body.block_sums):g}, expected at least 0"
            )
        else:
            self.feed(ev.FromPlane(link.stripe, body, self._loop.time()))

    def _part_updated(self, link: PlaneLink, body: plane.UpdatedPart) -> None:
        self.feed(ev.FromPlane(link.stripe, body, self._loop.time()))
        job = self.core.open_job
        if self._updating is not None and job is not None and job.updated_chunks == job.chunks:
            order, started = self._updating
            self._updating = None
            self._metrics.record_update(
                order.job,
                seconds=time.perf_counter() - started,
                grad_norm=order.grad_norm,
                learning_rate=order.learning_rate,
            )

    # ---- checkpoints ----

    def _reported(self, event: ev.SaveFailed | ev.OperationFailed) -> None:
        if isinstance(event, ev.SaveFailed):
            log.warning("job %s: no checkpoint of step %d: %s", event.job, event.step, event.reason)
            self._metrics.count_checkpoint_failure(event.job)
        self.feed(event)

    def _save(
        self,
        effect: ev.Snapshot,
        contents: CheckpointContents,
        weights: Float32Array,
        state: Mapping[str, NDArray[Any]],
    ) -> None:
        """Queue copies for writing, and the removal of surplus checkpoints behind it; called on any thread."""
        what = f"job {effect.job}: checkpoint of step {effect.step}"
        written = start_call(self._disk, what, self._write, effect, contents, weights, state)
        start_call(
            self._disk, f"{what}, removal of older ones", self._prune, effect, contents.config, written
        )

    def _write(
        self,
        effect: ev.Snapshot,
        contents: CheckpointContents,
        weights: Float32Array,
        state: Mapping[str, NDArray[Any]],
    ) -> bool:
        """Write a checkpoint on the disk thread; return whether that succeeded."""
        started = time.perf_counter()
        try:
            written, size_bytes = self._files.with_room(
                lambda: self.checkpoint_store.write(
                    effect.job,
                    effect.generation,
                    effect.step,
                    contents.config,
                    contents.layout,
                    weights,
                    state,
                    contents.files,
                ),
                weights.nbytes + sum(each.nbytes for each in state.values()),
            )
        except Exception as error:
            self._loop.call_soon_threadsafe(self._reported, to_save_failed(effect, error))
            return False
        self._metrics.record_checkpoint(
            effect.job, seconds=time.perf_counter() - started, size_bytes=size_bytes
        )
        self._loop.call_soon_threadsafe(self.feed, ev.Saved(written))
        return True

    def _prune(self, effect: ev.Snapshot, config: JobConfig, written: Future[bool]) -> None:
        """Remove surplus checkpoints on the disk thread, if a new one was written."""
        if not written.result():
            return
        keep = config.checkpoint
        for problem in self.checkpoint_store.prune(
            effect.job, effect.step, keep_last=keep.keep_last, keep_every=keep.keep_every
        ):
            log.warning("job %s: %s", effect.job, problem)

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
        if self.core.current_job == request.job:
            return pb.RemoveCheckpointsReply(kept="the optimizer has the job open")
        return await asyncio.to_thread(self.checkpoint_store.removal.remove, request)

    def _finish_removals(self) -> None:
        """Delete what a crash has left of removed checkpoints, on the disk thread."""
        for problem in self.checkpoint_store.removal.finish():
            log.warning("%s", problem)
