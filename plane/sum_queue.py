"""Which pieces of the sums of a worker's leases are to be sent, and in which order. Pure.

The worker's core orders them. The data streams, which have the chunks of one shard each, take them when they can send.
"""

from __future__ import annotations

from typing import TypeAlias

from protos import plane_pb2 as pb
from protos.tensors_pb2 import GRADIENT, ChunkHeader
from services.tensors.chunk_ranges import from_ranges
from services.tensors.layout import chunk_count
from services.tensors.layout_parts import LayoutParts, Piece, make_piece_header
from services.tensors.stripes import Stripe

WorkerOrder: TypeAlias = pb.PassJob | pb.SendSum | pb.DropPieces
"""Orders to a worker's plane."""


class SumQueue:
    """Pieces of sums that are to be sent.

    Attributes:
        job: the job whose tensors pass through this plane; without an id if there is none.
    """

    def __init__(self) -> None:
        self.job = pb.PassJob()
        self._parts = LayoutParts(())
        self._orders: dict[int, pb.SendSum] = {}  # newest of each lease, in the order of sending
        self._places: dict[int, list[int]] = {}  # of each lease's pieces, the next one last

    def carry_out(self, order: WorkerOrder) -> None:
        """Carry out an order."""
        match order:
            case pb.PassJob():
                self.job = order if order.elements else pb.PassJob()
                self._parts = LayoutParts((each.offset, each.offset + each.elements) for each in order.parts)
            case pb.SendSum():
                lease = order.header.lease
                self._orders[lease] = order
                places = self._places.setdefault(lease, [])
                if order.chunks:
                    chunks = list(from_ranges(order.chunks, chunk_count(self.job.elements)))
                    # Gradients go from the layout's end to its start, initial weights the other way.
                    wanted = {*places, *self._parts.places(chunks)}
                    places[:] = sorted(wanted, reverse=order.header.kind != GRADIENT)
            case pb.DropPieces():
                self._orders.pop(order.lease, None)
                self._places.pop(order.lease, None)

    def take(self, stripe: Stripe, most: int) -> list[ChunkHeader]:
        """Return headers of the next pieces of one lease, which count as sent; none if none may be sent now.

        Args:
            stripe: chunks that the asking data stream sends.
            most: maximum number of pieces.
        """
        for lease, order in self._orders.items():
            pieces = self._take(self._places[lease], order.first_element, stripe, most)
            if pieces:
                return [make_piece_header(order.header, piece) for piece in pieces]
        return []

    def _take(self, places: list[int], first_element: int, stripe: Stripe, most: int) -> list[Piece]:
        taken: list[Piece] = []
        for index in reversed(range(len(places))):
            piece = self._parts[places[index]]
            if len(taken) == most or piece.offset < first_element:
                break
            if stripe.contains(piece.chunk):
                del places[index]
                taken.append(piece)
        return taken
