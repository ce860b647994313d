"""The workers' control streams: their messages go to the core, and the core's orders go to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

from aggregator.core.events import FromWorker, WorkerConnected, WorkerLost
from aggregator.data_plane.plane import DataPlane
from aggregator.worker_sessions import WorkerSession, WorkerSessions
from protos import cluster_pb2 as pb
from services.protocol.envelope import unwrap
from services.transport.control_streams import ControlReader, receive_hello
from services.transport.links import LinkClosed, run_until_first_ends


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
        messages = ControlReader(context.read, pb.WorkerMessage, "Attend")
        hello = await receive_hello(context, messages, unwrap, self._hello_seconds)
        refusal = self._plane.check_ready()
        if refusal is not None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(refusal))
        session = self._sessions.open(hello)
        reason = "its control stream ended"
        try:
            self._plane.worker_connected(session)
            self._feed(WorkerConnected(session.number, hello))
            await run_until_first_ends(
                self._receive_messages(session, messages), self._send_orders(session, context)
            )
        except LinkClosed as closed:
            reason = str(closed)
            await context.abort(closed.code, reason)
        finally:
            session.mailbox.close(reason)
            self._sessions.close(session.number)
            self._plane.worker_lost(session, reason)
            self._feed(WorkerLost(session.number, reason))

    async def _receive_messages(
        self, session: WorkerSession, messages: ControlReader[pb.WorkerMessage]
    ) -> None:
        while (message := await messages.next()) is not None:
            body = unwrap(message)
            if body is not None:
                self._feed(FromWorker(session.number, message.epoch, body))

    async def _send_orders(self, session: WorkerSession, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        while True:
            await context.write(await session.mailbox.take())
