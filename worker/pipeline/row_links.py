"""The links of this worker to the others of its row: opened, accepted and closed as the aggregator forms rows."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc

from protos import cluster_pb2 as pb
from protos.pipeline_pb2 import LinkState
from services.errors import Refused
from services.pipeline.row_ids import describe_row
from services.printable import printable
from services.protocol.hello import Role
from services.tasks import describe_error, start_task
from services.timeouts import STANDARD_TIMEOUTS, Timeouts
from services.transport.access.enforcement import check_daemon, confirm_caller
from services.transport.http2.server import Handler
from services.transport.links import LinkClosed
from services.transport.ports.log_limit import LogLimit
from services.transport.security import Security
from worker.pipeline.array_plan import ArrayPlan
from worker.pipeline.lease_exchange import LeaseExchange
from worker.pipeline.link import Link
from worker.pipeline.messages import PassRefused
from worker.pipeline.seats import RowPlaces
from worker.pipeline.streams import PASS_METHOD, SHARING, LinkStreams, Sharing, read_first
from worker.row_exchange import LeaseDropped

log = logging.getLogger("tiermesh.worker")


@dataclass
class _LinkedRow:
    """A row and its links.

    Attributes:
        places: the workers of the row.
        streams: streams of the links to the neighbours, by the first of their stages.
        tasks: tasks that run while the row lives.
        last_lease: the lease that was opened last.
    """

    places: RowPlaces
    streams: Mapping[int, LinkStreams]
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    last_lease: int = 0

    def start(self, work: Coroutine[Any, Any, None], link: Link) -> None:
        """Start a task that runs while the row lives; an error in it ends its link."""
        self.tasks.append(start_task(work, str(link), lambda error: link.fail(describe_error(error))))

    @property
    def links(self) -> dict[int, Link]:
        """The links, by the first of the neighbours' stages."""
        return {stage: each.link for stage, each in self.streams.items()}


class RowLinks:
    """The links of one worker process. Only `open_lease` may be called from another thread than the event loop's.

    Args:
        name: name of the worker.
        incarnation: id of this process start.
        security: the worker's certificate, and the authorities whose certificates it trusts.
        timeouts: timeouts of rows to come; the service sets them to the cluster's.
        sharing: whether and how arrays go through memory shared with a neighbour on this host.
        count_sent: callback, called with the job and the bytes of each array that is sent.
        clock: monotonic time in seconds.
    """

    def __init__(
        self,
        name: str,
        incarnation: str,
        security: Security,
        timeouts: Timeouts = STANDARD_TIMEOUTS,
        *,
        sharing: Sharing = SHARING,
        count_sent: Callable[[str, int], None] = lambda job, size_bytes: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sharing = sharing
        self._count_sent = count_sent
        self._clock = clock
        self.timeouts = timeouts
        self._name = name
        self._incarnation = incarnation
        self._security = security
        self._log_limit = LogLimit()
        self._row: _LinkedRow | None = None

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers of the tensor port, by method."""
        return {PASS_METHOD: self.serve}

    def set_row(self, row: pb.Row | None, epoch: int) -> None:
        """Link this worker to its neighbours in a row. The links of the row before are closed.

        Calls of its leases' exchanges that wait raise LeaseDropped.

        Args:
            row: the row; None for none.
            epoch: epoch of the aggregator.

        Raises:
            Refused: the row is none, or this worker has no stages in it.
        """
        before, self._row = self._row, None
        if before is not None:
            for task in before.tasks:
                task.cancel()
            for link in before.links.values():
                link.close()
        if row is None:
            return
        places = RowPlaces.read(row, epoch, self._incarnation)
        loop = asyncio.get_running_loop()
        streams = {
            each.stages.first: LinkStreams(
                Link(places, each, loop, self._count_sent),
                self._security,
                self._sharing,
                self.timeouts,
                self._clock,
            )
            for each in places.neighbours
        }
        linked = self._row = _LinkedRow(places, streams)
        for each in streams.values():
            linked.start(each.watch(), each.link)
            if places.opens_to(each.link.neighbour):
                linked.start(each.keep_open(), each.link)

    def open_lease(self, lease: pb.Lease, plan: ArrayPlan) -> LeaseExchange:
        """Return the exchange of a lease, whose id is larger than those of the row's leases before.

        Args:
            lease: the lease.
            plan: arrays of the job.

        Raises:
            LeaseDropped: the row of the lease is over.
            PassRefused: a later lease was opened before, or the job has another number of stages.
        """
        linked = self._row
        if linked is None or linked.places.row != lease.row or linked.places.job != lease.job:
            raise LeaseDropped(f"lease {lease.lease}: its {describe_row(lease.row)} is over")
        places = linked.places
        if plan.split.stages != places.stages:
            raise PassRefused(
                f"{describe_row(places.row)}: {places.stages} stages, expected {plan.split.stages}, the job's"
            )
        if lease.lease <= linked.last_lease:
            raise PassRefused(
                f"lease {lease.lease}: came after {linked.last_lease}, expected a larger number, as the leases of a "
                "row follow each other"
            )
        linked.last_lease = lease.lease
        for link in linked.links.values():
            link.open_lease(lease, plan)
        return LeaseExchange(lease, plan, places, linked.links)

    async def serve(self, context: Any) -> None:
        """Serve the stream of a neighbour with later stages."""
        try:
            first = await read_first(context)
            streams = self._accept(first)
            assert isinstance(first, LinkState)
            check_daemon(Role.WORKER.value, first.name)
            confirm_caller(context)
            await streams.accept(context, first)
        except Refused as refused:
            left_out = self._log_limit.suffix(Refused)
            if left_out is not None:
                log.warning("refused a stream: %s%s", refused, left_out)
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(refused))
        except LinkClosed as closed:
            await context.abort(closed.code, str(closed))

    def _accept(self, first: object) -> LinkStreams:
        """Return the streams of the link that a first message belongs to.

        Raises:
            PassRefused: its sender is no neighbour that opens a stream to this worker.
            LinkClosed: this worker is not in that row, perhaps not yet.
        """
        if not isinstance(first, LinkState):
            raise PassRefused("first message of a stream: an array, expected the sender's state")
        linked = self._row
        sender = f"worker {printable(first.name, 60)}"
        if linked is None or (linked.places.job, linked.places.row) != (first.job, first.row):
            own = f"has {describe_row(linked.places.row)}" if linked is not None else "has no row"
            raise LinkClosed(f"worker {self._name} {own}, {sender} wants {describe_row(first.row)}")
        streams = linked.streams.get(first.stage)
        if streams is None or linked.places.opens_to(streams.link.neighbour):
            raise PassRefused(
                f"{sender}, stage {first.stage} of {describe_row(first.row)}: no neighbour with later stages than "
                f"{linked.places.own}"
            )
        streams.link.check_state(first)
        return streams
