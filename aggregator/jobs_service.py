"""The job service, which users and tools call: `tiermesh.Jobs`."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any, NoReturn, Protocol, TypeAlias

import grpc

from aggregator.cluster_check import ClusterCheck
from aggregator.core.retention import Limits, Part
from aggregator.history.reader import check_request, read_history
from aggregator.history.writer import MetricsHistory
from aggregator.job_register import JobRegister
from aggregator.job_starts import JobStarts
from aggregator.notifications.targets import TargetFile
from aggregator.pruner import BATCH_JOBS, EndedRecord, Pruner
from aggregator.storage.job_queue import JobFilter
from aggregator.storage.journal import Journal, in_batches
from aggregator.storage.log_lines import TIMING, lines_of_event
from aggregator.storage.queue_file import DiskFull
from aggregator.stored_checkpoints import StoredCheckpoints
from native import crc32c
from protos import jobs_pb2 as jobs
from protos.cluster_pb2 import CheckpointFiles, CheckpointRequest
from services.caps import MOST_PRIORITY, Cap, CapReached, OverCap
from services.config.job import JobConfig
from services.errors import Failed, NotYet, Refused
from services.printable import FAILURE_CHARACTERS, LINE_CHARACTERS, printable
from services.protocol.checksums import ChecksumMismatch, verify_checksum
from services.tracking.catalogue import check_trackers
from services.transport.access.enforcement import Denied, caller_address, check_permission, current_caller
from services.transport.access.permissions import (
    CANCEL_OTHERS_JOB,
    PAUSE_OTHERS_JOB,
    PRUNE_OTHERS_JOB,
    RAISE_PRIORITY,
    RESUME_OTHERS_JOB,
    SEND_CODE,
    SET_PRIORITY_OF_OTHERS_JOB,
    TRUST_IN_OTHERS_JOB,
)
from services.transport.request_handlers import service_handler

log = logging.getLogger("tiermesh.aggregator")

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
_FAILURES = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)
"""Statuses of failures, whose reasons may list several causes."""
ENDED_STATES = (jobs.SUCCEEDED, jobs.FAILED, jobs.CANCELLED)
_PARTS: Mapping[jobs.PrunePart, Part] = {
    jobs.WHOLE_JOB: Part.JOBS,
    jobs.CHECKPOINTS: Part.CHECKPOINTS,
    jobs.LOG: Part.LOGS,
}


class JobsBackend(Protocol):
    """The part of an aggregator that the job service needs."""

    @property
    def register(self) -> JobRegister:
        """All jobs."""

    @property
    def journal(self) -> Journal:
        """The logs and live events of all jobs."""

    @property
    def history(self) -> MetricsHistory:
        """The histories of all jobs' figures."""

    @property
    def notify_targets(self) -> TargetFile:
        """The targets of jobs' `notify`."""

    @property
    def pruner(self) -> Pruner:
        """Removes what ended jobs have left."""

    @property
    def starts(self) -> JobStarts:
        """Finds the checkpoints that new jobs start from."""

    @property
    def check(self) -> ClusterCheck:
        """Checks all meshes and links."""

    def status(self) -> jobs.ClusterStatus:
        """Return the cluster's current status."""

    @property
    def stored(self) -> StoredCheckpoints:
        """The checkpoints on the optimizer's disk."""


class JobsServicer:
    """Serves `tiermesh.Jobs`.

    Args:
        backend: the aggregator that runs the jobs.
        count_cap_reached: counts submissions that a cap refuses.
    """

    def __init__(self, backend: JobsBackend, count_cap_reached: Callable[[Cap], None]) -> None:
        self._backend = backend
        self._count_cap_reached = count_cap_reached

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return the gRPC handlers."""
        return service_handler(jobs.DESCRIPTOR.services_by_name["Jobs"], self)

    async def Submit(self, request: jobs.SubmitRequest, context: Context) -> jobs.Job:
        """Queue a job; once this answers, the job survives kill -9. A repeated request answers with the same job."""
        found = crc32c.value(request.spec_json.encode())
        if request.HasField("spec_crc32c") and found != request.spec_crc32c:
            text = f"spec_json is damaged: crc32c {found:#010x}, expected {request.spec_crc32c:#010x}; submit it again"
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, text)

        async def read_config() -> JobConfig:
            return await self._backend.starts.pin(JobConfig.from_json(request.spec_json))

        return await self._queue(read_config(), request.name, request.request_id, context)

    async def Continue(self, request: jobs.ContinueRequest, context: Context) -> jobs.Job:
        """Queue a job that goes on where an ended one has stopped; answers like Submit."""
        try:
            verify_checksum(request, request.SerializeToString())
        except ChecksumMismatch as mismatch:
            text = f"ContinueRequest is damaged: {mismatch}; send it again"
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, text)
        config = self._backend.starts.continued(request)
        return await self._queue(config, "", request.request_id, context)

    async def _queue(
        self, config: Coroutine[Any, Any, JobConfig], name: str, request_id: str, context: Context
    ) -> jobs.Job:
        try:
            complete = await config
            _check_priority(complete.priority)
            if complete.code is not None:
                check_permission(SEND_CODE, current_caller())
            if complete.tracking.written_by == "aggregator":
                check_trackers(complete.tracking.trackers, "at the aggregator")
            if complete.notify is not None:
                self._backend.notify_targets.check(complete.notify)
            self._backend.pruner.check_start(complete.to_json())
            job = self._backend.register.submit(
                complete, name=name, request_id=request_id, owner=current_caller().person
            )
        except Denied as denied:
            await _abort(context, denied.code, str(denied))
        except Refused as refused:
            if isinstance(refused, OverCap):
                self._count_cap_reached(refused.cap)
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(refused))
        except Failed as failed:
            if isinstance(failed, CapReached):
                self._count_cap_reached(failed.cap)
            await _abort_failed(context, failed)
        self._audit("submitted", job, context)
        return job

    async def List(self, request: jobs.ListRequest, context: Context) -> jobs.ListReply:
        """Return a page of jobs."""
        token = request.page_token
        if token and not (token.isdecimal() and token.isascii() and len(token) < 19):
            text = f"page_token {token!r}: not one that List returned; leave it out for the first page"
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, text)
        after = int(token) if token else None
        try:
            page = self._backend.register.page(
                after,
                request.limit,
                newest_first=request.newest_first,
                only=JobFilter(frozenset(request.states), request.owner, request.name),
            )
        except Failed as failed:
            await _abort_failed(context, failed)
        following = "" if page.next_place is None else str(page.next_place)
        return jobs.ListReply(jobs=page.jobs, next_page_token=following)

    async def Get(self, request: jobs.JobRequest, context: Context) -> jobs.Job:
        """Return one job's current state, with its place in the queue and advice on its workers."""
        return self._backend.register.describe(await self._job(request.job, context))

    async def Spec(self, request: jobs.JobRequest, context: Context) -> jobs.JobSpec:
        """Return what a job was submitted as."""
        job = await self._job(request.job, context)
        try:
            spec_json = self._backend.register.read_spec(job.id)
        except Failed as failed:
            await _abort_failed(context, failed)
        checksum = crc32c.value(spec_json.encode())
        return jobs.JobSpec(job=job.id, spec_json=spec_json, spec_crc32c=checksum)

    async def Cancel(self, request: jobs.CancelRequest, context: Context) -> jobs.Job:
        """Cancel a job that has not ended; once this answers, it does not run again."""
        cancel = partial(self._backend.register.cancel, now=request.now)
        return await self._change(request.job, cancel, CANCEL_OTHERS_JOB, "cancelled", context)

    async def Pause(self, request: jobs.JobRequest, context: Context) -> jobs.Job:
        """Have a queued or running job wait until it is resumed; once this answers, the decision survives kill -9."""
        pause = self._backend.register.pause
        return await self._change(request.job, pause, PAUSE_OTHERS_JOB, "paused", context)

    async def Resume(self, request: jobs.JobRequest, context: Context) -> jobs.Job:
        """Queue a paused job in its old place; once this answers, the decision survives kill -9."""
        resume = self._backend.register.resume
        return await self._change(request.job, resume, RESUME_OTHERS_JOB, "resumed", context)

    async def SetPriority(self, request: jobs.PriorityRequest, context: Context) -> jobs.Job:
        """Change the priority of a job that has not ended; once this answers, the decision survives kill -9."""
        priority = request.priority
        if abs(priority) > MOST_PRIORITY:
            text = (
                f"priority {priority}: expected {-MOST_PRIORITY} to {MOST_PRIORITY}; give one in this range"
            )
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, text)

        def set_priority(job: str) -> jobs.Job:
            _check_priority(priority)
            return self._backend.register.set_priority(job, priority)

        done = f"priority {priority} given"
        return await self._change(request.job, set_priority, SET_PRIORITY_OF_OTHERS_JOB, done, context)

    async def Trust(self, request: jobs.TrustRequest, context: Context) -> jobs.Job:
        """Pin a running job to what a worker says of it; once this answers, the decision survives kill -9."""

        def trust(job: str) -> jobs.Job:
            return self._backend.register.trust(job, request.worker)

        done = f"worker {printable(request.worker, 60)} trusted"
        return await self._change(request.job, trust, TRUST_IN_OTHERS_JOB, done, context)

    async def _change(
        self, part: str, change: Callable[[str], jobs.Job], others: str, done: str, context: Context
    ) -> jobs.Job:
        """Change a job as its owner has asked for.

        Args:
            part: the job's id, a part of it, or `latest`.
            change: changes the job with this id, on disk first; returns its record.
            others: row of the table of permissions for jobs of other owners.
            done: what was done to the job, for the logs.
            context: the call.
        """
        found = await self._job(part, context)
        try:
            _check_owner(found.owner, others)
            job = change(found.id)
        except Denied as denied:
            await _abort(context, denied.code, str(denied))
        except Refused as refused:
            await _abort(context, grpc.StatusCode.FAILED_PRECONDITION, str(refused))
        except Failed as failed:
            await _abort_failed(context, failed)
        self._audit(done, job, context)
        return job

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
            lines = self._backend.journal.lines(job.id, timing=request.timing, tail=request.tail)
            async for line in in_batches(lines) if request.batched else lines:
                yield line
            while request.follow and (job.state not in ENDED_STATES or not events.empty()):
                event = await _next(events, context)
                job = event.job
                for each in lines_of_event(event):
                    if request.timing or each.kind != TIMING:
                        yield jobs.LogLine(seconds=event.seconds, text=each.text)

    async def Metrics(
        self, request: jobs.MetricsRequest, context: Context
    ) -> AsyncIterator[jobs.MetricsRows]:
        """Stream the history of a job's figures. A thread reads it, as fast as the parts are taken."""
        job = await self._job(request.job, context)
        try:
            check_request(request)
            parts = read_history(self._backend.history.folder / job.id, request)
            while (part := await asyncio.to_thread(next, parts, None)) is not None:
                yield part
        except Refused as refused:
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(refused))
        except OSError as error:
            await _abort_failed(
                context, Failed(f"job {job.id}: its history can't be read: {error}; see the disk")
            )
        except Failed as failed:
            await _abort_failed(context, failed)

    async def Checkpoint(self, request: CheckpointRequest, context: Context) -> CheckpointFiles:
        """Return the files of a checkpoint, which `tiermesh.Files` sends."""
        request.job = (await self._job(request.job, context)).id
        try:
            return await self._backend.stored.list_files(request)
        except Refused as refused:
            await _abort(context, grpc.StatusCode.NOT_FOUND, str(refused))
        except Failed as failed:
            await _abort_failed(context, failed)

    async def Status(self, request: jobs.StatusRequest, context: Context) -> jobs.ClusterStatus:
        """Return the cluster's current status."""
        return self._backend.status()

    async def Check(self, request: jobs.CheckRequest, context: Context) -> AsyncIterator[jobs.CheckResult]:
        """Check all meshes and links; stream each result as soon as it is known."""
        log.info("check of the cluster: asked for by %s at %s", current_caller(), caller_address(context))
        try:
            async with aclosing(self._backend.check.run(request)) as results:
                async for each in results:
                    yield each
        except Refused as refused:
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(refused))
        except NotYet as not_yet:
            await _abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, str(not_yet))

    async def Prune(self, request: jobs.PruneRequest, context: Context) -> AsyncIterator[jobs.PrunedJob]:
        """Remove ended jobs or a part of them; tell each one that goes, or that should and was kept."""
        try:
            part, limits = _read_limits(request)
            ids = await self._select(request, part, limits, context)
            at_once = BATCH_JOBS if request.dry_run else 1  # so that each job is told as soon as it is gone
            for start in range(0, len(ids), at_once):
                pruned = await self._backend.pruner.prune(
                    ids[start : start + at_once],
                    part,
                    by=current_caller().person or "request",
                    dry_run=request.dry_run,
                )
                for each in pruned:
                    if not request.dry_run and not each.kept:
                        text = "job %s: %s pruned by %s at %s"
                        log.info(
                            text,
                            each.job.id,
                            part.value,
                            current_caller(),
                            caller_address(context),
                            extra={"job": each.job.id},
                        )
                    yield each
        except Denied as denied:
            await _abort(context, denied.code, str(denied))
        except Refused as refused:
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(refused))
        except Failed as failed:
            await _abort_failed(context, failed)

    async def _select(
        self, request: jobs.PruneRequest, part: Part, limits: Limits, context: Context
    ) -> list[str]:
        """Return the ids of the ended jobs that a request is about, newest first."""
        named: dict[str, None] = {}  # in order
        for each in request.jobs:
            job = await self._job(each, context)
            _check_owner(job.owner, PRUNE_OTHERS_JOB)
            if job.state not in ENDED_STATES:
                state = jobs.JobState.Name(job.state).lower()
                text = f"job {job.id} is {state}; only jobs that have ended can be pruned, so cancel it first"
                await _abort(context, grpc.StatusCode.FAILED_PRECONDITION, text)
            named[job.id] = None
        if named and not limits.are_given:
            return list(named)

        def is_meant(job: EndedRecord) -> bool:
            try:
                _check_owner(job.owner, PRUNE_OTHERS_JOB)
            except Denied:
                return False
            return not named or job.id in named

        return [each.id for each in await self._backend.pruner.select(is_meant, part, limits)]

    def _audit(self, done: str, job: jobs.Job, context: Context) -> None:
        """Log what a person did to a job, in the job's log too if the person is known."""
        caller = current_caller()
        log.info(
            "job %s: %s by %s at %s", job.id, done, caller, caller_address(context), extra={"job": job.id}
        )
        if caller.person:
            text = f"{done} by {caller.person}"
            self._backend.journal.publish(
                jobs.JobEvent(job=job, seconds=time.time(), kind="audit", text=text)
            )

    async def _job(self, part: str, context: Context) -> jobs.Job:
        """Return the record of the job that a request names by its id, a part of it, or `latest`."""
        try:
            found = self._backend.register.look_up(part)
            if found is None:
                await _abort(
                    context, grpc.StatusCode.NOT_FOUND, self._backend.register.describe_unknown(part)
                )
            return found
        except Refused as refused:
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(refused))
        except Failed as failed:
            await _abort_failed(context, failed)


def _check_owner(owner: str, others: str) -> None:
    """Check that the caller owns a job, or may do this to jobs of others.

    Args:
        owner: the job's owner; empty if nobody does.
        others: row of the table of permissions.

    Raises:
        Denied: neither is so.
    """
    if owner and owner != current_caller().person:
        check_permission(others, current_caller())


def _check_priority(priority: int) -> None:
    """Check that the caller may give a job this priority (Denied)."""
    if priority > 0:
        check_permission(RAISE_PRIORITY, current_caller())


def _read_limits(request: jobs.PruneRequest) -> tuple[Part, Limits]:
    """Return what goes and the limits that a request gives.

    Raises:
        Refused: one is missing or out of range.
    """
    part = _PARTS.get(request.part)
    if part is None:
        raise Refused(f"part {request.part}: expected 1 (whole job), 2 (checkpoints) or 3 (log); give one")
    age = request.older_than_seconds if request.HasField("older_than_seconds") else None
    if age is not None and not 0 <= age < math.inf:
        raise Refused(f"older_than_seconds {age}: expected a number of 0 or more; give a finite one")
    limits = Limits(
        age,
        request.keep if request.HasField("keep") else None,
        request.max_bytes if request.HasField("max_bytes") else None,
    )
    if not request.jobs and not limits.are_given:
        raise Refused(
            "neither jobs nor a limit: expected at least one; name jobs, or give older_than_seconds, keep or max_bytes"
        )
    return part, limits


async def _next(events: asyncio.Queue[jobs.JobEvent | None], context: Context) -> jobs.JobEvent:
    event = await events.get()
    if event is None:
        text = "this aggregator stops or no longer leads; call again, or call the one that leads"
        await _abort(context, grpc.StatusCode.UNAVAILABLE, text)
    return event


async def _abort_failed(context: Context, failed: Failed) -> NoReturn:
    """End a call that had no effect, and say whether there was no room for it, or whether a later call helps."""
    full = isinstance(failed, DiskFull | CapReached)
    code = grpc.StatusCode.RESOURCE_EXHAUSTED if full else grpc.StatusCode.UNAVAILABLE
    await _abort(context, code, str(failed))


async def _abort(context: Context, code: grpc.StatusCode, text: str) -> NoReturn:
    await context.abort(code, printable(text, FAILURE_CHARACTERS if code in _FAILURES else LINE_CHARACTERS))
    raise AssertionError("abort raises")
