"""The calls of the aggregator's job service, and the transfer of files to and from it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

import grpc

from native import crc32c
from protos import cluster_pb2, jobs_pb2
from protos.files_pb2 import FileRef, ReadFileRequest
from services.errors import Failed, Refused, TiermeshError
from services.files.errors import FileDamaged, FileMissing, UploadUnderWay, WrongFile
from services.files.fetch import MAX_WRONG_FILES, fetch_once
from services.files.store import FileStore
from services.files.transfer import (
    MAX_DAMAGED,
    FileSource,
    ask_missing,
    receive_pieces,
    upload_missing,
)
from services.jobs.connection import AggregatorConnection, Unanswered, Unreachable
from services.protocol.checksums import set_checksum
from services.timeouts import STANDARD_TIMEOUTS

_MOST_PAGES = 10_000
"""Pages of a list that are asked for; with more, the oldest jobs are left out."""

_RETRY_SECONDS = 1.0
_PASSING = frozenset({grpc.StatusCode.ABORTED, grpc.StatusCode.INTERNAL, grpc.StatusCode.DATA_LOSS})
"""Statuses of a transfer that may pass: another one of the same file goes on; gRPC hides why it ended; damage."""


class JobsClient(AggregatorConnection):
    """Async context manager with the calls of `tiermesh.Jobs` and `tiermesh.Files`."""

    async def submit(self, name: str, spec_json: str, request_id: str = "") -> jobs_pb2.Job:
        """Queue a job; return it with its id. A call with the same request id returns the same job."""
        request = jobs_pb2.SubmitRequest(
            name=name,
            spec_json=spec_json,
            spec_crc32c=crc32c.value(spec_json.encode()),
            request_id=request_id,
        )
        return await self._ask("Submit", request, jobs_pb2.Job)

    async def continue_job(self, request: jobs_pb2.ContinueRequest) -> jobs_pb2.Job:
        """Queue a job that goes on where an ended one has stopped; return it with its id."""
        request.ClearField("own_crc32c")
        set_checksum(request, b"")
        return await self._ask("Continue", request, jobs_pb2.Job)

    async def upload(
        self,
        source: FileSource,
        refs: Sequence[FileRef],
        tell: Callable[[FileRef, int], None],
        check_sent: Callable[[], None],
    ) -> None:
        """Send the files that the aggregator lacks, and continue after breaks.

        Args:
            source: the files.
            refs: references to them, each once.
            tell: called with a file and the number of its bytes that the aggregator has.
            check_sent: called after the file that was sent last has arrived as another one; raises Refused if it is.
        """
        await self._transfer(
            "Write",
            lambda note: upload_missing(self._channel, source, refs, self._metadata, note),
            tell,
            lambda: asyncio.to_thread(check_sent),
        )

    async def download(self, request: ReadFileRequest, store: FileStore) -> None:
        """Download a file of a checkpoint into a store, where an earlier command may have left some of it."""
        await self._transfer(
            "Read",
            lambda note: fetch_once(self._channel, store, request, note, self._metadata),
            lambda *_: None,
            lambda: asyncio.sleep(0),
        )

    async def lacks(self, ref: FileRef) -> bool:
        """Return whether the aggregator lacks a file, which this person may upload."""
        await self._find_leader()
        try:
            return bool(await ask_missing(self._channel, [ref], self._metadata))
        except grpc.aio.AioRpcError as error:
            raise await self._explain("Missing", error) from None
        except asyncio.TimeoutError:
            raise self._no_answer("Missing") from None

    async def read(self, request: ReadFileRequest) -> AsyncGenerator[bytes, None]:
        """Yield a range of known length of a checkpoint's file, piece by piece, and no more of it."""
        await self._find_leader()
        left = request.length
        try:
            async with contextlib.aclosing(receive_pieces(self._channel, request, self._metadata)) as pieces:
                async for piece in pieces:
                    yield piece.data[:left]
                    left -= len(piece.data)
                    if left <= 0:
                        return
        except grpc.aio.AioRpcError as error:
            raise await self._explain("Read", error) from None
        except asyncio.TimeoutError:
            raise self._no_answer("Read") from None

    async def _transfer(
        self,
        method: str,
        attempt: Callable[[Callable[[FileRef, int], None]], Awaitable[None]],
        tell: Callable[[FileRef, int], None],
        check_damaged: Callable[[], Awaitable[None]],
    ) -> None:
        """Attempt a transfer, and again where it stopped, until it gets no further for as long as an outage lasts.

        Args:
            method: method of `tiermesh.Files`, for errors.
            attempt: makes an attempt, and calls its argument with a file and the number of its bytes that arrived.
            tell: called with the same.
            check_damaged: called after bytes arrived damaged; raises Refused to give up.
        """
        heard_seconds, here, damaged, wrong = time.monotonic(), dict[str, int](), 0, 0

        def note(ref: FileRef, size: int) -> None:
            nonlocal heard_seconds
            if size > here.get(ref.sha256, -1):
                here[ref.sha256], heard_seconds = size, time.monotonic()
            tell(ref, size)

        while True:
            try:
                await self._find_leader()
                return await attempt(note)
            except WrongFile as error:
                wrong += 1
                if wrong == MAX_WRONG_FILES:
                    raise
                lost: TiermeshError = Unanswered(f"aggregator {self.address}: {error}")
            except FileDamaged as error:
                damaged += 1
                lost = Unanswered(f"aggregator {self.address}: {error}")
            except asyncio.TimeoutError:
                lost = self._no_answer(method)
            except UploadUnderWay as error:
                raise Refused(f"{error}; or give another folder") from None
            except Unreachable as error:
                lost = error
            except grpc.aio.AioRpcError as error:
                lost = await self._explain(method, error)
                if error.code() == grpc.StatusCode.NOT_FOUND:
                    lost = FileMissing(str(lost))
                if error.code() == grpc.StatusCode.DATA_LOSS:
                    damaged += 1
                    await check_damaged()
                if error.code() in _PASSING:
                    lost = Unanswered(str(lost))
            if damaged == MAX_DAMAGED:
                raise Failed(str(lost))
            began = bool(here)
            silent_seconds = time.monotonic() - heard_seconds
            if not isinstance(lost, Unreachable) or not (began or isinstance(lost, Unanswered)):
                raise lost
            if silent_seconds > STANDARD_TIMEOUTS.follow:
                raise Failed(
                    f"{lost}; it got no further for {silent_seconds:.0f} s, repeat the command to go on"
                )
            await asyncio.sleep(_RETRY_SECONDS)

    async def jobs(
        self, limit: int | None = None, only: jobs_pb2.ListRequest | None = None
    ) -> list[jobs_pb2.Job]:
        """Return all jobs, or the newest ones up to a limit; oldest first.

        Args:
            limit: number of jobs; None for all.
            only: request with the filters; None for no filters.
        """
        found: list[jobs_pb2.Job] = []
        request = jobs_pb2.ListRequest(newest_first=True)
        if only is not None:
            request.MergeFrom(only)
        for _ in range(_MOST_PAGES):
            request.limit = 0 if limit is None else limit - len(found)
            reply = await self.page(request)
            found += reply.jobs
            request.page_token = reply.next_page_token
            if not reply.next_page_token or (limit is not None and len(found) >= limit):
                break
        return found[::-1]

    async def job(self, job: str) -> jobs_pb2.Job:
        """Return one job."""
        return await self._ask("Get", jobs_pb2.JobRequest(job=job), jobs_pb2.Job)

    async def spec_json(self, job: str) -> str:
        """Return what a job was submitted as, a `JobConfig` in JSON.

        Raises:
            Refused: there is no such job, or the aggregator is older than this call.
            Failed: the answer is damaged.
        """
        spec = await self._ask("Spec", jobs_pb2.JobRequest(job=job), jobs_pb2.JobSpec)
        if crc32c.value(spec.spec_json.encode()) != spec.spec_crc32c:
            raise Failed(
                f"aggregator {self.address}: the config of job {spec.job:.100} is damaged; ask again"
            )
        return spec.spec_json

    async def cancel(self, job: str, *, now: bool = False) -> jobs_pb2.Job:
        """Cancel a job; return its new state."""
        return await self._ask("Cancel", jobs_pb2.CancelRequest(job=job, now=now), jobs_pb2.Job)

    async def pause(self, job: str) -> jobs_pb2.Job:
        """Pause a job; return its new state."""
        return await self._ask("Pause", jobs_pb2.JobRequest(job=job), jobs_pb2.Job)

    async def resume(self, job: str) -> jobs_pb2.Job:
        """Queue a paused job; return its new state."""
        return await self._ask("Resume", jobs_pb2.JobRequest(job=job), jobs_pb2.Job)

    async def set_priority(self, job: str, priority: int) -> jobs_pb2.Job:
        """Change a job's priority; return its new state."""
        request = jobs_pb2.PriorityRequest(job=job, priority=priority)
        return await self._ask("SetPriority", request, jobs_pb2.Job)

    async def trust(self, job: str, worker: str) -> jobs_pb2.Job:
        """Pin a job to what a worker says of it; return its new state."""
        return await self._ask("Trust", jobs_pb2.TrustRequest(job=job, worker=worker), jobs_pb2.Job)

    async def prune(self, request: jobs_pb2.PruneRequest) -> AsyncGenerator[jobs_pb2.PrunedJob, None]:
        """Remove what ended jobs have left; yield each job that goes, or that should and stays."""
        # Large files take long to delete.
        limit = (
            self._timeout_seconds if request.dry_run else max(self._timeout_seconds, STANDARD_TIMEOUTS.stall)
        )
        async for pruned in self._stream("Prune", request, jobs_pb2.PrunedJob, limit_seconds=limit):
            yield pruned

    async def status(self) -> jobs_pb2.ClusterStatus:
        """Return the state of the cluster: workers, optimizer, waits."""
        return await self._ask("Status", jobs_pb2.StatusRequest(), jobs_pb2.ClusterStatus)

    async def check(self, request: jobs_pb2.CheckRequest) -> AsyncGenerator[jobs_pb2.CheckResult, None]:
        """Check all meshes and links of the cluster; yield each result as soon as it is known."""
        limit = max(self._timeout_seconds, STANDARD_TIMEOUTS.stall)  # devices take long to open
        async for result in self._stream("Check", request, jobs_pb2.CheckResult, limit_seconds=limit):
            yield result

    async def watch(self, job: str) -> AsyncGenerator[jobs_pb2.JobEvent, None]:
        """Yield the job's state, then each change until it ends.

        Only the first event has a time limit. Later ones may be far apart; keepalive finds a dead peer.
        """
        request = jobs_pb2.JobRequest(job=job)
        async for event in self._stream("Watch", request, jobs_pb2.JobEvent, first_only=True):
            yield event

    async def logs(self, request: jobs_pb2.LogsRequest) -> AsyncGenerator[jobs_pb2.LogLine, None]:
        """Yield the lines of a job's log and, if the request follows it, new ones until the job ends."""
        limited = None if request.follow else self._timeout_seconds
        wanted = jobs_pb2.LogsRequest(batched=True)
        wanted.MergeFrom(request)
        async for line in self._stream("Logs", wanted, jobs_pb2.LogLine, limit_seconds=limited):
            yield line
            for seconds, text in zip(line.more_seconds, line.more_texts, strict=False):
                yield jobs_pb2.LogLine(seconds=seconds, text=text)

    async def metrics(self, request: jobs_pb2.MetricsRequest) -> AsyncGenerator[jobs_pb2.MetricsRows, None]:
        """Yield the history of a job's metrics, part by part."""
        async for part in self._stream(
            "Metrics", request, jobs_pb2.MetricsRows, limit_seconds=self._timeout_seconds
        ):
            yield part

    async def page(self, request: jobs_pb2.ListRequest) -> jobs_pb2.ListReply:
        """Return a page of jobs."""
        return await self._ask("List", request, jobs_pb2.ListReply)

    async def checkpoint(self, job: str, step: int | None, before: int = 0) -> cluster_pb2.CheckpointFiles:
        """Return the files of a checkpoint; `step` None selects the newest one before a step, 0 for any."""
        request = cluster_pb2.CheckpointRequest(
            job=job, step=before if step is None else step, newest=step is None
        )
        return await self._ask("Checkpoint", request, cluster_pb2.CheckpointFiles)
