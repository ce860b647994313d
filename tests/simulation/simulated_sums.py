"""Sums and pieces of chunks as symbolic payloads: what `aggregator.data_plane.reduction` stores of real ones."""

from __future__ import annotations

from typing import Any

from aggregator.core import events as ev
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

    def keep(self, effect: ev.Keep, payload: Any) -> None:
        """Keep a payload as the sum of a node."""
        self.kept[effect.chunk, effect.node] = payload

    def carry_out(self, effect: ev.Merge | ev.Drop | ev.DropPieces | ev.DropAll) -> None:
        """Merge or drop what is kept."""
        kept = self.kept
        match effect:
            case ev.Merge():
                left, right = kept.pop((effect.chunk, effect.left)), kept.pop((effect.chunk, effect.right))
                require((effect.chunk, effect.parent) not in kept, f"{effect} overwrites a kept sum")
                kept[effect.chunk, effect.parent] = merged(left, right, effect.parent)
            case ev.Drop():
                kept.pop((effect.chunk, effect.node))
            case ev.DropPieces():
                for piece in [each for each in self.pieces if each[0] == effect.lease]:
                    del self.pieces[piece]
            case ev.DropAll():
                kept.clear()
                self.pieces.clear()

    def keep_piece(self, effect: ev.KeepPiece, header: ChunkHeader, payload: Any) -> None:
        """Keep a piece of a chunk."""
        place = (effect.lease, effect.chunk, effect.offset)
        require(place == (header.lease, header.index, header.offset), f"{effect} with {header}")
        require(place not in self.pieces, f"{effect} comes twice")
        self.pieces[place] = (header.elements, payload)

    def assemble(self, effect: ev.Assemble, elements: int) -> Any:
        """Put the pieces of a chunk of a layout together. They must be all of it, and of one sum."""
        places = sorted(each for each in self.pieces if each[:2] == (effect.lease, effect.chunk))
        start, stop = chunk_range(elements, effect.chunk)
        payloads = []
        for place in places:
            size, payload = self.pieces.pop(place)
            require(place[2] == start, f"{effect}: a piece at {place[2]}, expected one at {start}")
            start += size
            payloads.append(payload)
        require(start == stop, f"{effect}: the pieces end at {start}, expected {stop}")
        return assembled(payloads)
