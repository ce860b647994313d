"""A small job service for tests of the command; the test sets its answers."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import google_crc32c
import grpc

from aggregator.core.job_report import pause_job, resume_job
from aggregator.core.membership.claims import trust
from aggregator.storage.job_queue import LATEST, JobFilter
from protos import cluster_pb2, files_pb2, jobs_pb2
from services.errors import Failed
from services.files.errors import FileMissing
from services.files.pieces import make_piece
from services.files.service import FilesServicer
from services.files.store import FileStore
from services.protocol.file_refs import make_ref
from services.transport.access.permissions import FILES_OF_AGGREGATOR
from services.transport.request_handlers import service_handler
from services.transport.security import Security
from services.transport.server import start_server

Context = Any
TIMING_LINE = "timing line"
"""Line of a log that is about time."""


class FakeAggregator:
    """Job service that answers from its attributes.

    Attributes:
        jobs: jobs by id, in order of submission.
        specs: what Spec answers, by id; it does not know the call for other jobs, as an older version.
        submitted: requests that arrived.
        continued: number of Continue requests that arrived.
        events: events that Watch sends, one list per call; then it sends the job of `jobs`.
        files: files of the one checkpoint, by path.
        step: step that Checkpoint names for the newest checkpoint.
        sent_sizes: wrong sizes that it names, by path.
        served: wrong contents that Read sends, by path.
        piece_bytes: size of the pieces that it sends.
        read: SHA-256 and offset of each piece that was read.
        silent_after: number of pieces after which Read fails; None for never.
        is_removed: whether Read says that the checkpoint was removed.
        silent: whether calls are never answered.
        standby_of: name of the leader, if this is a standby; empty if it leads.
        prunes: prune requests that arrived.
        prunable: what Prune answers, for the jobs that a request is about.
        checked: what Check answers.
        lines: what Logs answers.
        metrics: what Metrics answers.
        metrics_requests: requests of it that arrived.
        status: answer of Status.
        store: store of uploaded files; None for none.
        address: `HOST:PORT`, once it is served.
        at_end_of_events: callback before Watch ends, as if the aggregator restarted.
    """

    def __init__(self) -> None:
        self.jobs: dict[str, jobs_pb2.Job] = {}
        self.specs: dict[str, str] = {}
        self.submitted: list[jobs_pb2.SubmitRequest] = []
        self.continued: list[jobs_pb2.ContinueRequest] = []
        self.events: list[list[jobs_pb2.JobEvent]] = []
        self.files: dict[str, bytes] = {}
        self.step = 500
        self.sent_sizes: dict[str, int] = {}
        self.served: dict[str, bytes] = {}
        self.piece_bytes = 1000
        self.read: list[tuple[str, int]] = []
        self.silent_after: int | None = None
        self.is_removed = False
        self.silent = False
        self.lost_answers = 0
        self.standby_of = ""
        self.at_end_of_events: Callable[[], None] = lambda: None
        self.prunes: list[jobs_pb2.PruneRequest] = []
        self.prunable: list[jobs_pb2.PrunedJob] = []
        self.checked: list[jobs_pb2.CheckResult] = []
        self.lines = ["first line", TIMING_LINE, "second line"]
        self.metrics = [jobs_pb2.MetricsRows()]
        self.metrics_requests: list[jobs_pb2.MetricsRequest] = []
        self.status = jobs_pb2.ClusterStatus(epoch=3, tiers=3, leader="agg", optimizer="optimizer-host")
        self.store: FileStore | None = None
        self.address = ""

    async def Submit(self, request: jobs_pb2.SubmitRequest, context: Context) -> jobs_pb2.Job:
        self.submitted.append(request)
        if self.lost_answers:
            self.lost_answers -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the answer is lost")
        job = jobs_pb2.Job(id=f"job-{len(self.jobs) + 1}", name=request.name, state=jobs_pb2.QUEUED, steps=10)
        self.jobs[job.id] = job
        return job

    async def Continue(self, request: jobs_pb2.ContinueRequest, context: Context) -> jobs_pb2.Job:
        self.continued.append(request)
        start = jobs_pb2.Start(job=(await self._job(request.job, context)).id, step=request.step)
        job = jobs_pb2.Job(
            id=f"job-{len(self.jobs) + 1}", state=jobs_pb2.QUEUED, steps=request.steps, start=start
        )
        self.jobs[job.id] = job
        return job

    async def List(self, request: jobs_pb2.ListRequest, context: Context) -> jobs_pb2.ListReply:
        if self.silent:
            await asyncio.Event().wait()
        start, page = int(request.page_token or 0), request.limit or 3
        only = JobFilter(frozenset(request.states), request.owner, request.name)
        found = list(self.jobs.values())
        found = found[::-1] if request.newest_first else found
        following = str(start + page) if start + page < len(found) else ""
        matching = filter(only.matches, found[start : start + page])
        return jobs_pb2.ListReply(jobs=matching, next_page_token=following)

    async def Get(self, request: jobs_pb2.JobRequest, context: Context) -> jobs_pb2.Job:
        return await self._job(request.job, context)

    async def Spec(self, request: jobs_pb2.JobRequest, context: Context) -> jobs_pb2.JobSpec:
        job = await self._job(request.job, context)
        if job.id not in self.specs:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
        spec_json = self.specs[job.id]
        crc32c = google_crc32c.value(spec_json.encode())
        return jobs_pb2.JobSpec(job=job.id, spec_json=spec_json, spec_crc32c=crc32c)

    async def Cancel(self, request: jobs_pb2.CancelRequest, context: Context) -> jobs_pb2.Job:
        job = await self._job(request.job, context)
        job.state = jobs_pb2.CANCELLED
        job.detail = "cancelled by request"
        return job

    async def Pause(self, request: jobs_pb2.JobRequest, context: Context) -> jobs_pb2.Job:
        job = await self._job(request.job, context)
        pause_job(job)
        return job

    async def Resume(self, request: jobs_pb2.JobRequest, context: Context) -> jobs_pb2.Job:
        job = await self._job(request.job, context)
        resume_job(job)
        return job

    async def SetPriority(self, request: jobs_pb2.PriorityRequest, context: Context) -> jobs_pb2.Job:
        job = await self._job(request.job, context)
        job.priority = request.priority
        return job

    async def Trust(self, request: jobs_pb2.TrustRequest, context: Context) -> jobs_pb2.Job:
        job = await self._job(request.job, context)
        refusal = trust(job, request.worker)
        if refusal is not None:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(refusal))
        return job

    async def Check(
        self, request: jobs_pb2.CheckRequest, context: Context
    ) -> AsyncIterator[jobs_pb2.CheckResult]:
        for each in self.checked:
            yield each

    async def Prune(
        self, request: jobs_pb2.PruneRequest, context: Context
    ) -> AsyncIterator[jobs_pb2.PrunedJob]:
        self.prunes.append(request)
        for job in request.jobs:
            await self._job(job, context)
        for each in self.prunable:
            if not request.jobs or each.job.id in request.jobs:
                yield each

    async def Watch(self, request: jobs_pb2.JobRequest, context: Context) -> AsyncIterator[jobs_pb2.JobEvent]:
        if self.events:
            for event in self.events.pop(0):
                self.jobs[event.job.id] = event.job
                yield event
            if self.events:
                self.at_end_of_events()
                await context.abort(grpc.StatusCode.UNAVAILABLE, "restarting")
            return
        yield jobs_pb2.JobEvent(job=await self._job(request.job, context), kind="state")
        await asyncio.Event().wait()

    async def Logs(self, request: jobs_pb2.LogsRequest, context: Context) -> AsyncIterator[jobs_pb2.LogLine]:
        await self._job(request.job, context)
        lines = self.lines if request.timing else [each for each in self.lines if each != TIMING_LINE]
        for text in lines[-request.tail :]:
            yield jobs_pb2.LogLine(seconds=1.0, text=text)

    async def Metrics(
        self, request: jobs_pb2.MetricsRequest, context: Context
    ) -> AsyncIterator[jobs_pb2.MetricsRows]:
        await self._job(request.job, context)
        self.metrics_requests.append(request)
        for part in self.metrics:
            yield part

    async def Checkpoint(
        self, request: cluster_pb2.CheckpointRequest, context: Context
    ) -> cluster_pb2.CheckpointFiles:
        await self._job(request.job, context)
        refs = {path: make_ref(content) for path, content in self.files.items()}
        for path, size in self.sent_sizes.items():
            refs[path].size = size
        return cluster_pb2.CheckpointFiles(step=self.step if request.newest else request.step, files=refs)

    async def _read_piece(self, request: files_pb2.ReadFileRequest) -> files_pb2.FilePiece:
        if self.silent_after is not None and len(self.read) >= self.silent_after:
            raise Failed("the optimizer was lost")
        self.read.append((request.sha256, request.offset))
        for path, content in self.files.items():
            if make_ref(content).sha256 == request.sha256 and not self.is_removed:
                ref = files_pb2.FileRef(sha256=request.sha256, size=self.sent_sizes.get(path, len(content)))
                return make_piece(self.served.get(path, content), ref, request.offset, self.piece_bytes)
        raise FileMissing("the checkpoint was removed")

    async def Status(self, request: jobs_pb2.StatusRequest, context: Context) -> jobs_pb2.ClusterStatus:
        if self.standby_of:
            await context.abort(
                grpc.StatusCode.UNAVAILABLE, f"this aggregator is a standby; the leader is {self.standby_of}"
            )
        return self.status

    async def _job(self, job: str, context: Context) -> jobs_pb2.Job:
        found = [job] if job in self.jobs else [each for each in self.jobs if job in each]
        found = [*self.jobs][-1:] if job == LATEST else found
        if not found:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no job {job!r}")
        if len(found) > 1:
            text = f"job {job!r}: the ids of several jobs contain this: {', '.join(found)}; give more of one"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
        return self.jobs[found[0]]


def metrics_rows(steps_per_row: int, **columns: Sequence[float | str] | Mapping[str, Sequence[float]]) -> Any:
    """Return a part of a job's history, from columns by name: values, texts, or the values of summaries by kind."""
    part = jobs_pb2.MetricsRows(steps_per_row=steps_per_row)
    for name, given in columns.items():
        kinds = given if isinstance(given, Mapping) else {"value": given}
        for kind, values in kinds.items():
            if values and isinstance(values[0], str):
                part.columns.add(name=name, kind="text", texts=values)
            else:
                part.columns.add(name=name, kind=kind, values=struct.pack(f"<{len(values)}d", *values))
    return part


@contextmanager
def serving(fake: FakeAggregator, security: Security | None = None) -> Iterator[FakeAggregator]:
    """Serve the fake from a thread of its own, and set its `address`."""
    started = threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        jobs = jobs_pb2.DESCRIPTOR.services_by_name["Jobs"]
        handlers = [service_handler(jobs, fake)]
        files = FilesServicer(
            fake.store or FileStore(Path("/nonexistent")),
            FILES_OF_AGGREGATOR,
            checkpoints=lambda: nullcontext(fake._read_piece),
        )
        handlers.append(files.handlers())
        server = await start_server("127.0.0.1:0", security or Security(), handlers, [jobs.full_name])
        fake.address = f"localhost:{server.port}"
        started.set()
        await stop.wait()
        await server.stop(0)

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert started.wait(30)
        yield fake
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)
        loop.close()
