"""Carries the arrays of one lease's passes: within this process, or over the links of the row."""

from __future__ import annotations

from collections.abc import Mapping

from protos import cluster_pb2 as pb
from protos.pipeline_pb2 import ACTIVATION, ACTIVATION_GRADIENT, TIED_PART, ArrayHeader, ArrayKind
from services.pipeline.exchange import ExactArray, LocalExchange, ReceivedKind
from services.pipeline.schedule import Pass
from worker.pipeline.array_plan import ArrayPlan
from worker.pipeline.link import Link
from worker.pipeline.messages import describe_array
from worker.pipeline.seats import RowPlaces
from worker.row_exchange import NeighbourLost


class LeaseExchange:
    """A `PassExchange` between the workers of a row, for one lease.

    `send` waits for a credit and `receive` for the array, as long as the neighbour is heard. Both raise LeaseDropped
    if the lease was dropped, and NeighbourLost if the neighbour can't be reached.

    Args:
        lease: the lease.
        plan: arrays of the job.
        row: the row.
        links: links to the neighbours, by the first of their stages.
    """

    def __init__(self, lease: pb.Lease, plan: ArrayPlan, row: RowPlaces, links: Mapping[int, Link]) -> None:
        self._lease = lease
        self._plan = plan
        self._row = row
        self._links = links
        self._local = LocalExchange()

    def send(self, to: Pass, array: ExactArray) -> None:
        """Send a pass its activation, or its gradient."""
        link = self._link(to.range_index)
        if link is None:
            self._local.send(to, array)
        else:
            self._send(link, _kind(to), to.range_index, to.micro_batch, array)

    def receive(self, one: Pass) -> ExactArray:
        """Return what a pass of a neighbouring range has sent to this one.

        Raises:
            NeighbourLost: the neighbour has sent it to another pass.
        """
        link = self._link(one.range_index + (1 if one.is_backward else -1))
        if link is None:
            return self._local.receive(one)
        return self._receive(link, _kind(one), one.range_index, one.micro_batch)

    def send_tied(self, micro_batch: int, array: ExactArray) -> None:
        """Send the first range the last one's part of the token embedding's gradient."""
        link = self._link(0)
        if link is None:
            self._local.send_tied(micro_batch, array)
        else:
            self._send(link, TIED_PART, 0, micro_batch, array)

    def receive_tied(self, micro_batch: int) -> ExactArray:
        """Return what the last range has sent by `send_tied`.

        Raises:
            NeighbourLost: it was sent for another micro-batch.
        """
        link = self._link(len(self._plan.split.ranges) - 1)
        if link is None:
            return self._local.receive_tied(micro_batch)
        return self._receive(link, TIED_PART, 0, micro_batch)

    def worker_of(self, range_index: int) -> str:
        """Return which worker of the row has a range, for people; -1 is the last range."""
        split = self._plan.split
        return str(self._row.of_stage(split.stage_of(range_index % len(split.ranges))))

    def sender_of(self, kind: ReceivedKind) -> str:
        """Return the name of the worker that sends this one's arrays of a kind."""
        stages = self._row.own.stages
        sender = {"activation": stages.first - 1, "gradient": stages.stop, "tied part": -1}[kind]
        return self._row.of_stage(sender % self._row.stages).name

    def drop(self) -> None:
        """Drop the lease; any thread may. Calls that wait raise LeaseDropped."""
        for link in self._links.values():
            link.drop(self._lease.lease)

    def close(self) -> None:
        """End the lease's passes. What was sent is still delivered."""
        for link in self._links.values():
            link.close_lease(self._lease.lease)

    def _link(self, range_index: int) -> Link | None:
        """Return the link to the worker that has a range; None if it is this one."""
        place = self._row.of_stage(self._plan.split.stage_of(range_index))
        return None if place is self._row.own else self._links[place.stages.first]

    def _send(
        self, link: Link, kind: ArrayKind, range_index: int, micro_batch: int, array: ExactArray
    ) -> None:
        lease = self._lease
        header = ArrayHeader(
            job=lease.job,
            epoch=self._row.epoch,
            generation=lease.generation,
            step=lease.step,
            lease=lease.lease,
            row=self._row.row,
            range=range_index,
            micro_batch=micro_batch,
            kind=kind,
            shape=array.shape,
            dtype=self._plan.wire,
        )
        link.send(header, self._plan.arrays.pack(array))

    def _receive(self, link: Link, kind: ArrayKind, range_index: int, micro_batch: int) -> ExactArray:
        array = link.take(self._lease.lease, kind)
        header, lease = array.header, self._lease
        found = (header.range, header.micro_batch, header.generation, header.step)
        expected = (range_index, micro_batch, lease.generation, lease.step)
        if found != expected:
            raise NeighbourLost(
                link.neighbour.name,
                f"{describe_array(header)}: came from {link} for the pass of micro-batch {micro_batch} through range "
                f"{range_index} at step {lease.step}; both workers must run the same schedule",
            )
        return self._plan.arrays.unpack(array.content, tuple(header.shape))


def _kind(one: Pass) -> ArrayKind:
    return ACTIVATION_GRADIENT if one.is_backward else ACTIVATION
