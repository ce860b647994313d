"""The job service, which users and tools call: `tiermesh.Jobs`."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any, NoReturn, Protocol, TypeAlias

import google_crc32c
import grpc

from aggregator.core.events import CancelRequested, Submitted
from aggregator.core.job_report import Record
from aggregator.storage.journal import Journal
from protos import jobs_pb2 as jobs
from protos.cluster_pb2 import FilePart, ReadCheckpointRequest
from services.config.job import JobConfig
from services.errors import Failed, Refused
from services.transport.request_handlers import service_handler

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
ENDED_STATES = (jobs.SUCCEEDED, jobs.FAILED, jobs.CANCELLED)


class JobsBackend(Protocol):
    """The part of an aggregator that the job service needs."""

    @property
    def records(self) -> Mapping[str, Record]:
        """All jobs by id, oldest first."""

    @property
    def journal(self) -> Journal:
        """The logs and live events of all jobs."""

    def feed(self, event: Submitted | CancelRequested) -> None:
        """Queue or cancel a job; the change is on disk afterwards."""

    def status(self) -> jobs.ClusterStatus:
        """Return the cluster's current status."""

    def read_checkpoint(self, request: ReadCheckpointRequest) -> AsyncIterator[FilePart | None]:
        """Read the files of a checkpoint; a part is None if it was damaged on the way."""


class JobsServicer:
    """Serves `tiermesh.Jobs`.

    Args:
        backend: The aggregator that runs the jobs.
    """

    def __init__(self, backend: JobsBackend) -> None:
        self._backend = backend

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return the gRPC handlers."""
        return service_handler(jobs.DESCRIPTOR.services_by_name["Jobs"], self)

    async def Submit(self, request: jobs.SubmitRequest, context: Context) -> jobs.Job:
        """Queue a job; once this answers, the job survives kill -9."""
        found = google_crc32c.value(request.spec_json.encode())
        if request.HasField("spec_crc32c") and found != request.spec_crc32c:
            text = f"spec_json is damaged: crc32c {found:#010x}, expected {request.spec_crc32c:#010x}; submit it again"
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, text)
        try:
            config = JobConfig.from_json(request.spec_json)
        except Refused as refused:
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(refused))
        job = jobs.Job(
            id=time.strftime("%m%d-%H%M%S-") + secrets.token_hex(2),
            name=request.name or config.name,
            submitted_seconds=time.time(),
        )
        self._backend.feed(Submitted(job, config.to_json(), config.plan()))
        return self._backend.records[job.id].job

    async def List(self, request: jobs.ListRequest, context: Context) -> jobs.ListReply:
        """Return all jobs, oldest first."""
        records = self._backend.records.values()
        return jobs.ListReply(jobs=[record.job for record in records])

    async def Get(self, request: jobs.JobRequest, context: Context) -> jobs.Job:
        """Return one job's current state."""
        return await self._job(request.job, context)

    async def Cancel(self, request: jobs.JobRequest, context: Context) -> jobs.Job:
        """Cancel a queued or running job."""
        job = await self._job(request.job, context)
        if job.state in ENDED_STATES:
            state = jobs.JobState.Name(job.state).lower()
            text = f"job {job.id} is {state} already; only queued and running jobs can be cancelled"
            await _abort(context, grpc.StatusCode.FAILED_PRECONDITION, text)
        self._backend.feed(CancelRequested(job.id))
        return await self._job(request.job, context)

    async def Watch(self, request: jobs.JobRequest, context: Context) -> AsyncIterator[jobs.JobEvent]:
        """Stream a job's current state, then each event until the job ends."""
        job = await self._job(request.job, context)
        with self._backend.journal.subscription(job.id) as events:
            # A copy, since the record may change while this waits for its reader.
            event = jobs.JobEvent(job=job, seconds=time.time(), kind="state", text=job.detail)
            yield event
            while event.job.state not in ENDED_STATES:
                event = await _next(events, context)
                yield event

    async def Logs(self, request: jobs.LogsRequest, context: Context) -> AsyncIterator[jobs.LogLine]:
        """Stream a job's log so far, and with `follow` until the job ends."""
        job = await self._job(request.job, context)
        with self._backend.journal.subscription(job.id) as events:
            for line in self._backend.journal.read(job.id):
                yield line
            while request.follow and (job.state not in ENDED_STATES or not events.empty()):
                event = await _next(events, context)
                job = event.job
                yield jobs.LogLine(seconds=event.seconds, text=event.text)

    async def Download(self, request: jobs.DownloadRequest, context: Context) -> AsyncIterator[FilePart]:
        """Stream the files of a checkpoint."""
        job = await self._job(request.job, context)
        ask = ReadCheckpointRequest(job=job.id, step=request.step, newest=request.newest)
        try:
            async for part in self._backend.read_checkpoint(ask):
                if part is None:  # gRPC could not decode the message
                    raise Failed("the optimizer's answer to ReadCheckpoint was damaged; try again")
                yield part
        except Refused as refused:
            await _abort(context, grpc.StatusCode.NOT_FOUND, str(refused))
        except Failed as failed:
            await _abort(context, grpc.StatusCode.UNAVAILABLE, str(failed))
        except grpc.aio.AioRpcError as error:
            await _abort(context, error.code(), error.details() or "")

    async def Status(self, request: jobs.StatusRequest, context: Context) -> jobs.ClusterStatus:
        """Return the cluster's current status."""
        return self._backend.status()

    async def _job(self, job: str, context: Context) -> jobs.Job:
        record = self._backend.records.get(job)
        if record is None:
            known = ", ".join(list(self._backend.records)[-5:]) or "none"
            await _abort(context, grpc.StatusCode.NOT_FOUND, f"no job {job!r}; the newest are: {known}")
        return record.job


async def _next(events: asyncio.Queue[jobs.JobEvent | None], context: Context) -> jobs.JobEvent:
    event = await events.get()
    if event is None:
        text = "this aggregator stops or no longer leads; call again, or call the one that leads"
        await _abort(context, grpc.StatusCode.UNAVAILABLE, text)
    return event


async def _abort(context: Context, code: grpc.StatusCode, text: str) -> NoReturn:
    await context.abort(code, text)
    raise AssertionError("abort raises")
