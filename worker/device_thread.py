"""The thread on which everything of the mesh happens, one task after another.

The event loop submits the core's effects as tasks. The thread answers with inputs for the core.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from types import MappingProxyType
from typing import Any

from mesh.ttnn_errors import is_memory_full
from plane.lease_sums import LeaseSums
from protos import cluster_pb2 as pb
from protos.checks_pb2 import MeshReport
from protos.tensors_pb2 import ChunkHeader
from services.config.job import JobConfig
from services.config.job_inputs import relocate_inputs
from services.corpora.conversion import is_conversion
from services.corpora.reading_progress import watch_reading
from services.corpora.token_file import TokenFileDamaged
from services.errors import Failed, describe_internal_error
from services.instrumentation import timeline
from services.instrumentation.failpoints import hit_failpoint
from services.pipeline.split import StageRun
from services.protocol.versions import Version
from services.runtime.metrics import WorkerMetrics
from services.tasks import start_thread
from services.tensors.chunk_messages import TensorChunk
from worker.chip_memory import ChipMemoryShort
from worker.core import events as ev
from worker.device_watch import DeviceWatch
from worker.file_exchange import ModelFiles
from worker.input_reading import BuildDropped, InputReading
from worker.job_on_mesh import JobBuilder, JobOnMesh
from worker.lease_runner import LeaseRunner, describe_failure
from worker.mesh_check import check_mesh
from worker.row_exchange import OpenExchange, refuse_exchange
from worker.weight_loader import WeightInbox

log = logging.getLogger("tiermesh.worker")

PATIENCE_SECONDS = 60.0
"""Time that a lease waits for weights before a line is logged. It goes on waiting."""


ABANDON_SECONDS = 1.0
"""Time that a stopping worker waits for a build. A build may hang for ever: in a file of a mount that is gone, or in a
device. The process ends without it, which closes what it had opened."""


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
        self._reading: InputReading | None = None  # of the build that is wanted
        self._copies: frozenset[Path] = frozenset()  # the job's inputs that this worker has fetched
        self._last_shape: tuple[int, int] | None = None  # of the last job's mesh
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

    def drop_leases(self) -> None:
        """End the lease under way after its micro-batch, or where it waits for weights, and all that wait for it."""
        self._leases.drop_all()

    def close(self) -> None:
        """Drop all leases, free the mesh and end the thread. A build that goes on is abandoned."""
        self.drop_leases()
        self._drop_build()
        self._submit(self._drop_job)
        self._tasks.put(None)
        self._thread.join(ABANDON_SECONDS)
        if self._thread.is_alive() and self._is_building:
            log.warning(
                "the job that is being built is abandoned: it did not end within %g s", ABANDON_SECONDS
            )
            return
        self._thread.join()

    def _drop_build(self) -> None:
        """End a build that is under way, if it reads a job's inputs."""
        if self._reading is not None:
            self._reading.drop()

    def _submit(self, task: Callable[..., None], *arguments: Any) -> None:
        self._tasks.put(partial(task, *arguments))

    # ---- on the device thread ----

    def _run_tasks(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task()
            except BaseException as error:  # no caller waits for a task; SystemExit would end the thread
                log.exception("%s", describe_internal_error(error))

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
            with watch_reading(partial(self._watch_reading, reading)), self._watch.doing(pb.BUILD_JOB):
                self._build_job(reading.job, spec_json, places, stages, number)
        except BuildDropped:
            log.info("job %s: its build is dropped", reading.job)
        finally:
            self._is_building = False

    def _watch_reading(self, reading: InputReading, path: Path, read_bytes: int, size_bytes: int) -> None:
        self._watch.advance()
        reading.watch(path, read_bytes, size_bytes)

    def _build_job(
        self, job_id: str, spec_json: str, places: Mapping[str, Path], stages: StageRun | None, number: int
    ) -> None:
        try:
            self._drop_job()
            self._copies = frozenset(places.values())
            config = relocate_inputs(JobConfig.from_json(spec_json), places)
            try:
                own_code = self._builder.code.prepare(job_id, config)
            except Failed as error:
                self._report_unfit(job_id, error, number)
                return
            try:
                with self._watch.doing(pb.OPEN_MESH):
                    mesh = self._builder.open_job_mesh(config, stages)
            except Failed as error:
                self._metrics.set_mesh_fit(False)
                self._report_unfit(job_id, error, number)
                return
            self._metrics.set_mesh_fit(True)
            self._last_shape = mesh.shape
            job = self._builder.build(
                job_id,
                config,
                mesh,
                stages,
                own_code,
                fetch=self._leases.fetch,
                on_new_version=self._sums.reuse_retired,
                on_non_finite=self._leases.note_non_finite,
            )
        except TokenFileDamaged as error:
            self._report_damaged(job_id, error)
            return
        except BuildDropped:
            raise
        except BaseException as error:  # a model's SystemExit too
            too_large = stages is not None and isinstance(error, ChipMemoryShort)
            reason = describe_failure(error)
            self._feed(ev.BuildFailed(job_id, reason, too_large=too_large, number=number))
            return
        self._job = job
        self._feed(replace(job.describe(), number=number))

    def _report_unfit(self, job: str, error: Failed, number: int) -> None:
        log.error("job %s: this worker is unfit, trying again later: %s", job, error)
        self._feed(ev.BuildFailed(job, str(error), unfit=True, number=number))

    def _report_damaged(self, job: str, error: TokenFileDamaged) -> None:
        log.error("job %s: %s", job, error)
        is_own = error.path in self._copies or is_conversion(error.path)
        damaged = ev.DamagedInput(str(error.path), error.inode) if is_own else None
        self._feed(ev.InputDamaged(job, damaged, str(error)))

    def _check_mesh(self, order: pb.CheckMesh, report: Callable[[MeshReport], None]) -> None:
        self._is_building = True  # it may hang in a device, as a build may
        try:
            with self._watch.doing(pb.CHECK_THE_MESH):
                report(check_mesh(order, self._last_shape))
        finally:
            self._is_building = False

    def _drop_job(self) -> None:
        self._leases.clear()
        job, self._job, self._unloadable = self._job, None, None
        if job is not None:
            try:
                with self._watch.doing(pb.CLOSE_MESH):
                    job.close()
            except BaseException as error:  # the next job may still be able to open the mesh
                log.error("job %s: the mesh did not close: %s", job.job, describe_failure(error))

    def _load(self) -> None:
        """Put the chunks that have arrived on the mesh. After a failure the core ends its leases and drops the job."""
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
            except BaseException as error:
                self._unloadable = job
                reason = (
                    f"the weights of step {header.step} can't be put on the mesh: {describe_failure(error)}"
                )
                log.error("job %s: %s", job.job, reason)
                too_large = job.stages is not None and is_memory_full(error)
                self._feed(ev.LoadFailed(job.job, reason, too_large))
                continue
            if complete:
                self._report_loaded(job, header)

    def _report_loaded(self, job: JobOnMesh, last: ChunkHeader) -> None:
        timeline.mark("device", "weights complete", last.step, job=last.job)
        self._metrics.set_weights_step(last.job, last.step)
        job.first_iteration.note_weights()
        self._feed(ev.Loaded(last.job, Version(last.generation, last.step)))

    def _perform(self, lease: pb.Lease) -> None:
        if self._job is not None and self._job.job == lease.job:
            self._builder.code.begin()
            self._leases.run(self._job, lease)
