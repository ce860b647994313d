"""Sums and pieces of chunks as symbolic payloads: what `plane.sums` stores of real ones."""

from __future__ import annotations

from typing import Any

from plane.sums import SumOrder
from protos import plane_pb2 as plane
from protos.tensors_pb2 import ChunkHeader
from services.tensors.layout import chunk_range
from services.tensors.reduction_tree import Node
from tests.simulation.job_model import assembled, merged, require


class SimulatedSums:
    """The payloads of an aggregator's data plane, or of one shard.

    Attributes:
        kept: sums by chunk and node.
        pieces: size and content of the pieces that wait for others, by lease, chunk and offset.
    """

    def __init__(self) -> None:
        self.kept: dict[tuple[int, Node], Any] = {}
        self.pieces: dict[tuple[int, int, int], tuple[int, Any]] = {}

    def keep_piece(self, header: ChunkHeader, payload: Any) -> None:
        """Keep a piece of a chunk."""
        place = header.lease, header.index, header.offset
        require(place not in self.pieces, f"piece {place} comes twice")
        self.pieces[place] = (header.elements, payload)

    def carry_out(self, order: SumOrder | plane.FinishSum, elements: int) -> dict[int, Any]:
        """Carry out an order on what is kept of a layout; return the contents of finished sums, by chunk."""
        kept = self.kept
        match order:
            case plane.KeepSum():
                for chunk in order.chunks:
                    payload = self._assemble(order, chunk, elements)
                    if order.HasField("node"):
                        kept[chunk, to_node(order.node)] = payload
            case plane.MergeSums():
                parent = to_node(order.parent)
                for chunk in order.chunks:
                    left, right = (kept.pop((chunk, to_node(each))) for each in (order.left, order.right))
                    require((chunk, parent) not in kept, f"{order} overwrites a kept sum")
                    kept[chunk, parent] = merged(left, right, parent)
            case plane.FinishSum():
                return {chunk: kept.pop((chunk, to_node(order.node))) for chunk in order.chunks}
            case plane.DropSum():
                for chunk in order.chunks:
                    kept.pop((chunk, to_node(order.node)))
            case plane.DropPieces():
                for piece in [each for each in self.pieces if each[0] == order.lease]:
                    del self.pieces[piece]
            case plane.DropSums():
                kept.clear()
                self.pieces.clear()
        return {}

    def _assemble(self, order: plane.KeepSum, chunk: int, elements: int) -> Any:
        """Put the pieces of a chunk of a layout together. They must be all of it, and of one sum."""
        places = sorted(each for each in self.pieces if each[:2] == (order.lease, chunk))
        start, stop = chunk_range(elements, chunk)
        payloads = []
        for place in places:
            size, payload = self.pieces.pop(place)
            require(place[2] == start, f"{order}: a piece at {place[2]}, expected one at {start}")
            start += size
            payloads.append(payload)
        require(start == stop, f"{order}: the pieces end at {start}, expected {stop}")
        return assembled(payloads)


def to_node(node: plane.SumNode) -> Node:
    """Return the node of the reduction tree that an order names."""
    return Node(node.first, node.count)
