"""The workers' control streams: their messages go to the core, and the core's orders go to them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import grpc

from aggregator.core.events import FromWorker, WorkerConnected, WorkerLost
from aggregator.data_plane.plane import DataPlane
from aggregator.worker_sessions import WorkerSession, WorkerSessions
from protos import cluster_pb2 as pb
from services.protocol.envelope import unwrap
from services.protocol.hello import HelloExpectations, Role, check_hello
from services.transport.attend_server import serve_attend
from services.transport.control_streams import ControlStream
from services.transport.links import LinkClosed


class WorkerControl:
    """Serves `tiermesh.Cluster/Attend`.

    Args:
        sessions: The sessions of the connected workers.
        plane: The data plane, which learns of workers that connect or leave.
        feed: Gives the core an input.
        hello_seconds: Time within which a worker that connects must send Hello.
    """

    def __init__(
        self,
        sessions: WorkerSessions,
        plane: DataPlane,
        feed: Callable[[WorkerConnected | FromWorker | WorkerLost], None],
        hello_seconds: float,
    ) -> None:
        self._hello_seconds = hello_seconds
        self._sessions = sessions
        self._plane = plane
        self._feed = feed

    async def serve(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Serve one worker's control stream until it ends."""
        expected = HelloExpectations("aggregator", Role.WORKER, self._sessions.epoch)
        await serve_attend(
            context,
            pb.WorkerMessage,
            unwrap=unwrap,
            check=lambda hello: check_hello(hello, expected),
            serve=self._serve,
            hello_seconds=self._hello_seconds,
        )

    async def _serve(
        self, hello: pb.Hello, stream: ControlStream[pb.WorkerCommand, pb.WorkerMessage]
    ) -> None:
        refusal = self._plane.check_ready()
        if refusal is not None:
            raise LinkClosed(str(refusal))
        session = self._sessions.open(hello)
        try:
            self._plane.worker_connected(session)
            self._feed(WorkerConnected(session.number, hello))
            await stream.run(session.mailbox.take, partial(self._take_message, session))
        finally:
            session.mailbox.close(stream.end_reason)
            self._sessions.close(session.number)
            self._plane.worker_lost(session, stream.end_reason)
            self._feed(WorkerLost(session.number, stream.end_reason))

    def _take_message(self, session: WorkerSession, message: pb.WorkerMessage) -> None:
        body = unwrap(message)
        if body is not None:
            self._feed(FromWorker(session.number, message.epoch, body))
