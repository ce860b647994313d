"""The workers' control streams: their messages go to the core, and the core's orders go to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import grpc

from aggregator.core.events import FromWorker, WorkerConnected, WorkerLost
from aggregator.data_plane.plane import DataPlane
from aggregator.worker_sessions import WorkerSession, WorkerSessions
from protos import cluster_pb2 as pb
from services.checkpoints.format import check_file_names
from services.errors import Refusal, Refused, TiermeshError
from services.files.store import FileStore
from services.printable import printable
from services.protocol.envelope import CheckReport, unwrap
from services.protocol.file_refs import MAX_TEXT_BYTES
from services.protocol.hello import HelloExpectations, HelloRefusal, check_hello
from services.tasks import describe_error, start_task
from services.transport.access.enforcement import caller_address, current_caller
from services.transport.control.attend_server import serve_attend
from services.transport.control.control_streams import ControlStream
from services.transport.links import LinkClosed
from services.transport.security import is_loopback, join_address, split_address


def find_pipeline_address(hello: pb.Hello, caller: str) -> str | Refusal:
    """Return where workers of other stages reach a worker, or why that is no address; empty if they can't.

    They can't if the worker listens on loopback, and comes from another host.

    Args:
        hello: the worker's first message.
        caller: `HOST:PORT` that the worker connects from, as this host sees it.
    """
    if not hello.pipeline_port:
        return ""
    try:
        seen, _ = split_address("caller", caller)
    except Refused:
        seen = ""  # the worker came by no port
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


class WorkerControl:
    """Serves `tiermesh.Cluster/Attend`.

    Args:
        sessions: the sessions of the connected workers.
        plane: the data plane, which is notified of workers that connect or leave.
        feed: gives the core an input.
        files: the files that workers have uploaded.
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
            self._feed(WorkerConnected(session.number, hello, str(address), current_caller().voice))
            await stream.run(session.mailbox.take, partial(self._take_message, session))
        finally:
            session.mailbox.close(stream.end_reason)
            self._sessions.close(session.number)
            self._plane.worker_lost(session, stream.end_reason)
            self._feed(WorkerLost(session.number, stream.end_reason))

    def _take_message(self, session: WorkerSession, message: pb.WorkerMessage) -> None:
        body = unwrap(message)
        if isinstance(body, CheckReport):
            self._take_report(body)
        elif isinstance(body, pb.Description):
            start_task(
                self._take_description(session, message.epoch, body),
                f"Description of {session}",
                lambda error: self._fail_description(session, message.epoch, body, describe_error(error)),
            )
        elif body is not None:
            self._feed(FromWorker(session.number, message.epoch, body))

    async def _take_description(self, session: WorkerSession, epoch: int, body: pb.Description) -> None:
        """Look on the disk, in a thread, whether the files are there; the core drops what comes too late."""
        checked = await asyncio.to_thread(self._check_description, body)
        self._feed(FromWorker(session.number, epoch, checked))

    def _fail_description(
        self, session: WorkerSession, epoch: int, body: pb.Description, reason: str
    ) -> None:
        failure = pb.Failure(job=body.job, lease=body.lease, reason=reason)
        self._feed(FromWorker(session.number, epoch, failure))

    def _check_description(self, body: pb.Description) -> pb.Description | pb.Failure:
        """Return the message, or the failure of its lease if the worker has not uploaded what it refers to."""
        refs = (body.layout, *body.files.values())
        try:
            check_file_names(body.files)
            if all(ref.size <= MAX_TEXT_BYTES for ref in refs) and self._files.has(refs):
                return body
            reason = f"files of its Description are missing or larger than {MAX_TEXT_BYTES} bytes"
        except TiermeshError as error:
            reason = str(error)
        return pb.Failure(
            job=body.job, lease=body.lease, reason=f"{reason}; expected them to be uploaded before"
        )
