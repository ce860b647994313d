"""The workers' control streams: their messages go to the core, and the core's orders go to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import grpc

from aggregator.core.events import FromWorker, WorkerConnected, WorkerLost
from aggregator.data_plane import DataPlane
from plane.streams.worker_sessions import WorkerSession, WorkerSessions
from protos import cluster_pb2 as pb
from protos.jobs_pb2 import Connection
from services.checkpoints.format import check_description
from services.errors import Refusal, Refused, TiermeshError
from services.files.store import FileStore
from services.json_text import LAYOUT
from services.printable import printable
from services.protocol.envelope import CheckReport, unwrap
from services.protocol.hello import HelloExpectations, HelloRefusal, check_hello
from services.protocol.plan import ParameterCount
from services.tasks import describe_error, start_task
from services.tensors.layout import read_job_layout
from services.transport.access.enforcement import caller_address, current_caller
from services.transport.addresses import is_loopback, join_address, split_address
from services.transport.control.attend_server import serve_attend
from services.transport.control.control_streams import ControlStream
from services.transport.control.measurements import MeasuredPeer
from services.transport.links import LinkClosed


def find_pipeline_address(hello: pb.Hello, caller: str) -> str | Refusal:
    """Return where workers of other stages reach a worker, or why that is no address; empty if they can't.

    They can't if the worker listens on loopback, and comes from another host.

    Args:
        hello: the worker's first message.
        caller: `HOST:PORT` that the worker connects from, as this host sees it.
    """
    if not hello.pipeline_port:
        return ""
    seen = _host_of(caller)
    host = hello.pipeline_host or seen
    if not host or (is_loopback(host) and seen and not is_loopback(seen)):
        return ""
    address = join_address(host, hello.pipeline_port)
    try:
        split_address("pipeline_host and pipeline_port", address)
    except Refused as refused:
        return Refusal(f"worker {hello.name}: {refused}; start it with another --advertise or --tensor-port")
    if not host.isprintable():
        return Refusal(
            f"worker {hello.name}: pipeline_host {host[:60]!r}, expected a host name or an IP address"
        )
    return address


def _host_of(caller: str) -> str:
    """Return the host of a caller's address; empty if it came by no port."""
    try:
        return split_address("caller", caller)[0]
    except Refused:
        return ""


class WorkerControl:
    """Serves `tiermesh.Cluster/Attend`.

    Args:
        sessions: the sessions of the connected workers.
        plane: is notified of workers that connect or leave.
        feed: gives the core an input.
        files: the files that workers have uploaded.
        awaits_description: returns how many parameters the layout must have that a worker describes; None if no layout
            is awaited from its session.
        expected: what the Hello of a worker must say.
        on_newer_epoch: called with a worker's name and the epoch that it has obeyed, if that is a newer one of the
            same cluster.
        take_report: takes a report of a check of meshes and links.
        hello_seconds: time within which a worker that connects must send Hello.
    """

    def __init__(
        self,
        sessions: WorkerSessions,
        plane: DataPlane,
        feed: Callable[[WorkerConnected | FromWorker | WorkerLost], None],
        files: FileStore,
        awaits_description: Callable[[int, pb.Description], ParameterCount | None],
        expected: HelloExpectations,
        on_newer_epoch: Callable[[str, int], None],
        take_report: Callable[[CheckReport], None],
        hello_seconds: float,
    ) -> None:
        self._expected = expected
        self._on_newer_epoch = on_newer_epoch
        self._take_report = take_report
        self._hello_seconds = hello_seconds
        self._sessions = sessions
        self._plane = plane
        self._feed = feed
        self._files = files
        self._awaits_description = awaits_description
        self._peers: dict[int, MeasuredPeer] = {}  # by session
        self._checking: set[int] = set()  # sessions whose Description is being checked
        self._described: dict[int, tuple[int, pb.Description]] = {}  # the newest one that waits, by session

    async def serve(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Serve one worker's control stream until it ends."""
        await serve_attend(
            context,
            pb.WorkerMessage,
            unwrap=unwrap,
            check=self._check_hello,
            serve=partial(self._serve, caller_address(context)),
            hello_seconds=self._hello_seconds,
        )

    def _check_hello(self, hello: pb.Hello) -> HelloRefusal | None:
        refusal = check_hello(hello, self._expected)
        if refusal is not None and refusal.obeyed_epoch:
            self._on_newer_epoch(f"worker {printable(hello.name, 60)}", refusal.obeyed_epoch)
        return refusal

    async def _serve(
        self, caller: str, hello: pb.Hello, stream: ControlStream[pb.WorkerCommand, pb.WorkerMessage]
    ) -> None:
        address = find_pipeline_address(hello, caller)
        refusal = address if isinstance(address, Refusal) else self._plane.check_ready()
        if refusal is not None:
            raise LinkClosed(str(refusal))
        session = self._sessions.open(hello, pipeline_address=str(address))
        try:
            self._plane.worker_connected(session)
            self._peers[session.number] = MeasuredPeer(_host_of(caller), hello)
            self._feed(WorkerConnected(session.number, hello, str(address), current_caller().voice))
            await stream.run(session.mailbox.take, partial(self._take_message, session))
        finally:
            session.mailbox.close(stream.end_reason)
            self._sessions.close(session.number)
            self._peers.pop(session.number, None)
            self._plane.worker_lost(session, stream.end_reason)
            self._feed(WorkerLost(session.number, stream.end_reason))

    def _take_message(self, session: WorkerSession, message: pb.WorkerMessage) -> None:
        body = unwrap(message)
        if isinstance(body, pb.Heartbeat):
            self._peers[session.number].heard(body)
        if isinstance(body, CheckReport):
            self._take_report(body)
        elif isinstance(body, pb.Description):
            self._describe(session, message.epoch, body)
        elif body is not None:
            self._feed(FromWorker(session.number, message.epoch, body))

    def connections(self) -> dict[str, Connection]:
        """Return what is known of the workers' connections, by the incarnation of their processes."""
        return {each.incarnation: each.connection() for each in self._peers.values()}

    def _describe(self, session: WorkerSession, epoch: int, body: pb.Description) -> None:
        """Check a worker's Description, or keep it until the check of an earlier one has ended."""
        if session.number in self._checking:
            self._described[session.number] = epoch, body
            return
        self._checking.add(session.number)
        start_task(
            self._take_description(session, epoch, body),
            f"Description of {session}",
            lambda error: self._fail_description(session, epoch, body, describe_error(error)),
        )

    async def _take_description(self, session: WorkerSession, epoch: int, body: pb.Description) -> None:
        """Check the files on the disk, in a thread; the core drops what comes too late."""
        try:
            parameters = self._awaits_description(session.number, body)
            if parameters is not None:
                checked = await asyncio.to_thread(self._check_description, body, parameters)
                self._feed(FromWorker(session.number, epoch, checked))
        finally:
            self._checking.discard(session.number)
            waiting = self._described.pop(session.number, None)
            if waiting is not None:
                self._describe(session, *waiting)

    def _fail_description(
        self, session: WorkerSession, epoch: int, body: pb.Description, reason: str
    ) -> None:
        failure = pb.Failure(job=body.job, lease=body.lease, reason=reason)
        self._feed(FromWorker(session.number, epoch, failure))

    def _check_description(
        self, body: pb.Description, parameters: ParameterCount
    ) -> pb.Description | pb.Failure:
        """Return the message; the failure of its lease if files are missing, or of its worker if they can't be right.

        The optimizer would fail the job with them.
        """
        try:
            check_description(body.layout, body.files)
            if not self._files.has((body.layout, *body.files.values())):
                reason = "files of its Description are missing, expected them to be uploaded before"
                return pb.Failure(job=body.job, lease=body.lease, reason=reason)
            read_job_layout(self._files.read(body.layout, LAYOUT.limit_bytes), parameters)
        except Refused as refused:
            return pb.Failure(job=body.job, reason=str(refused))
        except TiermeshError as error:
            return pb.Failure(job=body.job, lease=body.lease, reason=str(error))
        return body
