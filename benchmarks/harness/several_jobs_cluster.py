"""A cluster of real daemons that runs several jobs, whose micro-batches take a given time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc

from benchmarks.harness.daemons import LIMIT_SECONDS, Job
from benchmarks.harness.job_settings import BUILD
from benchmarks.harness.logged_cluster import Event, LoggedCluster, committed
from benchmarks.harness.paced_cluster import CONFIG, PACED_WORKER, RunPass, read_passes
from protos import jobs_pb2 as jobs
from protos.jobs_pb2_grpc import JobsStub
from services.config.load import load_job
from services.errors import Failed

ENDED = (jobs.SUCCEEDED, jobs.FAILED, jobs.CANCELLED)


class SeveralJobsCluster(LoggedCluster):
    """A cluster with two tiers and no job at first. Its jobs train a small GPT.

    Args:
        name: name of its folder under build/.
        workers: number of workers.
        micro_batches: micro-batches of each job's step.
        micro_batch_seconds: time of the passes of a micro-batch.
        limit_seconds: longest wait for the end of a job.
    """

    def __init__(
        self,
        name: str,
        *,
        workers: int,
        micro_batches: int,
        micro_batch_seconds: float,
        limit_seconds: float,
    ) -> None:
        self._records = BUILD / name / "records"
        self._micro_batches = micro_batches
        self._limit_seconds = limit_seconds
        environment = {
            "TIERMESH_BENCH_RECORDS": str(self._records),
            # A backward pass takes twice as long as a forward pass, and a whole model counts as one block.
            "TIERMESH_BENCH_PAUSE_SECONDS": str(micro_batch_seconds / 3),
        }
        super().__init__(name, Job(CONFIG, PACED_WORKER, environment=environment), workers=workers)

    def _open_gate(self, path: Path, stack: ExitStack) -> None:
        """Create the folder of the workers' records. These workers connect to no gate."""
        self._records.mkdir()

    def _submit_first(self) -> None:
        """Connect to the aggregator, which has no job yet."""
        self._channel = grpc.insecure_channel(self.address("aggregator"))
        stub: Any = JobsStub  # generated, without types
        self._stub = stub(self._channel)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.close()
        super().__exit__(kind, error, trace)

    def submit(self, name: str, *settings: str) -> str:
        """Submit a job, and return its id. The settings have the form of `--set`."""
        given = (
            "multihost_config.num_workers=1",
            f"training_config.gradient_accumulation_steps={self._micro_batches}",
            "transformer_config.num_blocks=2",
            "batch_size=2",
            "eval_every=0",
            "model_save_interval=0",
            *settings,
        )
        request = jobs.SubmitRequest(name=name, spec_json=load_job(CONFIG, given)[0].to_json())
        return str(self._stub.Submit(request, timeout=LIMIT_SECONDS).id)

    def cancel(self, job: str) -> None:
        """Cancel a job."""
        self._stub.Cancel(jobs.CancelRequest(job=job, now=True), timeout=LIMIT_SECONDS)

    def until_ended(self, job: str) -> jobs.Job:
        """Wait for a job's end, and return its record.

        Raises:
            Failed: it did not succeed.
        """
        ended = self._watch(job, lambda each: each.state in ENDED)
        if ended.state != jobs.SUCCEEDED:
            raise Failed(f"job {job} is {jobs.JobState.Name(ended.state).lower()}: {ended.detail}")
        return ended

    def until_step(self, job: str, step: int) -> jobs.Job:
        """Wait until so many steps of a job are committed, and return its record."""
        return self._watch(job, lambda each: each.step >= step)

    def until_more_steps_of(self, job: str, count: int) -> Event:
        """Wait until so many more steps of a job are committed, and return the newest COMMIT."""
        done = committed(self.events(job))
        self.until_step(job, done + count)
        return next(each for each in reversed(self.events(job)) if each.committed)

    def first_pass(self, since_seconds: float) -> RunPass:
        """Return the first pass of a job's first step since a moment."""
        first = [each for each in read_passes(self._records, 0) if each.start >= since_seconds]
        return min(first, key=lambda each: each.start)

    def _watch(self, job: str, found: Callable[[jobs.Job], bool]) -> jobs.Job:
        """Return the first state of a job, from now on, that is looked for. Nothing is polled, which would take time.

        Raises:
            Failed: the job has ended, or the limit was reached.
        """
        call = self._stub.Watch(jobs.JobRequest(job=job), timeout=self._limit_seconds)
        try:
            for event in call:
                if found(event.job):
                    call.cancel()
                    state: jobs.Job = event.job
                    return state
        except grpc.RpcError as error:
            raise Failed(f"job {job}: {error.code().name}; see {self.folder}") from None
        raise Failed(f"job {job} ended too early; see {self.folder}")
