"""The optimizer's gRPC service, for one aggregator at a time."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from optimizer.checkpoint_store import epoch_file
from optimizer.core.events import ChunksArrived, Ordered
from optimizer.engine import EngineCallbacks, OptimizerEngine
from plane.bookkeeping import AGGREGATOR_SESSION
from plane.group import PlaneGroup
from plane.link import LocalPlane
from plane.link_check.serve import serve_link_check
from plane.plane import Plane, PlaneOwner
from plane.streams.data_streams import write_message
from plane.streams.exchange_server import ExchangeServer, read_incarnation
from plane.streams.shared_memory_link import ServerTensorLink
from protos import cluster_pb2 as pb
from protos.files_pb2 import FilePiece, ReadFileRequest
from protos.plane_pb2 import WorkerAttends, WorkerLeft
from protos.tensors_pb2 import FLOAT32
from services.errors import Failed, NotYet, Refusal, Refused
from services.files.limits import MAX_TRANSFERS, TransferLimits
from services.files.service import FilesServicer
from services.files.store import FileStore
from services.instrumentation import timeline
from services.printable import printable_path
from services.protocol.bounds import MessageTooLarge
from services.protocol.checksums import encode_with_checksum
from services.protocol.envelope import OptimizerBody, unwrap, wrap
from services.protocol.hello import HelloExpectations, HelloRefusal, Role, check_hello, make_hello
from services.runtime.cluster_identity import ClusterIdentity, StateDirUse
from services.runtime.file_locks import try_lock
from services.runtime.host_memory import read_host_memory
from services.runtime.metrics import OptimizerMetrics
from services.tensors.chunk_messages import TensorChunk, bytes_per_element, check_chunk
from services.tensors.stripes import Stripe
from services.timeouts import Timeouts
from services.transport.access.enforcement import check_daemon
from services.transport.access.permissions import FILES_OF_DAEMON
from services.transport.control.attend_server import serve_attend
from services.transport.control.control_streams import ControlStream
from services.transport.control.heartbeats import Heartbeats
from services.transport.control.measurements import HeartbeatAnswers
from services.transport.http2.server import Handler
from services.transport.links import LinkClosed
from services.transport.mailbox import Mailbox

log = logging.getLogger("tiermesh.optimizer")


class AggregatorSession:
    """Session of the aggregator that is connected.

    Args:
        hello: Hello of the aggregator.

    Attributes:
        mailbox: messages on their way to the aggregator; closing it ends the session.
        answers: answers of its heartbeats.
        sent_bytes: tensor payload sent to it so far.
        received_bytes: tensor payload received from it so far.
        callbacks: what the engine calls to reach this aggregator.

    Raises:
        Refused: the heartbeat in Hello is not a positive number.
    """

    def __init__(self, hello: pb.Hello) -> None:
        self.name = hello.name
        self.incarnation = hello.incarnation
        self.epoch = hello.epoch_seen
        self.mailbox: Mailbox[pb.OptimizerMessage] = Mailbox()
        self.heartbeats = Heartbeats(Timeouts.from_heartbeat(hello.heartbeat_seconds), self._beat)
        self.answers = HeartbeatAnswers()
        self.sent_bytes = self.received_bytes = 0
        self.callbacks = EngineCallbacks(
            send=self.send,
            refuse=self.mailbox.close,
        )

    def send(self, body: OptimizerBody) -> None:
        """Queue a message to the aggregator; if it is too large, its job fails with that reason."""
        try:
            message = wrap(pb.OptimizerMessage, self.epoch, body)
        except MessageTooLarge as error:
            log.error("%s", error)
            message = wrap(pb.OptimizerMessage, self.epoch, pb.Failure(job=error.job, reason=str(error)))
        self.mailbox.put(message)

    def _beat(self) -> None:
        heartbeat = pb.Heartbeat(sent_bytes=self.sent_bytes, received_bytes=self.received_bytes)
        self.answers.put_into(heartbeat)
        self.send(heartbeat)

    def replaced_by(self, hello: pb.Hello) -> None:
        """End this session for another one; status ABORTED tells an aggregator that a newer one has taken over."""
        if hello.epoch_seen > self.epoch:
            text = (
                f"aggregator {hello.name} of epoch {hello.epoch_seen} has taken over from epoch {self.epoch}"
            )
            self.mailbox.close(text, grpc.StatusCode.ABORTED)
        else:
            self.mailbox.close("replaced by a newer connection of the same aggregator")


class OptimizerService:
    """Server of `tiermesh.Optimizer`, around an engine.

    Args:
        name: name of the optimizer.
        state_dir: folder of checkpoints, epoch and lock.
        metrics: metrics of the optimizer.
        record: file that receives the core's inputs and effects; None records nothing.
        shared_memory: whether tensors may go through memory shared with an aggregator on the same host.

    Attributes:
        engine: optimizer that is served; exists from `start` on.
    """

    service_names = ("tiermesh.Optimizer", "tiermesh.Files")

    def __init__(
        self,
        *,
        name: str,
        state_dir: Path,
        metrics: OptimizerMetrics,
        record: Path | None = None,
        shared_memory: bool = True,
    ) -> None:
        self.name = name
        self._shared_memory = shared_memory
        self._state_dir = state_dir
        self._files = FileStore(state_dir / "files")
        self._metrics = metrics
        self._record = record
        self._incarnation = uuid.uuid4().hex
        self._session: AggregatorSession | None = None
        self.engine: OptimizerEngine

    async def start(self, tensor_port: int = 0) -> None:
        """Lock the state folder until the process ends, and build the engine.

        Args:
            tensor_port: port of data streams; 0 if they use the port of the gRPC server.

        Raises:
            NotYet: another optimizer uses the state folder.
        """
        self._tensor_port = tensor_port
        self._use = StateDirUse(self._state_dir)
        lock = try_lock(self._state_dir / "optimizer.lock")
        if lock is None:
            raise NotYet(
                f"--state-dir {self._state_dir}: in use by another optimizer; stop it, or give another folder"
            )
        self._lock = lock
        self._identity = ClusterIdentity(self._state_dir)
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        planes = LocalPlane(self._make_plane, self._failed.set_exception)
        assert planes.local is not None
        self._plane = planes.local
        self.engine = OptimizerEngine(
            name=self.name,
            state_dir=self._state_dir,
            files=self._files,
            metrics=self._metrics,
            record=self._record,
            epoch_file=epoch_file(self._state_dir / "epoch"),
            planes=PlaneGroup([planes]),
        )

    def _make_plane(self, owner: PlaneOwner) -> Plane:
        return Plane(
            owner,
            epoch=0,  # no worker's chunks come here, so none is checked
            stripe=Stripe(0, 1),
            incarnation=self._incarnation,
            metrics=None,
            update_metrics=None,
            shared_memory=False,
        )

    async def run(self) -> None:
        """Serve until cancelled, or until the plane fails."""
        await self._failed

    async def stop(self) -> None:
        """Save the weights of open jobs, and end the session."""
        await self.engine.save_weights()
        if self._session is not None:
            self._session.mailbox.close("the optimizer stops")
        await asyncio.to_thread(self.engine.close)
        self._plane.close("the optimizer stops")
        self._lock.close()
        self._use.close()

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        """Return the gRPC handlers; the data stream takes and gives raw messages."""
        return [
            grpc.method_handlers_generic_handler(
                "tiermesh.Optimizer",
                {
                    "Attend": grpc.stream_stream_rpc_method_handler(
                        self._attend, response_serializer=encode_with_checksum
                    ),
                    "Exchange": grpc.stream_stream_rpc_method_handler(self._exchange),
                    "MeasureLink": grpc.stream_stream_rpc_method_handler(self._measure_link),
                    "Checkpoint": grpc.unary_unary_rpc_method_handler(
                        self._checkpoint,
                        pb.CheckpointRequest.FromString,
                        pb.CheckpointFiles.SerializeToString,
                    ),
                    "ListCheckpoints": grpc.unary_stream_rpc_method_handler(
                        self._list_checkpoints,
                        pb.ListCheckpointsRequest.FromString,
                        pb.StoredCheckpoint.SerializeToString,
                    ),
                    "RemoveCheckpoints": grpc.unary_unary_rpc_method_handler(
                        self._remove_checkpoints,
                        pb.RemoveCheckpointsRequest.FromString,
                        pb.RemoveCheckpointsReply.SerializeToString,
                    ),
                },
            ),
            FilesServicer(
                self._files,
                FILES_OF_DAEMON,
                limits=TransferLimits(of_caller=MAX_TRANSFERS),  # only the aggregator calls
                checkpoints=lambda: nullcontext(self._read_piece),
            ).handlers(),
        ]

    def tensor_methods(self) -> dict[str, Handler]:
        """Return the handlers of the tensor port by method path."""
        return {
            "/tiermesh.Optimizer/Exchange": lambda stream: self._exchange(None, stream),
            "/tiermesh.Optimizer/MeasureLink": lambda stream: self._measure_link(None, stream),
        }

    async def _attend(self, _: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await serve_attend(
            context, pb.OptimizerCommand, unwrap=unwrap, check=self._check_hello, serve=self._serve
        )

    def _check_hello(self, hello: pb.Hello) -> HelloRefusal | None:
        session, identity = self._session, self._identity
        is_led = session is not None and session.epoch == self.engine.core.epoch
        expected = HelloExpectations(
            "optimizer",
            Role.AGGREGATOR,
            self.engine.core.epoch,
            cluster=identity.cluster,
            state_dir=printable_path(identity.state_dir),
            leader=session.incarnation if session is not None and is_led else "",
        )
        return check_hello(hello, expected)

    async def _serve(
        self, hello: pb.Hello, stream: ControlStream[pb.OptimizerMessage, pb.OptimizerCommand]
    ) -> None:
        try:
            session = AggregatorSession(hello)
        except Refused as refused:
            reason = f"Hello of aggregator {hello.name}: {refused}"
            raise LinkClosed(reason, grpc.StatusCode.INVALID_ARGUMENT) from None
        self._identity.obey(hello.cluster)
        if self._session is not None:
            self._session.replaced_by(hello)
        answer = make_hello(
            Role.OPTIMIZER,
            self.name,
            incarnation=self._incarnation,
            tensor_port=self._tensor_port,
            cluster=self._identity.cluster,
            **read_host_memory().hello_fields(),
        )
        session.send(answer)
        self._session = session
        attends = WorkerAttends(
            session=AGGREGATOR_SESSION, incarnation=session.incarnation, name=session.name
        )
        self._plane.carry_out([attends])
        self.engine.connect(hello, session.callbacks)
        log.info("aggregator %s: connected, epoch %d", hello.name, hello.epoch_seen)
        try:
            await stream.run(
                session.mailbox.take, partial(self._take_order, session), heartbeats=session.heartbeats
            )
        finally:
            session.mailbox.close(stream.end_reason)
            self.engine.disconnect(session.callbacks)
            if self._session is session:
                self._session = None
                self._plane.carry_out([WorkerLeft(session=AGGREGATOR_SESSION, reason=stream.end_reason)])
            log.info("aggregator %s: disconnected: %s", hello.name, stream.end_reason)

    def _take_order(self, session: AggregatorSession, command: pb.OptimizerCommand) -> None:
        body = unwrap(command)
        if isinstance(body, pb.Heartbeat):
            session.answers.heard(body)
        elif body is not None and not isinstance(body, pb.Hello):
            self.engine.feed(Ordered(command.epoch, body))

    async def _exchange(self, _: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        session = await self._session_of(context)
        server = ExchangeServer(self._plane.newest, shared_memory=self._shared_memory)
        await server.serve(
            context,
            f"aggregator {session.name}",
            session.mailbox,
            wait_for_room=self._plane.wait_for_room,
            take=partial(self._take_chunks, session),
            send=partial(self._send, session, context),
        )

    async def _measure_link(self, _: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        session = await self._session_of(context)
        if job := next(iter(self.engine.core.jobs), ""):
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION, f"job {job} is open; check when it has ended"
            )
        await serve_link_check(
            context,
            f"aggregator {session.name}",
            shared_memory=self._shared_memory,
            until=session.mailbox.wait_closed(),
        )

    async def _session_of(self, context: grpc.aio.ServicerContext[Any, Any]) -> AggregatorSession:
        """Return the session of the aggregator that makes a call; abort the call of any other."""
        incarnation = read_incarnation(context)
        session = self._session
        if session is None or session.incarnation != incarnation:
            text = (
                f"no Attend stream of aggregator incarnation {incarnation!r}; open Attend before other calls"
            )
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)
            raise AssertionError("abort raises")
        check_daemon("aggregator", session.name)
        return session

    def _take_chunks(self, session: AggregatorSession, chunks: list[TensorChunk]) -> Refusal | None:
        """Take chunks; return why the first stale one is stale, if there is one."""
        session.received_bytes += sum(len(chunk.payload) for chunk in chunks)
        refusals = [self._take_chunk(chunk) for chunk in chunks]
        return next(filter(None, refusals), None)

    def _take_chunk(self, chunk: TensorChunk) -> Refusal | None:
        refusal = self.engine.core.check_chunk(chunk.header)
        elements = self.engine.core.expected_elements(chunk.header.job)
        if refusal is None and elements is not None:
            check_chunk(chunk, elements, FLOAT32)  # finished sums and initial weights are not rounded
            header = chunk.header
            timeline.mark("receive", "sum", header.step, job=header.job, chunk=header.index)
            self.engine.feed(ChunksArrived(header, [header.index]), chunk.values())
        return refusal

    async def _send(
        self,
        session: AggregatorSession,
        context: grpc.aio.ServicerContext[Any, Any],
        tensors: ServerTensorLink,
    ) -> None:
        receiver = await self._plane.find_worker(session.incarnation)
        assert receiver is not None, "the plane knows it since Attend"
        while True:
            receiver.wake.clear()
            header = self._plane.next_weights(receiver.number)
            if header is None:
                await receiver.wake.wait()
                continue
            await self._plane.newest.send(tensors, (header,), partial(write_message, context))
            session.sent_bytes += header.elements * bytes_per_element(header.dtype)
            self._plane.newest.drop_message(header)

    async def _read_piece(self, request: ReadFileRequest) -> FilePiece:
        return await asyncio.to_thread(self.engine.checkpoint_store.read_piece, request)

    async def _checkpoint(
        self, request: pb.CheckpointRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.CheckpointFiles:
        await self._session_of(context)
        try:
            return await asyncio.to_thread(self.engine.checkpoint_store.list_files, request)
        except Refused as refused:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(refused))
        raise AssertionError("abort raises")

    async def _list_checkpoints(
        self, request: pb.ListCheckpointsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.StoredCheckpoint]:
        await self._session_of(context)
        try:
            async for each in self.engine.list_checkpoints(request):
                yield each
        except Refused as refused:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(refused))

    async def _remove_checkpoints(
        self, request: pb.RemoveCheckpointsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.RemoveCheckpointsReply:
        await self._session_of(context)
        try:
            return await self.engine.remove_checkpoints(request)
        except Refused as refused:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(refused))
        except Failed as failed:
            await context.abort(grpc.StatusCode.ABORTED, str(failed))
        raise AssertionError("abort raises")
