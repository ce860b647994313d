"""The thread that speaks to the compute process, one task after another.

The event loop submits the core's effects as tasks. The thread answers with inputs for the core.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from types import MappingProxyType
from typing import Any

from plane.lease_sums import LeaseSums
from protos import cluster_pb2 as pb
from protos import compute_pb2 as pb_compute
from protos.checks_pb2 import MeshReport
from services.config.job import JobConfig
from services.config.job_inputs import relocate_inputs
from services.corpora.conversion import is_conversion
from services.corpora.token_file import TokenFileDamaged
from services.errors import Failed, TiermeshError, describe_internal_error
from services.instrumentation import timeline
from services.instrumentation.failpoints import hit_failpoint
from services.pipeline.split import StageRun
from services.printable import LINE_CHARACTERS, printable
from services.runtime.child_output import TakeLines
from services.runtime.metrics import WorkerMetrics
from services.tasks import start_thread
from services.tensors.chunk_messages import TensorChunk
from worker.compute_process import STOP_SECONDS, Child, ComputeProcesses, MeshUnfit, ProcessLost, Started
from worker.core import events as ev
from worker.device_watch import DeviceWatch
from worker.file_exchange import ModelFiles
from worker.input_reading import BuildDropped, InputReading
from worker.job_on_mesh import JobBuilder, JobOnMesh
from worker.job_order import BuildWatch, PassWatch
from worker.lease_runner import LeaseRunner, describe_death, describe_failure, is_memory_full
from worker.row_exchange import OpenExchange, refuse_exchange
from worker.weight_loader import WeightInbox

log = logging.getLogger("tiermesh.worker")

PATIENCE_SECONDS = 60.0
"""Time that a lease waits for weights before a line is logged. It goes on waiting."""


KEEP_SECONDS = 600.0
"""Time that a worker without a job keeps its mesh open for the next one."""

ABANDON_SECONDS = 1.0
"""Time that a stopping worker waits for a build, which may hang for ever: in a file of a mount that is gone, or in a
device. Then its process is ended. A pass has `STOP_SECONDS`."""

HANG_TIMES = 2
"""A compute process that has not got on for this many times `stall` is ended. The aggregator names it after one."""


class DeviceThread:
    """Thread that builds jobs, loads weights and computes leases.

    Args:
        feed: callback that passes the core an input, or takes the files that describe a model. It is called on the
            device thread.
        metrics: metrics of this worker.
        builder: builder of jobs.
        sums: the sums of leases.
        open_exchange: opens the exchange of a lease's arrays with the other workers of its row.
        inbox: weights that have arrived and are not on the mesh yet; None for a new one.
        patience_seconds: time that a lease waits for weights before the log says so.
    """

    def __init__(
        self,
        feed: Callable[[ev.Input | ModelFiles], None],
        metrics: WorkerMetrics,
        builder: JobBuilder,
        *,
        sums: LeaseSums,
        open_exchange: OpenExchange = refuse_exchange,
        inbox: WeightInbox | None = None,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._feed = feed
        self._metrics = metrics
        self._builder = builder
        self._processes = ComputeProcesses(self._spawn, self._take_lines, metrics.set_mesh_close_seconds)
        self._child: Child | None = None  # the newest process
        self._hung: Child | None = None  # the newest one that was ended since it hung
        self._printing = ""  # job to which what it prints belongs
        self._inbox = inbox or WeightInbox()
        self._sums = sums
        self._watch = DeviceWatch(builder.clock)
        self._leases = LeaseRunner(
            feed,
            metrics,
            sums=sums,
            inbox=self._inbox,
            load_arrived=self._load,
            report_damaged=self._report_damaged,
            open_exchange=open_exchange,
            clock=builder.clock,
            watch=self._watch,
            patience_seconds=patience_seconds,
        )
        self._job: JobOnMesh | None = None
        self._unloadable: JobOnMesh | None = None  # a job whose weights could not be put on the mesh
        self._is_building = False
        self._is_leasing = False  # a lease is under way
        self._is_closing = False
        self._reading: InputReading | None = None  # of the build that is wanted
        self._copies: frozenset[Path] = frozenset()  # the job's inputs that this worker has fetched
        self._last_mesh = pb_compute.MeshOpened()  # of the last job
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        # A daemon thread, so that a build that hangs does not keep the process alive.
        self._thread = start_thread(self._run_tasks, "device")

    # ---- called on the event loop ----

    def carry_out(self, effect: ev.Effect, chunk: TensorChunk | None = None) -> None:
        """Queue an effect of the core.

        Args:
            effect: the effect.
            chunk: the chunk of weights that has just arrived, for Load.
        """
        match effect:
            case ev.Load():
                assert chunk is not None
                if self._inbox.put(chunk):
                    self._submit(self._load)
            case ev.Perform():
                self._leases.accept(effect.lease.lease)
                self._submit(self._perform, effect.lease)
            case ev.DropLease():
                self._leases.drop(effect.lease)
                self._submit(self._leases.forget, effect.lease)
            case ev.DropJob():
                self._drop_build()
                self._metrics.end_job()
                self._submit(self._drop_job)

    def build(
        self,
        job: str,
        spec_json: str,
        places: Mapping[str, Path] = MappingProxyType({}),
        stages: StageRun | None = None,
        number: int = 0,
    ) -> None:
        """Queue the building of a job. The answer is Built or BuildFailed.

        Args:
            job: id of the job.
            spec_json: config of the job, a `JobConfig` as JSON.
            places: where inputs are that were fetched, by the path that the job names.
            stages: the stages of its pipeline to build; None for the whole model.
            number: number of the Build.
        """
        self._drop_build()
        self._reading = InputReading(job, self._feed, self._builder.clock)
        self._submit(self._build, self._reading, spec_json, places, stages, number)

    def check_mesh(self, order: pb.CheckMesh, report: Callable[[MeshReport], None]) -> None:
        """Queue a check of the mesh, while there is no job.

        Args:
            order: the mesh to open.
            report: called with the result, on the device thread.
        """
        self._submit(self._check_mesh, order, report)

    def report(self) -> pb.DeviceReport:
        """Return what the device thread does, and since when; any thread may call."""
        return self._watch.report()

    def end_hang(self, stall_seconds: float) -> None:
        """End a compute process that does not get on; what it was asked for fails with that as the reason.

        Args:
            stall_seconds: the aggregator's limit `stall`.
        """
        doing, child = self._watch.report(), self._child
        hangs = doing.task and not doing.waits_for and doing.seconds > HANG_TIMES * stall_seconds
        if hangs and child is not None and child is not self._hung:
            self._hung = child
            reason = f"it had not got on for {doing.seconds:.0f} s ({pb.DeviceTask.Name(doing.task)})"
            start_thread(partial(self._end_hung, child, reason), "hang")

    def _end_hung(self, child: Child, reason: str) -> None:
        log.error("the compute process hangs: %s", child.stop(STOP_SECONDS, reason))

    def drop_leases(self) -> None:
        """End the lease under way after its micro-batch, or where it waits for weights, and all that wait for it."""
        self._leases.drop_all()

    def finish(self) -> None:
        """Drop all leases, and wait until the one under way has ended; the sums of others stay."""
        finished = threading.Event()
        self.drop_leases()
        self._submit(finished.set)
        finished.wait(STOP_SECONDS)

    def close(self) -> None:
        """Drop all leases, free the mesh and end the thread."""
        self._is_closing = True
        self.drop_leases()
        self._drop_build()
        self._submit(self._drop_job)
        self._tasks.put(None)
        patience_seconds = ABANDON_SECONDS if self._is_building else STOP_SECONDS
        self._thread.join(patience_seconds)
        if self._thread.is_alive() and self._child is not None and self._watch.report().task != pb.CLOSE_MESH:
            log.warning("the compute process is ended: it did not stop within %g s", patience_seconds)
            self._child.stop(STOP_SECONDS, "the worker stops")
        self._thread.join()

    def _drop_build(self) -> None:
        """End a build that is under way, if it reads a job's inputs."""
        if self._reading is not None:
            self._reading.drop()

    def _submit(self, task: Callable[..., None], *arguments: Any) -> None:
        self._tasks.put(partial(task, *arguments))

    # ---- on the device thread ----

    def _spawn(self, take_lines: TakeLines) -> Started:
        started = self._builder.spawn(take_lines)
        self._child = started.child
        return started

    def _take_lines(self, lines: Sequence[str]) -> None:
        """Pass on what the compute process prints, to this worker's log and the job's; called on a reader's thread."""
        job = self._printing
        for line in lines:
            log.info("job %s prints: %s", job or "(none)", line)
        if job:
            self._feed(ev.Printed(job, lines))

    def _run_tasks(self) -> None:
        while (task := self._next_task()) is not None:
            try:
                task()
            except Exception as error:  # no caller waits for a task
                log.exception("%s", describe_internal_error(error))
        self._end_kept()

    def _next_task(self) -> Callable[[], None] | None:
        """Wait for a task; after a time without a job, the mesh is closed."""
        try:
            ends_idle = self._job is None and not self._builder.is_external
            return self._tasks.get(timeout=KEEP_SECONDS if ends_idle else None)
        except Empty:
            self._end_kept()
            return self._tasks.get()

    def _end_kept(self) -> None:
        with self._watch.doing(pb.CLOSE_MESH):
            self._processes.end_kept()

    def _build(
        self,
        reading: InputReading,
        spec_json: str,
        places: Mapping[str, Path],
        stages: StageRun | None,
        number: int,
    ) -> None:
        self._is_building = True
        try:
            with self._watch.doing(pb.BUILD_JOB):
                self._build_job(reading, spec_json, places, stages, number)
        except BuildDropped:
            log.info("job %s: its build is dropped", reading.job)
        finally:
            self._is_building = False

    def _watch_reading(self, reading: InputReading, path: Path, read_bytes: int, size_bytes: int) -> None:
        self._watch.advance()
        reading.watch(path, read_bytes, size_bytes)

    def _build_job(
        self,
        reading: InputReading,
        spec_json: str,
        places: Mapping[str, Path],
        stages: StageRun | None,
        number: int,
    ) -> None:
        job_id = reading.job
        try:
            self._drop_job()
            self._printing = job_id
            self._copies = frozenset(places.values())
            try:
                config = relocate_inputs(JobConfig.from_json(spec_json), places)
                own_code = self._builder.code.prepare(job_id, config)
            except Failed as error:
                self._report_unfit(job_id, error, number)
                return
            with ExitStack() as opening:
                opening.enter_context(self._watch.doing(pb.OPEN_MESH))
                job = self._builder.build(
                    job_id,
                    spec_json,
                    places,
                    stages,
                    own_code,
                    processes=self._processes,
                    watch=BuildWatch(
                        mesh_opened=partial(self._note_mesh, opening),
                        file_read=partial(self._watch_reading, reading),
                    ),
                    passes=PassWatch(
                        fetch=self._leases.fetch,
                        non_finite=self._leases.note_non_finite,
                        memory_measured=partial(self._publish_memory, job_id),
                    ),
                    on_new_version=self._sums.reuse_retired,
                )
        except MeshUnfit as error:
            self._metrics.set_mesh_fit(False)
            self._report_unfit(job_id, error, number)
            return
        except TokenFileDamaged as error:
            self._report_damaged(job_id, error)
            return
        except Exception as error:
            too_large = stages is not None and is_memory_full(error)
            reason, death = describe_failure(error), describe_death(error)
            self._feed(
                ev.BuildFailed(job_id, death or reason, too_large=too_large, died=bool(death), number=number)
            )
            return
        self._job = job
        self._feed(replace(job.describe(), number=number))

    def _report_unfit(self, job: str, error: Failed, number: int) -> None:
        log.error("job %s: this worker is unfit, trying again later: %s", job, error)
        self._feed(ev.BuildFailed(job, str(error), unfit=True, number=number))

    def _note_mesh(self, opening: ExitStack, mesh: pb_compute.MeshOpened) -> None:
        opening.close()  # what follows is the building of the job
        self._last_mesh = mesh
        self._metrics.set_mesh_fit(True)
        if mesh.seconds:
            self._metrics.set_mesh_open_seconds(mesh.seconds)

    def _publish_memory(self, job_id: str, memory: pb_compute.MemoryMeasured) -> None:
        for phase in memory.phases:
            self._metrics.set_memory(
                job_id,
                printable(phase.name, LINE_CHARACTERS),
                device_bytes=phase.device_bytes,
                device_peak_bytes=phase.device_peak_bytes,
                host_bytes=phase.host_bytes,
            )

    def _report_damaged(self, job: str, error: TokenFileDamaged) -> None:
        log.error("job %s: %s", job, error)
        is_own = error.path in self._copies or is_conversion(error.path)
        damaged = ev.DamagedInput(str(error.path), error.inode) if is_own else None
        self._feed(ev.InputDamaged(job, damaged, str(error)))

    def _check_mesh(self, order: pb.CheckMesh, report: Callable[[MeshReport], None]) -> None:
        self._is_building = True  # it may hang in a device, as a build may
        try:
            with self._watch.doing(pb.CHECK_THE_MESH):
                report(self._check(order))
        finally:
            self._is_building = False

    def _check(self, order: pb.CheckMesh) -> MeshReport:
        rows, columns = order.rows, order.columns
        if not rows:
            rows, columns = self._last_mesh.rows, self._last_mesh.columns
        wanted = pb_compute.CheckMesh(rows=rows, columns=columns, backend=order.backend)
        try:
            self._processes.end_kept()
            process = self._processes.take()
            report = process.request(check_mesh=wanted).mesh_checked.report
            self._processes.end(process, "the check is over")
            return report
        except TiermeshError as error:
            return MeshReport(problem=printable(str(error), LINE_CHARACTERS))

    def _drop_job(self) -> None:
        self._leases.clear()
        job, self._job, self._unloadable = self._job, None, None
        if job is not None:
            try:
                with self._watch.doing(pb.CLOSE_MESH):
                    job.close()
            except Exception as error:  # the next job may still be able to open the mesh
                level = logging.INFO if self._builder.is_external else logging.ERROR
                log.log(level, "job %s: the mesh did not close: %s", job.job, describe_failure(error))
        self._printing = ""

    def _load(self) -> None:
        """Put the chunks that have arrived on the mesh. After a failure the core ends its leases and drops the job.

        So it does after the death of the compute process, which is told and counted once, with no lease under way.

        Raises:
            ProcessLost: the compute process has ended amid a lease, which fails; the chunks are kept for the next one.
        """
        lost: ProcessLost | None = None
        for chunk in self._inbox.take():
            job, header = self._job, chunk.header
            if job is None or job.job != header.job or job is self._unloadable:
                continue
            try:
                with (
                    self._watch.doing(pb.LOAD_WEIGHTS),
                    timeline.span(
                        "device", "weights onto the mesh", header.step, job=header.job, chunk=header.index
                    ),
                ):
                    hit_failpoint("worker.load")
                    complete = job.weights.load(chunk)
            except Exception as error:
                if isinstance(error, ProcessLost) and self._is_leasing:
                    lost = error
                    continue
                self._unloadable = job
                death = describe_death(error)
                reason = (
                    f"the weights of step {header.step} can't be put on the mesh: {describe_failure(error)}"
                )
                log.error("job %s: %s", job.job, reason)
                too_large = job.stages is not None and is_memory_full(error)
                self._feed(ev.LoadFailed(job.job, death or reason, too_large, died=bool(death)))
                continue
            if complete:
                self._report_loaded(job)
        if lost is not None:
            raise lost

    def _report_loaded(self, job: JobOnMesh) -> None:
        version = job.weights.version
        timeline.mark("device", "weights complete", version.step, job=job.job)
        self._metrics.set_weights_step(job.job, version.step)
        self._feed(ev.Loaded(job.job, version))

    def _perform(self, lease: pb.Lease) -> None:
        if self._job is not None and self._job.job == lease.job:
            self._builder.code.begin()
            self._is_leasing = True
            try:
                self._leases.run(self._job, lease)
            finally:
                self._is_leasing = False
            if self._job.step.is_lost and self._job is not self._unloadable and not self._is_closing:
                self._revive(self._job)

    def _revive(self, job: JobOnMesh) -> None:
        """Build the job in a new compute process, since the last one has ended; sums and weights are still here."""
        self._is_building, were_loaded = True, job.weights.are_loaded
        try:
            with self._watch.doing(pb.BUILD_JOB):
                job.step.revive()
                job.weights.reload()
            if job.weights.are_loaded and not were_loaded:
                self._report_loaded(job)
        except Exception as error:
            self._unloadable = job
            reason = f"it can't be built again after its compute process ended: {describe_failure(error)}"
            log.error("job %s: %s", job.job, reason)
            death = describe_death(error)
            self._feed(ev.LoadFailed(job.job, death or reason, died=bool(death)))
        finally:
            self._is_building = False
