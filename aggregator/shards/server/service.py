"""A shard's gRPC service: one aggregator at a time attends and orders, its workers exchange tensors."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from aggregator.shards.array_pieces import DamagedPiece
from aggregator.shards.messages import SequenceFilter, opened, report
from aggregator.shards.server.session import ShardSession
from optimizer import update_rules as rules
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

BATCH_MESSAGES = 512
"""Orders or reports of one message."""
_SESSION_DIGITS = 20
"""Of the longest number that a session may have, a uint64's."""


class ShardService:
    """Serves `tiermesh.Shard`, and workers' data streams of `tiermesh.Cluster`."""

    service_names = ("tiermesh.Shard", "tiermesh.Cluster")

    def __init__(self, *, name: str, metrics: AggregatorMetrics, shared_memory: bool = True) -> None:
        self.name = name
        self.tensor_port = 0
        self._metrics = metrics
        self._optimizer_metrics = OptimizerMetrics(metrics.registry)
        self._shared_memory = shared_memory
        self._incarnation = uuid.uuid4().hex
        self._epoch = 0
        self._hold: ShardSession | None = None

    # ---- life ----

    async def start(self) -> None:
        """Have the update rules ready."""
        rules.prepare()

    async def run(self) -> None:
        """Serve until cancelled."""
        await asyncio.Event().wait()

    async def stop(self) -> None:
        """End all streams."""
        if self._hold is not None:
            self._hold.close("the shard stops")

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        """For the server; workers' data streams are given and taken as raw messages."""
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
            "Attend": grpc.stream_stream_rpc_method_handler(self._turn_away),
            "Exchange": grpc.stream_stream_rpc_method_handler(self._exchange),
        }
        return [
            grpc.method_handlers_generic_handler("tiermesh.Shard", shard),
            grpc.method_handlers_generic_handler("tiermesh.Cluster", workers),
        ]

    def tensor_methods(self) -> dict[str, Handler]:
        """For the tensor port."""
        return {"/tiermesh.Cluster/Exchange": lambda stream: self._exchange(None, stream)}

    # ---- the aggregator ----

    async def _attend(self, _: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        orders = ControlReader(context.read, pb.ShardOrders, "Attend")
        hello = await receive_hello(context, orders, _first)
        why_not = self._why_not(hello)
        if why_not:
            await context.abort(*why_not)
        if self._hold is not None:
            newer = hello.epoch_seen > self._epoch
            text = (
                f"aggregator {hello.name} of epoch {hello.epoch_seen} has taken over from epoch {self._epoch}"
            )
            self._hold.close(text if newer else "replaced by a newer connection of the same aggregator")
        self._epoch = hello.epoch_seen
        hold = self._hold = ShardSession(
            hello,
            incarnation=self._incarnation,
            metrics=self._metrics,
            optimizer_metrics=self._optimizer_metrics,
            shared_memory=self._shared_memory,
        )
        hold.reports.put(
            report(
                cluster.Hello(
                    protocol=PROTOCOL_VERSION,
                    role="aggregator",
                    name=self.name,
                    incarnation=self._incarnation,
                    shard_index=hello.shard_index,
                    shard_count=hello.shard_count,
                    tensor_port=self.tensor_port,
                )
            )
        )
        log.info(
            "is shard %d of %d of aggregator %s, epoch %d",
            hello.shard_index,
            hello.shard_count,
            hello.name,
            hello.epoch_seen,
        )
        reason = f"aggregator {hello.name} has left"
        try:
            await run_until_first_ends(self._take_orders(hold, orders), self._say(hold, context))
        except LinkClosed as closed:
            reason = f"aggregator {hello.name}: {closed}"
            await context.abort(closed.code, str(closed))
        finally:
            hold.close(reason)
            if self._hold is hold:
                self._hold = None
            log.info("%s; what was held for it is dropped", reason)

    def _why_not(self, hello: cluster.Hello) -> tuple[grpc.StatusCode, str] | None:
        """Why this aggregator is turned away; None if it is welcome."""
        if hello.protocol != PROTOCOL_VERSION:
            return grpc.StatusCode.FAILED_PRECONDITION, (
                f"aggregator {hello.name} speaks protocol {hello.protocol}, this shard {PROTOCOL_VERSION}; "
                "install the same version of Tiermesh on both"
            )
        if hello.role != "aggregator" or not hello.shard_index < hello.shard_count:
            return grpc.StatusCode.INVALID_ARGUMENT, (
                f"{hello.name} says that it is a {hello.role!r} and this is shard {hello.shard_index} of "
                f"{hello.shard_count}; only aggregators attend shards, numbered from 0"
            )
        if hello.epoch_seen < self._epoch:
            return grpc.StatusCode.ABORTED, (
                f"aggregator {hello.name} is of epoch {hello.epoch_seen}, this shard obeys epoch {self._epoch}: a "
                "newer aggregator has taken over; stop this one"
            )
        hold = self._hold
        if hold is not None and hold.incarnation == hello.incarnation:
            asked, is_now = hello.shard_index, hold.stripe.index
            if asked != is_now:
                return grpc.StatusCode.FAILED_PRECONDITION, (
                    f"shard {self.name} is shard {is_now} of {hello.shard_count} already, and can't be shard {asked} "
                    "too; give --shards each process once"
                )
        return None

    async def _take_orders(self, hold: ShardSession, orders: ControlReader[pb.ShardOrders]) -> None:
        in_order = SequenceFilter()
        while (batch := await orders.next()) is not None:
            if batch.epoch == hold.epoch and in_order.is_new(batch.number):
                hold.carry_out(batch.orders)

    async def _say(self, hold: ShardSession, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        number = 0
        while True:
            reports = await hold.reports.take_batch(BATCH_MESSAGES)
            number += 1
            await context.write(pb.ShardReports(epoch=hold.epoch, reports=reports, number=number))

    # ---- workers ----

    async def _turn_away(self, _: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        of = f"shard {self._hold.stripe.index} of aggregator {self._hold.name}" if self._hold else "a shard"
        text = f"{self.name} is {of}; workers attend the aggregator itself: give them its address"
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)

    async def _exchange(self, requests: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        metadata = dict(context.invocation_metadata() or ())
        incarnation, number = str(metadata.get(INCARNATION_KEY)), str(metadata.get(SESSION_KEY))
        hold = self._hold
        numbered = number.isdecimal() and len(number) <= _SESSION_DIGITS
        session = await hold.session_of(incarnation, int(number)) if hold and numbered else None
        if hold is None or session is None:
            text = (
                f"no worker incarnation {incarnation!r:.100} of session {number[:_SESSION_DIGITS]} attends this "
                "shard's aggregator; attend it anew"
            )
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)
            return
        reason = "its data stream ended"
        try:
            await hold.exchange.serve(requests, context)
        finally:
            session.mailbox.close(reason)
            try:
                await session.mailbox.wait_closed()  # it is, for the reason that was given first
            except LinkClosed as closed:
                reason = str(closed)
            hold.gone(session, reason)

    # ---- checkpoints ----

    async def _attended(self, context: grpc.aio.ServicerContext[Any, Any]) -> ShardSession:
        incarnation = dict(context.invocation_metadata() or ()).get(INCARNATION_KEY)
        hold = self._hold
        if hold is None or hold.incarnation != incarnation:
            text = f"aggregator incarnation {incarnation!r} does not attend; open Attend first"
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)
            raise AssertionError  # abort raises
        return hold

    async def _read_part(
        self, content: bytes, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.ArrayPiece]:
        hold = await self._attended(context)
        try:
            request, _ = decode_with_checksum(pb.ReadPartRequest, content)
        except ChecksumMismatch as damaged:
            await context.abort(grpc.StatusCode.DATA_LOSS, f"what was asked for was damaged: {damaged}")
        try:
            async for piece in hold.copies.read(request.copy):
                yield piece
        except MemoryError as error:
            text = f"no memory for a copy of its tensors ({error}); give its host more"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, text)

    async def _write_part(
        self, pieces: AsyncIterator[bytes], context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.PartWritten:
        hold = await self._attended(context)
        try:
            async for piece in pieces:
                await hold.write(pb.ArrayPiece.FromString(piece))
        except DecodeError:
            await context.abort(grpc.StatusCode.DATA_LOSS, "a message was damaged")
        except DamagedPiece as damaged:
            await context.abort(grpc.StatusCode.DATA_LOSS, str(damaged))
        except Refused as refused:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(refused))
        return pb.PartWritten()


def _first(batch: pb.ShardOrders) -> Any:
    return opened(batch.orders[0]) if batch.orders else None
