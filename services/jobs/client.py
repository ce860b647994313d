"""Client of the aggregator's job service: every wait is limited, every error is one line."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from types import TracebackType
from typing import TypeVar

import google_crc32c
import grpc
from google.protobuf.message import Message

from protos import cluster_pb2, jobs_pb2
from protos.files_pb2 import FileRef, ReadFileRequest
from protos.jobs_pb2_grpc import JobsStub
from services.errors import Failed, NotYet, Refused, TiermeshError
from services.files.errors import FileDamaged, FileMissing, UploadUnderWay, WrongFile
from services.files.fetch import MAX_WRONG_FILES, fetch_once
from services.files.store import FileStore
from services.files.transfer import (
    MAX_DAMAGED,
    FileSource,
    Metadata,
    ask_missing,
    receive_pieces,
    upload_missing,
)
from services.jobs.target import AggregatorTarget
from services.printable import printable
from services.protocol.checksums import set_checksum
from services.protocol.plain_text import make_printable
from services.timeouts import STANDARD_TIMEOUTS
from services.transport.access.enforcement import AUTHORIZATION_KEY, authorization
from services.transport.addresses import AddressRotation, is_loopback, split_address, split_addresses
from services.transport.obstacles import AGGREGATOR, NEVER_CONNECTED, Obstacle, find_obstacle
from services.transport.server import open_channel

_BAD_INPUT = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
    }
)

_MOST_PAGES = 10_000
"""Pages of a list that are asked for; with more, the oldest jobs are left out."""

_RETRY_SECONDS = 1.0
_PASSING = frozenset({grpc.StatusCode.ABORTED, grpc.StatusCode.INTERNAL, grpc.StatusCode.DATA_LOSS})
"""Statuses of a transfer that may pass: another one of the same file goes on; gRPC hides why it ended; damage."""

Reply = TypeVar("Reply", bound=Message)


class CallRefused(Refused):
    """Refusal of a call by the aggregator.

    Attributes:
        code: gRPC status of the answer.
    """

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class Unreachable(Failed):
    """The aggregator, or another role that it needs for the answer, can't be reached at the moment."""


class Unanswered(Unreachable):
    """Lack of an answer to a request, which may have reached the aggregator all the same."""


class JobsClient:
    """Async context manager that calls an aggregator.

    Of several addresses it calls the one that leads the cluster; the others are standbys, or dead.

    Raises:
        Refused: an address is malformed or, in a call, the aggregator refused the request.
        NotYet: the aggregator has no room for it now, as the queue or its disk is full.
        Unreachable: there is no connection, or no answer in time.
        Failed: a call went wrong in another way.
    """

    def __init__(self, target: AggregatorTarget) -> None:
        addresses = split_addresses("--aggregator", target.address)
        self._addresses = AddressRotation(addresses)
        self._timeout_seconds = target.timeout_seconds
        self._security = target.security
        self._metadata = self._show(target.token)
        channels = [open_channel(each, target.security) for each in addresses]
        self._channels = dict(zip(addresses, channels, strict=True))
        self._stubs = dict(zip(addresses, map(JobsStub, channels), strict=True))

    async def __aenter__(self) -> JobsClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        for channel in self._channels.values():
            await channel.close()

    def for_caller(self, token: str) -> JobsClient:
        """Return a client that shows another token, empty for none; it uses the connections of this one."""
        client = copy.copy(self)
        client._addresses = copy.copy(self._addresses)
        client._metadata = self._show(token)
        return client

    def prefer(self, address: str) -> None:
        """Call this one of the addresses first from now on, which has answered another client."""
        self._addresses.start_with(address)

    def is_connected(self) -> bool:
        """Return whether there is a connection to one of the addresses, and begin to connect to the others."""
        states = [channel.get_state(try_to_connect=True) for channel in self._channels.values()]
        return grpc.ChannelConnectivity.READY in states

    @property
    def address(self) -> str:
        """`HOST:PORT` of the aggregator that is called."""
        return self._addresses.current

    @property
    def _channel(self) -> grpc.aio.Channel:
        return self._channels[self.address]

    @property
    def _stub(self) -> JobsStub:
        return self._stubs[self.address]

    def _show(self, token: str) -> Metadata:
        """Return the metadata that shows a token; refuse one that would leave this host in plain text."""
        if not token:
            return ()
        for address in () if self._security.tls else self._addresses:
            if not is_loopback(split_address("--aggregator", address)[0]):
                raise Refused(
                    f"--token-file: --aggregator {address} would get the token in plain text; give --tls-ca, or "
                    "an address of this host"
                )
        return ((AUTHORIZATION_KEY, authorization(token)),)

    async def _find_leader(self) -> None:
        """Select the address that answers for the cluster, starting with the one that did last."""
        count = len(self._addresses)
        if count == 1:
            return
        limit_seconds = self._timeout_seconds / count
        tried = []
        while True:
            try:
                await self._stub.Status(
                    jobs_pb2.StatusRequest(), timeout=limit_seconds, metadata=self._metadata
                )
                self._addresses.answered()
                return
            except grpc.aio.AioRpcError as error:
                details = " ".join((error.details() or error.code().name.lower()).split())
                obstacle = await self._find_obstacle(details)
                if obstacle is not None:
                    reason = obstacle.cause
                elif error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
                    reason = f"{self.address}: no answer within {limit_seconds:g} s"
                else:
                    reason = f"{self.address}: {details}"
                tried.append(printable(reason, max(50, 250 // count)))
            if self._addresses.failed():
                raise Unreachable(
                    f"no aggregator answers for the cluster ({'; '.join(tried)}): start `tiermesh aggregator`, or name "
                    "others with --aggregator"
                )

    async def _find_obstacle(self, details: str) -> Obstacle | None:
        """Return why there was no connection for a call that ended with gRPC's `details`; None if there was one."""
        if not any(each in details for each in NEVER_CONNECTED):
            return None
        return await find_obstacle(self.address, self._security, AGGREGATOR)

    async def submit(self, name: str, spec_json: str, request_id: str = "") -> jobs_pb2.Job:
        """Queue a job; return it with its id. A call with the same request id returns the same job."""
        crc32c = google_crc32c.value(spec_json.encode())
        request = jobs_pb2.SubmitRequest(
            name=name, spec_json=spec_json, spec_crc32c=crc32c, request_id=request_id
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
        async for line in self._stream("Logs", request, jobs_pb2.LogLine, limit_seconds=limited):
            yield line

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

    async def _ask(self, method: str, request: Message, reply: type[Reply]) -> Reply:
        await self._find_leader()
        try:
            answer = await getattr(self._stub, method)(
                request, timeout=self._timeout_seconds, metadata=self._metadata
            )
        except grpc.aio.AioRpcError as error:
            raise await self._explain(method, error) from None
        if not isinstance(answer, reply):
            raise self._no_reply(method, reply)
        make_printable(answer)
        return answer

    async def _stream(
        self,
        method: str,
        request: Message,
        reply: type[Reply],
        *,
        first_only: bool = False,
        limit_seconds: float | None = None,
    ) -> AsyncGenerator[Reply, None]:
        """Yield the messages of a stream; each one, or with `first_only` the first one, has a time limit."""
        await self._find_leader()
        call = getattr(self._stub, method)(request, metadata=self._metadata)
        limit = self._timeout_seconds if first_only else limit_seconds
        try:
            while True:
                message = await asyncio.wait_for(call.read(), limit)
                if message is grpc.aio.EOF:
                    return
                if not isinstance(message, reply):
                    raise self._no_reply(method, reply)
                make_printable(message)
                yield message
                limit = None if first_only else limit_seconds
        except grpc.aio.AioRpcError as error:
            raise await self._explain(method, error) from None
        except asyncio.TimeoutError:
            raise self._no_answer(method) from None
        finally:
            call.cancel()

    def _no_reply(self, method: str, reply: type[Message]) -> Failed:
        """Return the error for an answer that gRPC could not parse, for which it gives None."""
        return Failed(
            f"aggregator {self.address}: {method}: the answer is not a {reply.DESCRIPTOR.name} message; try again, and "
            "check that command and aggregator have the same version"
        )

    def _no_answer(self, method: str) -> Unanswered:
        return Unanswered(
            f"aggregator {self.address}: no answer to {method} within {self._timeout_seconds:g} s; look at its log, or "
            "raise --timeout-seconds"
        )

    async def _explain(self, method: str, error: grpc.aio.AioRpcError) -> TiermeshError:
        code, details = error.code(), " ".join((error.details() or "").split())
        if code in _BAD_INPUT:
            return CallRefused(code, details)
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
            if (
                self._channel.get_state() == grpc.ChannelConnectivity.READY
            ):  # the aggregator's answer, not a connection error
                return Unanswered(f"aggregator {self.address}: {method}: {details}")
            obstacle = await self._find_obstacle(details)
            if obstacle is not None:
                return Unreachable(str(obstacle))
            kind = Unreachable if any(each in details for each in NEVER_CONNECTED) else Unanswered
            reason = details.rpartition("last error: ")[2]
            return kind(
                f"aggregator {self.address}: no connection ({reason}): try again, look at its log, or name another "
                "with --aggregator"
            )
        if code == grpc.StatusCode.DEADLINE_EXCEEDED:
            return self._no_answer(method)
        if code == grpc.StatusCode.RESOURCE_EXHAUSTED:
            return NotYet(f"aggregator {self.address}: {details}")
        if code == grpc.StatusCode.UNIMPLEMENTED:
            return Refused(
                f"the process at {self.address} is not an aggregator, or has another version: it does not know the "
                f"call {method}; correct --aggregator, or install the same version"
            )
        return Failed(f"aggregator {self.address}: {method}: {code.name.lower()}: {details}")
