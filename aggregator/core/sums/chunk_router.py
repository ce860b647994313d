"""Chunks on their way through the aggregator: what happens to each payload.

A chunk comes in pieces, of which a whole chunk is one. Once all of them are kept it is stored as a sum, merged with
its sibling's, and passed on when it reaches the root. Every worker is sent the newest weights, each chunk as soon as
a plane has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from aggregator.core.events import Outbox, StoreWeights
from aggregator.core.membership.members import Member
from aggregator.core.sums.piece_book import PieceBook
from aggregator.core.sums.plane_orders import (
    discard_pieces,
    drop_sum,
    finish_sum,
    keep_pieces,
    keep_sum,
    merge_sums,
    send_version,
)
from aggregator.core.sums.step_sum import Assignment, StepSum
from protos import plane_pb2 as plane
from protos.tensors_pb2 import FLOAT32, GRADIENT, WEIGHTS, ChunkHeader
from services.protocol.plan import WireTypes
from services.protocol.versions import Version
from services.tensors.layout import chunk_count, chunk_range
from services.tensors.layout_parts import LayoutParts, Piece
from services.tensors.reduction_tree import Node


@dataclass
class WeightStore:
    """The newest weights that workers can be sent, and what of them the optimizer has yet to send here.

    Attributes:
        receives: whether they come from the optimizer's process; planes make them here else.
        version: the version of these weights; None before there are any.
        elements: the number of elements in the layout.
    """

    receives: bool
    version: Version | None = None
    elements: int = 0
    _arrived: int = 0  # chunks, in the order of the layout

    def begin(self, version: Version | None, elements: int) -> None:
        """Expect the chunks of a version, unless they are expected already."""
        if (self.version, self.elements) != (version, elements):
            self.version, self.elements, self._arrived = version, elements, 0

    def add(self, chunk: int) -> bool:
        """Count a chunk; return False if it is not the next one.

        They come in their order. So it is a repeated one, or of weights whose first chunks came before the job was
        resumed: then all come again.
        """
        if chunk != self._arrived or self.complete:
            return False
        self._arrived += 1
        return True

    @property
    def complete(self) -> bool:
        """Whether all chunks of the version that come from the optimizer's process have arrived."""
        expected = chunk_count(self.elements) if self.receives else 0
        return self.version is not None and self._arrived == expected


class ChunkRouter:
    """Turns arriving pieces of chunks into orders to the planes that have their payloads.

    Args:
        job: the job's id.
        epoch: the aggregator's epoch.
        wire: the types that chunks travel in.
        out: takes the effects.
        receives_weights: whether new weights come from the optimizer's process; planes make them else.

    Attributes:
        weights: the newest weights.
        pieces: the pieces of chunks that have arrived.
    """

    def __init__(
        self, job: str, epoch: int, wire: WireTypes, out: Outbox, *, receives_weights: bool = True
    ) -> None:
        self.weights = WeightStore(receives_weights)
        self._job = job
        self._epoch = epoch
        self._wire = wire
        self._out = out
        self.pieces = PieceBook()

    def make_header(self, version: Version, chunk: int, elements: int, kind: int) -> ChunkHeader:
        """Return the header of a chunk to send; the sender adds its incarnation and the checksum."""
        start, stop = chunk_range(elements, chunk)
        return ChunkHeader(
            job=self._job,
            epoch=self._epoch,
            generation=version.generation,
            step=version.step,
            kind=kind,  # type: ignore[arg-type]  # an enum value, which protoc's stubs type more narrowly
            index=chunk,
            offset=start,
            elements=stop - start,
            # A finished sum is not rounded, so the optimizer stages the same bits in 2 and 3 tiers.
            dtype=self._wire.weights if kind == WEIGHTS else FLOAT32,
        )

    def route_gradient(
        self, step_sum: StepSum, assignment: Assignment, chunks: Sequence[int], elements: int
    ) -> None:
        """Keep whole chunks as sums of an assignment's node, and merge them; pass on the sums that are finished.

        Consecutive chunks with which the same happens are told by one order. Findings come with chunk 0, so it is told
        alone.
        """
        lease, node = assignment.lease, assignment.node
        for (arrival, _), run in groupby(
            chunks, lambda chunk: (step_sum.arrive(assignment, chunk), chunk == 0)
        ):
            alike = list(run)
            if arrival.duplicate:
                self._out.put(keep_sum(self._job, lease, alike, None))
                continue
            for superseded in arrival.superseded:
                self._out.put(drop_sum(self._job, alike, superseded))
            self._out.put(keep_sum(self._job, lease, alike, node))
            for merge in arrival.merges:
                self._out.put(merge_sums(self._job, alike, *merge))
            if arrival.done:
                self._forward_sums(step_sum, alike, elements)

    def open_gate(self, step_sum: StepSum, elements: int) -> None:
        """Pass on the chunk that was held back until all checks of the step were closed."""
        held_back = step_sum.coverage.open_gate()
        if held_back is not None:
            self._forward_sums(step_sum, [held_back], elements)

    def _forward_sums(self, step_sum: StepSum, chunks: Sequence[int], elements: int) -> None:
        forwarded = self.make_header(step_sum.version, chunks[0], elements, GRADIENT)
        if forwarded.index == 0:
            forwarded.findings.CopyFrom(step_sum.findings)
        self._out.put(finish_sum(forwarded, chunks, step_sum.coverage.root))

    # ---- pieces ----

    def keep_pieces(self, header: ChunkHeader, pieces: Sequence[Piece], arrival: int) -> None:
        """Keep arrived pieces of chunks, and discard repeated ones.

        Args:
            header: header of the first.
            pieces: the pieces, of one lease.
            arrival: id of the first one's arrival, which the others follow.
        """
        kept: list[int] = []
        repeated: list[int] = []
        for each, piece in enumerate(pieces, arrival):
            (kept if self.pieces.add(header.lease, piece) else repeated).append(each)
        if kept:
            self._out.put(keep_pieces(header, kept))
        if repeated:
            self._out.put(discard_pieces(header, repeated))

    def take_whole(self, lease: int, chunks: Sequence[int], elements: int) -> list[int]:
        """Return those of a lease's chunks whose pieces are all kept, which must be routed now.

        Args:
            lease: id of the lease.
            chunks: indices of chunks of which a piece is new.
            elements: number of elements of the layout.
        """
        return [chunk for chunk in chunks if self.pieces.take(lease, chunk, elements)]

    def drop_pieces(self, lease: int) -> None:
        """Drop the pieces of a void lease's chunks."""
        if self.pieces.forget(lease):
            self._out.put(plane.DropPieces(job=self._job, lease=lease))

    def drop_all(self) -> None:
        """Drop all sums, and all pieces."""
        self.pieces.clear()
        self._out.put(plane.DropSums(job=self._job))

    # ---- weights ----

    def route_initial_weights(self, header: ChunkHeader, chunks: Sequence[int], elements: int) -> None:
        """Pass whole chunks of initial weights to the optimizer.

        Args:
            header: header of a piece of the lease.
            chunks: indices of the chunks.
            elements: number of elements of the layout.
        """
        forwarded = ChunkHeader()
        forwarded.CopyFrom(header)
        forwarded.epoch, forwarded.lease, forwarded.index = self._epoch, 0, chunks[0]
        forwarded.offset, stop = chunk_range(elements, chunks[0])
        forwarded.elements = stop - forwarded.offset
        root = Node(0, 1)
        self._out.put(keep_sum(self._job, header.lease, chunks, root))
        self._out.put(finish_sum(forwarded, chunks, root))

    def store_weights(self, header: ChunkHeader) -> None:
        """Store a chunk of the newest weights, unless it is a repeated one."""
        if self.weights.add(header.index):
            self._out.put(StoreWeights(header, self.weights.elements))

    def send_weights(self, member: Member, version: Version, parts: LayoutParts | None) -> None:
        """Order the planes to send a worker the weights of a version.

        Args:
            member: the worker.
            version: the version.
            parts: the parts of the layout that it loads; None for all of it.
        """
        member.sent_version = version
        self._out.put(send_version(self._job, member.session, version, parts))
