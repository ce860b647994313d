"""A shard's gRPC service: orders of one aggregator at a time, and the data streams of its workers."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from aggregator.shards.array_pieces import DamagedPiece
from aggregator.shards.messages import MAX_BATCH_MESSAGES, SequenceFilter, unwrap, wrap_report
from aggregator.shards.server.session import ShardSession
from optimizer import update_rules
from protos import cluster_pb2 as cluster
from protos import shards_pb2 as pb
from services.errors import Refused
from services.protocol.checksums import ChecksumMismatch, decode_with_checksum, encode_with_checksum
from services.protocol.versions import PROTOCOL_VERSION
from services.runtime.metrics import AggregatorMetrics, OptimizerMetrics
from services.transport.control_streams import ControlReader, receive_hello
from services.transport.http2.server import Handler
from services.transport.links import INCARNATION_KEY, SESSION_KEY, LinkClosed, run_until_first_ends

log = logging.getLogger("tiermesh.aggregator")

_MAX_SESSION_DIGITS = 20
"""Digits of the largest session number, a uint64."""


class ShardService:
    """Server of `tiermesh.Shard`, and of workers' data streams of `tiermesh.Cluster`.

    Args:
        name: name of this shard.
        metrics: metrics of this process.
        shared_memory: whether payloads may go through memory shared with a worker on the same host.
    """

    service_names = ("tiermesh.Shard", "tiermesh.Cluster")

    def __init__(self, *, name: str, metrics: AggregatorMetrics, shared_memory: bool = True) -> None:
        self.name = name
        self._tensor_port = 0
        self._metrics = metrics
        self._optimizer_metrics = OptimizerMetrics(metrics.registry)
        self._shared_memory = shared_memory
        self._incarnation = uuid.uuid4().hex
        self._epoch = 0
        self._session: ShardSession | None = None

    # ---- life ----

    async def start(self, tensor_port: int = 0) -> None:
        """Load the update rules' kernels.

        Args:
            tensor_port: port of data streams; 0 if they use the port of the gRPC server.
        """
        self._tensor_port = tensor_port
        update_rules.prepare()

    async def run(self) -> None:
        """Serve until cancelled."""
        await asyncio.Event().wait()

    async def stop(self) -> None:
        """End all streams."""
        if self._session is not None:
            self._session.close("the shard stops")

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        """Return the gRPC handlers; workers' data streams take and give raw messages."""
        shard = {
            "Attend": grpc.stream_stream_rpc_method_handler(
                self._attend, response_serializer=encode_with_checksum
            ),
            "ReadPart": grpc.unary_stream_rpc_method_handler(
                self._read_part, response_serializer=pb.ArrayPiece.SerializeToString
            ),
            "WritePart": grpc.stream_unary_rpc_method_handler(
                self._write_part, response_serializer=pb.PartWritten.SerializeToString
            ),
        }
        workers = {
            "Attend": grpc.stream_stream_rpc_method_handler(self._refuse_attend),
            "Exchange": grpc.stream_stream_rpc_method_handler(self._exchange),
        }
        return [
            grpc.method_handlers_generic_handler("tiermesh.Shard", shard),
            grpc.method_handlers_generic_handler("tiermesh.Cluster", workers),
        ]

    def tensor_methods(self) -> dict[str, Handler]:
        """Return the handlers of the tensor port by method path."""
        return {"/tiermesh.Cluster/Exchange": lambda stream: self._exchange(None, stream)}

    # ---- the aggregator ----

    async def _attend(self, _: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        orders = ControlReader(context.read, pb.ShardOrders, "Attend")
        hello = await receive_hello(context, orders, _unwrap_first)
        status = self._check_hello(hello)
        if status is not None:
            await context.abort(*status)
        if self._session is not None:
            newer = hello.epoch_seen > self._epoch
            text = (
                f"aggregator {hello.name} of epoch {hello.epoch_seen} has taken over from epoch {self._epoch}"
            )
            self._session.close(text if newer else "replaced by a newer connection of the same aggregator")
        self._epoch = hello.epoch_seen
        session = self._session = ShardSession(
            hello,
            incarnation=self._incarnation,
            metrics=self._metrics,
            optimizer_metrics=self._optimizer_metrics,
            shared_memory=self._shared_memory,
        )
        session.reports.put(
            wrap_report(
                cluster.Hello(
                    protocol=PROTOCOL_VERSION,
                    role="aggregator",
                    name=self.name,
                    incarnation=self._incarnation,
                    shard_index=hello.shard_index,
                    shard_count=hello.shard_count,
                    tensor_port=self._tensor_port,
                )
            )
        )
        log.info(
            "this process is shard %d of %d of aggregator %s, epoch %d",
            hello.shard_index,
            hello.shard_count,
            hello.name,
            hello.epoch_seen,
        )
        reason = f"aggregator {hello.name}: disconnected"
        try:
            await run_until_first_ends(
                self._take_orders(session, orders), self._send_reports(session, context)
            )
        except LinkClosed as closed:
            reason = f"aggregator {hello.name}: {closed}"
            await context.abort(closed.code, str(closed))
        finally:
            session.close(reason)
            if self._session is session:
                self._session = None
            log.info("%s; the tensors of its job are freed", reason)

    def _check_hello(self, hello: cluster.Hello) -> tuple[grpc.StatusCode, str] | None:
        """Return the status and reason with which this aggregator is refused; None if it is accepted."""
        if hello.protocol != PROTOCOL_VERSION:
            return grpc.StatusCode.FAILED_PRECONDITION, (
                f"aggregator {hello.name} speaks protocol {hello.protocol}, this shard {PROTOCOL_VERSION}; "
                "install the same version of Tiermesh on both"
            )
        if hello.role != "aggregator" or not hello.shard_index < hello.shard_count:
            return grpc.StatusCode.INVALID_ARGUMENT, (
                f"{hello.name} has role {hello.role!r} and asks for shard {hello.shard_index} of {hello.shard_count}; "
                "expected an aggregator and a shard number below the count"
            )
        if hello.epoch_seen < self._epoch:
            return grpc.StatusCode.ABORTED, (
                f"aggregator {hello.name} has epoch {hello.epoch_seen}, this shard obeys epoch {self._epoch}: a "
                "newer aggregator has taken over; stop this one"
            )
        session = self._session
        if session is not None and session.incarnation == hello.incarnation:
            requested, present = hello.shard_index, session.stripe.index
            if requested != present:
                return grpc.StatusCode.FAILED_PRECONDITION, (
                    f"shard {self.name} is shard {present} of {hello.shard_count} already and can't be shard "
                    f"{requested} too; list each process once in --shards"
                )
        return None

    async def _take_orders(self, session: ShardSession, orders: ControlReader[pb.ShardOrders]) -> None:
        in_order = SequenceFilter()
        while (batch := await orders.next()) is not None:
            if batch.epoch == session.epoch and in_order.is_new(batch.number):
                session.carry_out(batch.orders)

    async def _send_reports(self, session: ShardSession, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        number = 0
        while True:
            reports = await session.reports.take_batch(MAX_BATCH_MESSAGES)
            number += 1
            await context.write(pb.ShardReports(epoch=session.epoch, reports=reports, number=number))

    # ---- workers ----

    async def _refuse_attend(self, _: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        session = self._session
        role = f"shard {session.stripe.index} of aggregator {session.name}" if session else "a shard"
        text = f"{self.name} is {role}, not an aggregator; give workers the aggregator's address"
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)

    async def _exchange(self, requests: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        metadata = dict(context.invocation_metadata() or ())
        incarnation, number = str(metadata.get(INCARNATION_KEY)), str(metadata.get(SESSION_KEY))
        session = self._session
        is_number = number.isdecimal() and len(number) <= _MAX_SESSION_DIGITS
        worker = await session.find_worker(incarnation, int(number)) if session and is_number else None
        if session is None or worker is None:
            text = (
                f"worker incarnation {incarnation!r:.100}, session {number[:_MAX_SESSION_DIGITS]}: unknown to this "
                "shard's aggregator; attend the aggregator again"
            )
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)
            return
        reason = "its data stream ended"
        try:
            await session.data_streams.serve(requests, context)
        finally:
            worker.mailbox.close(reason)
            try:
                await worker.mailbox.wait_closed()  # raises the reason of the first close
            except LinkClosed as closed:
                reason = str(closed)
            session.worker_gone(worker, reason)

    # ---- checkpoints ----

    async def _require_session(self, context: grpc.aio.ServicerContext[Any, Any]) -> ShardSession:
        incarnation = dict(context.invocation_metadata() or ()).get(INCARNATION_KEY)
        session = self._session
        if session is None or session.incarnation != incarnation:
            text = f"no Attend stream of aggregator incarnation {incarnation!r}; open Attend first"
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)
            raise AssertionError  # abort raises
        return session

    async def _read_part(
        self, content: bytes, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.ArrayPiece]:
        session = await self._require_session(context)
        try:
            request, _ = decode_with_checksum(pb.ReadPartRequest, content)
        except ChecksumMismatch as damaged:
            await context.abort(grpc.StatusCode.DATA_LOSS, f"the request was damaged: {damaged}")
        try:
            async for piece in session.copies.read(request.copy):
                yield piece
        except MemoryError as error:
            text = f"not enough memory for a copy of the shard's tensors ({error}); give its host more"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, text)

    async def _write_part(
        self, pieces: AsyncIterator[bytes], context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.PartWritten:
        session = await self._require_session(context)
        try:
            async for piece in pieces:
                await session.write_piece(pb.ArrayPiece.FromString(piece))
        except DecodeError:
            await context.abort(
                grpc.StatusCode.DATA_LOSS, "a message of the checkpoint was damaged; send it again"
            )
        except DamagedPiece as damaged:
            await context.abort(grpc.StatusCode.DATA_LOSS, str(damaged))
        except Refused as refused:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(refused))
        return pb.PartWritten()


def _unwrap_first(batch: pb.ShardOrders) -> Any:
    return unwrap(batch.orders[0]) if batch.orders else None
