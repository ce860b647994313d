"""The optimizer's gRPC service: one aggregator at a time attends and exchanges tensors."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import uuid
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from optimizer.checkpoint_store import EpochFile
from optimizer.core.events import Ordered
from optimizer.engine import EngineCallbacks, OptimizerEngine
from protos import cluster_pb2 as pb
from protos.tensors_pb2 import FLOAT32
from services.errors import Refused
from services.instrumentation import timeline
from services.protocol.checksums import encode_with_checksum
from services.protocol.envelope import OptimizerBody, unwrap, wrap
from services.protocol.versions import PROTOCOL_VERSION
from services.runtime.metrics import OptimizerMetrics
from services.tensors.chunk_messages import Message, TensorChunk, check_chunk
from services.timeouts import Timeouts
from services.transport.control_streams import ControlReader, receive_hello
from services.transport.data_streams import write_message
from services.transport.heartbeats import Heartbeats
from services.transport.http2.server import Handler
from services.transport.links import INCARNATION_KEY, LinkClosed, run_until_first_ends
from services.transport.mailbox import Mailbox
from services.transport.shared_memory_link import ServerTensorLink

log = logging.getLogger("tiermesh.optimizer")


class AggregatorSession:
    """The aggregator that attends now (Refused: its heartbeat is no time)."""

    def __init__(self, hello: pb.Hello) -> None:
        self.name = hello.name
        self.incarnation = hello.incarnation
        self.epoch = hello.epoch_seen
        self.mailbox: Mailbox[pb.OptimizerMessage] = Mailbox()
        self.wake = asyncio.Event()
        self.heartbeats = Heartbeats(
            Timeouts.from_heartbeat(hello.heartbeat_seconds), lambda: self.say(pb.Heartbeat())
        )
        self.outlet = EngineCallbacks(
            say=self.say,
            refuse=self.mailbox.close,
            wake=self.wake.set,
        )

    def say(self, body: OptimizerBody) -> None:
        """Send a message."""
        self.mailbox.put(wrap(pb.OptimizerMessage, self.epoch, body))

    def replaced_by(self, hello: pb.Hello) -> None:
        """End this link for another one; ABORTED tells an aggregator that it has been replaced itself."""
        if hello.epoch_seen > self.epoch:
            text = (
                f"aggregator {hello.name} of epoch {hello.epoch_seen} has taken over from epoch {self.epoch}"
            )
            self.mailbox.close(text, grpc.StatusCode.ABORTED)
        else:
            self.mailbox.close("replaced by a newer connection of the same aggregator")


class OptimizerService:
    """Serves `tiermesh.Optimizer` around an engine."""

    service_names = ("tiermesh.Optimizer",)

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
        self.tensor_port = 0
        self._shared_memory = shared_memory
        self._state_dir = state_dir
        self._metrics = metrics
        self._record = record
        self._incarnation = uuid.uuid4().hex
        self._link: AggregatorSession | None = None
        self.engine: OptimizerEngine

    async def start(self) -> None:
        """Open the state folder, and hold it against another optimizer until the process ends, however it does.

        Raises:
            Refused: another optimizer holds it.
        """
        self._lock = (self._state_dir / "optimizer.lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused(
                f"--state-dir {self._state_dir}: in use by another optimizer; stop that one, or give another"
            ) from None
        self.engine = OptimizerEngine(
            name=self.name,
            incarnation=self._incarnation,
            state_dir=self._state_dir,
            metrics=self._metrics,
            record=self._record,
            epochs=EpochFile(self._state_dir / "epoch"),
        )

    async def run(self) -> None:
        """Serve until cancelled."""
        await asyncio.Event().wait()

    async def stop(self) -> None:
        """End the link; finish a checkpoint that is being written."""
        if self._link is not None:
            self._link.mailbox.close("the optimizer stops")
        await asyncio.get_running_loop().run_in_executor(None, self.engine.close)
        self._lock.close()

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        """For the server; the data stream is given and taken as raw messages."""
        return [
            grpc.method_handlers_generic_handler(
                "tiermesh.Optimizer",
                {
                    "Attend": grpc.stream_stream_rpc_method_handler(
                        self._attend, response_serializer=encode_with_checksum
                    ),
                    "Exchange": grpc.stream_stream_rpc_method_handler(self._exchange),
                    "ReadCheckpoint": grpc.unary_stream_rpc_method_handler(
                        self._read_checkpoint,
                        pb.ReadCheckpointRequest.FromString,
                        pb.FilePart.SerializeToString,
                    ),
                },
            )
        ]

    def tensor_methods(self) -> dict[str, Handler]:
        """For the tensor port."""
        return {"/tiermesh.Optimizer/Exchange": lambda stream: self._exchange(None, stream)}

    async def _attend(self, _: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        orders = ControlReader(context.read, pb.OptimizerCommand, "Attend")
        hello = await receive_hello(context, orders, unwrap)
        reason = self.engine.core.why_not(hello)
        if reason:
            fenced = hello.epoch_seen < self.engine.core.epoch
            code = grpc.StatusCode.ABORTED if fenced else grpc.StatusCode.FAILED_PRECONDITION
            await context.abort(code, reason)
        try:
            link = AggregatorSession(hello)
        except Refused as refused:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, f"Hello of aggregator {hello.name}: {refused}"
            )
            raise
        if self._link is not None:
            self._link.replaced_by(hello)
        answer = pb.Hello(
            protocol=PROTOCOL_VERSION,
            role="optimizer",
            name=self.name,
            incarnation=self._incarnation,
            shard_count=1,
            tensor_port=self.tensor_port,
        )
        link.say(answer)
        self._link = link
        self.engine.connect(hello, link.outlet)
        log.info("aggregator %s attends, epoch %d", hello.name, hello.epoch_seen)
        why = ""
        try:
            await run_until_first_ends(
                self._take_orders(link, orders), self._say(link, context), link.heartbeats.run()
            )
        except LinkClosed as closed:
            why = f": {closed}"
            await context.abort(closed.code, str(closed))
        finally:
            link.mailbox.close("its control stream ended")
            self.engine.disconnect(link.outlet)
            if self._link is link:
                self._link = None
            log.info("aggregator %s has left%s", hello.name, why)

    async def _take_orders(self, link: AggregatorSession, orders: ControlReader[pb.OptimizerCommand]) -> None:
        while (command := await orders.next()) is not None:
            link.heartbeats.message_received()
            body = unwrap(command)
            if body is not None and not isinstance(body, pb.Hello | pb.Heartbeat):
                self.engine.feed(Ordered(command.epoch, body))
                self._wake()

    def _wake(self) -> None:
        if self._link is not None:
            self._link.wake.set()

    async def _say(self, link: AggregatorSession, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        while True:
            await context.write(await link.mailbox.take())

    async def _exchange(self, _: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        incarnation = dict(context.invocation_metadata() or ()).get(INCARNATION_KEY)
        link = self._link
        if link is None or link.incarnation != incarnation:
            text = f"aggregator incarnation {incarnation!r} does not attend; open Attend first"
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)
            return
        tensors: ServerTensorLink | None = None
        try:
            peer = f"aggregator {link.name}"
            tensors = ServerTensorLink(peer, context.invocation_metadata(), enabled=self._shared_memory)
            self.engine.newest.links.append(tensors)
            await context.send_initial_metadata(tensors.metadata)
            await run_until_first_ends(
                self._receive(link, context, tensors),
                self._send(link, context, tensors),
                link.mailbox.wait_closed(),
            )
        except (Refused, ValueError) as refused:
            reason = f"refused a chunk: {refused}"
            log.warning("aggregator %s: %s", link.name, reason)
            link.mailbox.close(reason, grpc.StatusCode.INVALID_ARGUMENT)
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(refused))
        except LinkClosed as closed:
            await context.abort(closed.code, str(closed))
        finally:
            link.mailbox.close("the data stream ended")
            if tensors is not None:
                self.engine.newest.links.remove(tensors)
                tensors.close()

    async def _receive(
        self, link: AggregatorSession, context: grpc.aio.ServicerContext[Any, Any], tensors: ServerTensorLink
    ) -> None:
        said = ""
        while isinstance(message := await context.read(), Message):
            await self.engine.room()
            stale = max([self._chunk_arrived(chunk) for chunk in tensors.deserialize(message)])
            if stale and stale != said:  # once, not for every chunk of a step
                log.info("aggregator %s: dropped a chunk %s", link.name, stale)
                said = stale

    def _chunk_arrived(self, chunk: TensorChunk) -> str:
        """Take a chunk, or say why it is stale."""
        stale = self.engine.core.why_stale(chunk.header)
        elements = self.engine.core.expected_elements(chunk.header.job)
        if not stale and elements is not None:
            check_chunk(chunk, elements, FLOAT32)  # finished sums and initial weights are not rounded
            timeline.mark("receive", "sum", chunk.header.step, chunk=chunk.header.index)
            self.engine.chunk(chunk.header, chunk.values())
        return stale

    async def _send(
        self, link: AggregatorSession, context: grpc.aio.ServicerContext[Any, Any], tensors: ServerTensorLink
    ) -> None:
        while True:
            link.wake.clear()
            header = await self.engine.next_weights()
            if header is None:
                await link.wake.wait()
                continue
            await self.engine.newest.send(tensors, (header.index,), partial(write_message, context))
            self.engine.newest.forget(header.index)

    async def _read_checkpoint(
        self, request: pb.ReadCheckpointRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.FilePart]:
        try:
            async for part in self.engine.store.parts(request):
                yield part
        except Refused as refused:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(refused))
