"""A shard's gRPC service: orders of one aggregator at a time, and the data streams of its workers."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import grpc

from aggregator.shards.session import ShardSession
from plane.link_check.serve import serve_link_check
from plane.messages import (
    MAX_BATCH_BYTES,
    MAX_BATCH_MESSAGES,
    SequenceFilter,
    unwrap,
    wrap_report,
)
from plane.streams.exchange_server import read_incarnation
from plane.streams.worker_sessions import WorkerSession
from protos import cluster_pb2 as cluster
from protos import plane_pb2 as pb
from services.files.limits import MAX_TRANSFERS, TransferLimits
from services.files.memory import FilesInMemory
from services.files.service import FilesServicer
from services.json_text import LAYOUT
from services.printable import printable_path
from services.protocol.checksums import encode_with_checksum
from services.protocol.hello import HelloExpectations, HelloRefusal, Role, check_hello, make_hello
from services.runtime.aggregator_metrics import AggregatorMetrics
from services.runtime.cluster_identity import ClusterIdentity, StateDirUse
from services.runtime.host_memory import read_host_memory
from services.runtime.metrics import OptimizerMetrics
from services.transport.access.enforcement import check_daemon, confirm_caller
from services.transport.access.permissions import FILES_OF_DAEMON
from services.transport.control.attend_server import serve_attend
from services.transport.control.control_streams import ControlStream
from services.transport.http2.server import Handler
from services.transport.links import SESSION_KEY

log = logging.getLogger("tiermesh.aggregator")

_MAX_SESSION_DIGITS = 20
"""Digits of the largest session number, a uint64."""


class ShardService:
    """Server of `tiermesh.Shard`, and of workers' data streams of `tiermesh.Cluster`.

    Args:
        name: name of this shard.
        state_dir: folder of the identity of its cluster.
        metrics: metrics of this process.
        shared_memory: whether payloads may go through memory shared with a worker on the same host.
    """

    service_names = ("tiermesh.Shard", "tiermesh.Cluster", "tiermesh.Files")

    def __init__(
        self,
        *,
        name: str,
        state_dir: Path,
        metrics: AggregatorMetrics,
        shared_memory: bool = True,
    ) -> None:
        self.name = name
        self._use = StateDirUse(state_dir)
        self._identity = ClusterIdentity(state_dir)
        self._tensor_port = 0
        self._metrics = metrics
        self._optimizer_metrics = OptimizerMetrics(metrics.registry)
        self._shared_memory = shared_memory
        self._files = FilesInMemory(max_bytes=LAYOUT.limit_bytes)  # a shard keeps nothing beyond its process
        self._incarnation = uuid.uuid4().hex
        self._epoch = 0
        self._session: ShardSession | None = None

    # ---- life ----

    async def start(self, tensor_port: int = 0) -> None:
        """Begin to serve.

        Args:
            tensor_port: port of data streams; 0 if they use the port of the gRPC server.
        """
        self._tensor_port = tensor_port

    async def run(self) -> None:
        """Serve until cancelled."""
        await asyncio.Event().wait()

    async def stop(self) -> None:
        """End all streams."""
        if self._session is not None:
            self._session.close("the shard stops")
        self._use.close()

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        """Return the gRPC handlers; workers' data streams take and give raw messages."""
        shard = {
            "Attend": grpc.stream_stream_rpc_method_handler(
                self._attend, response_serializer=encode_with_checksum
            ),
            "MeasureLink": grpc.stream_stream_rpc_method_handler(self._measure_aggregators_link),
        }
        workers = {
            "Attend": grpc.stream_stream_rpc_method_handler(self._refuse_attend),
            "Exchange": grpc.stream_stream_rpc_method_handler(self._exchange),
            "MeasureLink": grpc.stream_stream_rpc_method_handler(self._measure_workers_link),
        }
        return [
            grpc.method_handlers_generic_handler("tiermesh.Shard", shard),
            grpc.method_handlers_generic_handler("tiermesh.Cluster", workers),
            FilesServicer(
                self._files,
                FILES_OF_DAEMON,
                limits=TransferLimits(of_caller=MAX_TRANSFERS),  # only the aggregator calls
            ).handlers(),
        ]

    def tensor_methods(self) -> dict[str, Handler]:
        """Return the handlers of the tensor port by method path."""
        return {
            "/tiermesh.Cluster/Exchange": lambda stream: self._exchange(None, stream),
            "/tiermesh.Cluster/MeasureLink": lambda stream: self._measure_workers_link(None, stream),
            "/tiermesh.Shard/MeasureLink": lambda stream: self._measure_aggregators_link(None, stream),
        }

    # ---- the aggregator ----

    async def _attend(self, _: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await serve_attend(
            context, pb.PlaneOrders, unwrap=_unwrap_first, check=self._check_hello, serve=self._serve
        )

    def _check_hello(self, hello: cluster.Hello) -> HelloRefusal | None:
        """Return why this aggregator is refused; None if it is accepted."""
        session = self._session
        same_process = session is not None and session.incarnation == hello.incarnation
        own = (session.stripe.index, session.stripe.count) if session is not None and same_process else None
        expected = HelloExpectations(
            "shard",
            Role.AGGREGATOR,
            self._epoch,
            own,
            cluster=self._identity.cluster,
            state_dir=printable_path(self._identity.state_dir),
            leader=session.incarnation if session is not None else "",
        )
        return check_hello(hello, expected)

    async def _serve(
        self, hello: cluster.Hello, stream: ControlStream[pb.PlaneReports, pb.PlaneOrders]
    ) -> None:
        if self._session is not None:
            newer = hello.epoch_seen > self._epoch
            text = (
                f"aggregator {hello.name} of epoch {hello.epoch_seen} has taken over from epoch {self._epoch}"
            )
            self._session.close(text if newer else "replaced by a newer connection of the same aggregator")
            self._files.clear()
        self._epoch = hello.epoch_seen
        self._identity.obey(hello.cluster)
        session = self._session = ShardSession(
            hello,
            incarnation=self._incarnation,
            metrics=self._metrics,
            optimizer_metrics=self._optimizer_metrics,
            shared_memory=self._shared_memory,
            files=self._files,
        )
        session.reports.put(
            wrap_report(
                make_hello(
                    Role.AGGREGATOR,
                    self.name,
                    incarnation=self._incarnation,
                    shard_index=hello.shard_index,
                    shard_count=hello.shard_count,
                    tensor_port=self._tensor_port,
                    cluster=self._identity.cluster,
                    **read_host_memory().hello_fields(),
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
        take = partial(_next_reports, session, count(1))
        try:
            await stream.run(take, partial(_take_orders, session, SequenceFilter()))
        finally:
            reason = f"aggregator {hello.name}: {stream.end_reason}"
            session.close(reason)
            if self._session is session:
                self._session = None
                self._files.clear()
            log.info("%s; the tensors of its job are freed", reason)

    # ---- workers ----

    async def _refuse_attend(self, _: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        session = self._session
        role = f"shard {session.stripe.index} of aggregator {session.name}" if session else "a shard"
        text = f"{self.name} is {role}, not an aggregator; give workers the aggregator's address"
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)

    async def _exchange(self, _: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        session, worker = await self._find_worker(context)
        await session.plane.serve(worker, context)

    async def _find_worker(
        self, context: grpc.aio.ServicerContext[Any, Any]
    ) -> tuple[ShardSession, WorkerSession]:
        """Return the session of the worker that a call names; abort a call that names none."""
        incarnation = read_incarnation(context)
        number = str(dict(context.invocation_metadata() or ()).get(SESSION_KEY))
        session = self._session
        is_number = number.isdecimal() and len(number) <= _MAX_SESSION_DIGITS
        worker = await session.plane.find_worker(incarnation, int(number)) if session and is_number else None
        if session is None or worker is None:
            text = (
                f"worker incarnation {incarnation!r:.100}, session {number[:_MAX_SESSION_DIGITS]}: unknown to this "
                "shard's aggregator; attend the aggregator again"
            )
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)
            raise AssertionError  # abort raises
        return session, worker

    # ---- link checks ----

    async def _measure_workers_link(self, _: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        _, worker = await self._find_worker(context)
        check_daemon("worker", worker.name)
        await serve_link_check(
            context,
            f"worker {worker.name}",
            shared_memory=self._shared_memory,
            until=worker.mailbox.wait_closed(),
        )

    async def _measure_aggregators_link(self, _: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        session = await self._require_session(context)
        if jobs := session.plane.jobs:
            text = f"open jobs: {', '.join(jobs)}; check when they have ended"
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)
        await serve_link_check(
            context,
            f"aggregator {session.name}",
            shared_memory=self._shared_memory,
            until=session.reports.wait_closed(),
        )

    async def _require_session(self, context: grpc.aio.ServicerContext[Any, Any]) -> ShardSession:
        incarnation = read_incarnation(context)
        session = self._session
        if session is None or session.incarnation != incarnation:
            text = f"no Attend stream of aggregator incarnation {incarnation!r}; open Attend first"
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)
            raise AssertionError  # abort raises
        check_daemon("aggregator", session.name)
        confirm_caller(context)
        return session


def _take_orders(session: ShardSession, in_order: SequenceFilter, batch: pb.PlaneOrders) -> None:
    if batch.epoch == session.epoch and in_order.is_new(batch.number):
        session.carry_out(batch.orders)


async def _next_reports(session: ShardSession, numbers: Iterator[int]) -> pb.PlaneReports:
    reports = await session.reports.take_batch(MAX_BATCH_MESSAGES, MAX_BATCH_BYTES, pb.PlaneReport.ByteSize)
    return pb.PlaneReports(epoch=session.epoch, reports=reports, number=next(numbers))


def _unwrap_first(batch: pb.PlaneOrders) -> Any:
    return unwrap(batch.orders[0]) if batch.orders else None
