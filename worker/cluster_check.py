"""The worker's part of `tiermesh check --cluster`: its mesh on the device thread, its links on streams of their own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import grpc

from plane.link_check.measure import LinkPeer, check_link
from plane.link_check.serve import serve_link_check
from plane.streams.data_streams import DataStreamConnector
from protos import cluster_pb2 as pb
from protos.checks_pb2 import LinkReport, MeshReport
from services.errors import Refused
from services.protocol.envelope import CheckOrder, CheckReport
from services.tasks import describe_error, start_task
from services.transport.addresses import split_address
from services.transport.links import LinkClosed
from services.transport.security import Security
from worker.device_thread import DeviceThread
from worker.pipeline.remedies import add_remedy

log = logging.getLogger("tiermesh.worker")

NEIGHBOURS_METHOD = "/tiermesh.Pipeline/MeasureLink"


class ClusterCheck:
    """Carries out the orders of one connection to an aggregator.

    Args:
        device: the device thread.
        security: the worker's certificate, and the authorities whose certificates it trusts.
        shared_memory: whether payloads may go through memory shared with a peer.
        peer_of_shard: returns the other end of a data stream, given the index of its shard; None if there is none.
        send: sends a report; called on the event loop.
    """

    def __init__(
        self,
        *,
        device: DeviceThread,
        security: Security,
        shared_memory: bool,
        peer_of_shard: Callable[[int], LinkPeer | None],
        send: Callable[[CheckReport], None],
    ) -> None:
        self._device = device
        self._connector = DataStreamConnector("/tiermesh.Cluster/MeasureLink", security)
        self._neighbours = DataStreamConnector(NEIGHBOURS_METHOD, security, falls_back=False)
        self._shared_memory = shared_memory
        self._peer_of_shard = peer_of_shard
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None

    def take(self, order: CheckOrder, job: str) -> None:
        """Begin to carry out an order, and end the one before.

        Args:
            order: the order.
            job: id of the job that this worker has; empty if it has none.
        """
        self.cancel()
        problem = f"the worker has job {job}; check when it has ended" if job else ""
        if isinstance(order, pb.CheckMesh):
            self._check_mesh(order, problem)
        else:
            self._task = start_task(
                self._check_link(order, problem),
                f"check of the link to {order.peer or f'shard {order.shard}'}",
                lambda error: self._report_link(order, LinkReport(problem=describe_error(error))),
            )

    def cancel(self) -> None:
        """End the check of a link, since a job begins or the connection ends."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def _check_mesh(self, order: pb.CheckMesh, problem: str) -> None:
        def report(result: MeshReport) -> None:
            self._loop.call_soon_threadsafe(self._send, pb.MeshChecked(number=order.number, report=result))

        if problem:
            report(MeshReport(problem=problem))
        else:
            self._device.check_mesh(order, report)

    async def _check_link(self, order: pb.CheckLink, problem: str) -> None:
        peer = None if order.address else self._peer_of_shard(order.shard)
        if problem:
            report = LinkReport(problem=problem)
        elif order.address:
            report = await self._check_neighbour(order)
        elif peer is None:
            report = LinkReport(problem=f"this worker has no stream to shard {order.shard}")
        else:
            report = await check_link(self._connector, peer, shared_memory=self._shared_memory)
        self._report_link(order, report)

    def _report_link(self, order: pb.CheckLink, report: LinkReport) -> None:
        self._send(pb.LinkChecked(number=order.number, report=report))

    async def _check_neighbour(self, order: pb.CheckLink) -> LinkReport:
        """Return whether another worker's port for its neighbours in a pipeline can be reached and takes this one."""
        try:
            _, port = split_address("address", order.address)
        except Refused as refused:
            return LinkReport(problem=str(refused))
        peer = LinkPeer(f"worker {order.peer}", order.address, port, ())
        report = await check_link(self._neighbours, peer, shared_memory=False, speed=False)
        if report.problem and not report.wrong_bits:
            cause = report.problem.removeprefix(f"{order.address}: ")
            report.problem = add_remedy(f"{order.address}: {cause}", order.peer)
        return report


class NeighbourCheck:
    """Serves other workers' checks of their links to this one, while it has no job.

    Args:
        has_job: returns whether this worker has a job.
    """

    def __init__(self, has_job: Callable[[], bool]) -> None:
        self._has_job = has_job
        self._over = asyncio.Event()

    async def serve(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Serve `tiermesh.Pipeline/MeasureLink`."""
        if self._has_job():
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION, "this worker has a job; check when it has ended"
            )
            return
        await serve_link_check(context, "another worker", shared_memory=False, until=_end_with(self._over))

    def end(self) -> None:
        """End the checks that are under way, since a job begins."""
        self._over.set()
        self._over = asyncio.Event()


async def _end_with(over: asyncio.Event) -> None:
    await over.wait()
    raise LinkClosed("a job begins at this worker")
