"""Chunks on their way through the aggregator: what happens to each payload.

A chunk comes in pieces, of which a whole chunk is one. Once all of them are kept it is stored as a sum, merged with
its sibling's, and passed on when it reaches the root. Every worker is sent the newest weights, each chunk as soon as
a plane has it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from aggregator.core.events import Outbox, StoreWeights
from aggregator.core.membership.members import Member
from aggregator.core.sums.piece_book import PieceBook
from aggregator.core.sums.plane_orders import (
    discard_piece,
    drop_sum,
    finish_sum,
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
    _missing: set[int] = field(default_factory=set)

    def begin(self, version: Version | None, elements: int) -> None:
        """Expect the chunks of a version, unless they are expected already."""
        if (self.version, self.elements) != (version, elements):
            self.version, self.elements = version, elements
            self._missing = set(range(chunk_count(elements) if self.receives else 0))

    def add(self, chunk: int) -> bool:
        """Count a chunk; return False if it had arrived already."""
        is_new = chunk in self._missing
        self._missing.discard(chunk)
        return is_new

    @property
    def complete(self) -> bool:
        """Whether all chunks of the version that come from the optimizer's process have arrived."""
        return self.version is not None and not self._missing


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
        self, step_sum: StepSum, assignment: Assignment, header: ChunkHeader, elements: int
    ) -> None:
        """Keep a whole chunk as the sum of an assignment's node, and merge it; pass the sum on if it is finished."""
        chunk, node = header.index, assignment.node
        arrival = step_sum.arrive(assignment, chunk)
        if arrival.duplicate:
            self._out.put(keep_sum(header, None))
            return
        for superseded in arrival.superseded:
            self._out.put(drop_sum(self._job, chunk, superseded))
        self._out.put(keep_sum(header, node))
        for merge in arrival.merges:
            self._out.put(merge_sums(self._job, chunk, *merge))
        if arrival.done:
            self._forward_sum(step_sum, chunk, elements)

    def open_gate(self, step_sum: StepSum, elements: int) -> None:
        """Pass on the chunk that was held back until all checks of the step were closed."""
        held_back = step_sum.coverage.open_gate()
        if held_back is not None:
            self._forward_sum(step_sum, held_back, elements)

    def _forward_sum(self, step_sum: StepSum, chunk: int, elements: int) -> None:
        forwarded = self.make_header(step_sum.version, chunk, elements, GRADIENT)
        if chunk == 0:
            forwarded.findings.CopyFrom(step_sum.findings)
        self._out.put(finish_sum(forwarded, step_sum.coverage.root))

    # ---- pieces ----

    def keep_piece(self, header: ChunkHeader, arrival: int) -> None:
        """Keep an arrived piece of a chunk, or discard a repeated one."""
        if self.pieces.add(header.lease, Piece(header.index, header.offset, header.elements)):
            self._out.put(plane.KeepPiece(job=self._job, chunk=header.index, arrival=arrival))
        else:
            self._out.put(discard_piece(header, arrival))

    def take_whole(self, header: ChunkHeader, elements: int) -> ChunkHeader | None:
        """Return the header of a chunk whose pieces are all kept, which must be routed now; None if one is missing.

        Args:
            header: header of a piece of the chunk.
            elements: number of elements of the layout.
        """
        if not self.pieces.take(header.lease, header.index, elements):
            return None
        whole = ChunkHeader()
        whole.CopyFrom(header)
        start, stop = chunk_range(elements, header.index)
        whole.offset, whole.elements = start, stop - start
        return whole

    def drop_pieces(self, lease: int) -> None:
        """Drop the pieces of a void lease's chunks."""
        if self.pieces.forget(lease):
            self._out.put(plane.DropPieces(job=self._job, lease=lease))

    def drop_all(self) -> None:
        """Drop all sums, and all pieces."""
        self.pieces.clear()
        self._out.put(plane.DropSums(job=self._job))

    # ---- weights ----

    def route_initial_weights(self, header: ChunkHeader) -> None:
        """Pass a chunk of initial weights to the optimizer."""
        forwarded = ChunkHeader()
        forwarded.CopyFrom(header)
        forwarded.epoch, forwarded.lease = self._epoch, 0
        root = Node(0, 1)
        self._out.put(keep_sum(header, root))
        self._out.put(finish_sum(forwarded, root))

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
