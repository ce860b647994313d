"""Sums of gradients, from a piece's arrival to the sum of the whole step: payloads and their additions.

A payload is stored in the type it came in. It is widened when it is added, so every sum is float32. One thread owns the
sums, and carries out orders in the sequence that a core has decided.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from plane.errors import NotStored
from plane.order_thread import Steps
from protos import plane_pb2 as pb
from protos.tensors_pb2 import FLOAT32
from services.instrumentation import timeline
from services.printable import counted
from services.tensors.chunk_messages import TensorChunk, join_pieces
from services.tensors.kernels.arithmetic import Float32Array, accumulate, add

SumOrder: TypeAlias = pb.KeepSum | pb.DropPieces | pb.DropSum | pb.MergeSums | pb.DropSums
"""Orders on kept pieces and sums, but for `FinishSum`."""


@dataclass(frozen=True)
class SiblingSum:
    """The sum of two siblings, which is not computed yet.

    Payloads in the workers' shared memory cost none here. So sums of them are computed only when their root is
    finished, which keeps the intermediate sums in the CPU's cache.
    """

    left: Sum
    right: Sum

    @property
    def in_place(self) -> bool:
        """Whether all payloads of it are in the workers' shared memory."""
        return all(
            each.memory is not None if isinstance(each, TensorChunk) else isinstance(each, SiblingSum)
            for each in (self.left, self.right)
        )


Sum: TypeAlias = "TensorChunk | Float32Array | SiblingSum"


@dataclass
class _JobSums:
    """What is kept of one job: pieces by lease, chunk and offset; sums by chunk, and first and count of their node."""

    pieces: dict[int, dict[int, dict[int, TensorChunk]]] = field(default_factory=dict)
    sums: dict[tuple[int, int, int], Sum] = field(default_factory=dict)

    def take_chunk(self, lease: int, chunk: int) -> TensorChunk:
        """Return a chunk, put together from its pieces, and forget them."""
        chunks = self.pieces.get(lease, {})
        if chunk not in chunks:
            raise NotStored(f"no piece of chunk {chunk} of lease {lease} is stored")
        pieces = chunks.pop(chunk)
        if not chunks:
            del self.pieces[lease]
        return join_pieces(pieces.values())

    def take(self, chunk: int, node: pb.SumNode) -> Sum:
        """Return a stored sum, and forget it."""
        place = chunk, node.first, node.count
        if place not in self.sums:
            micro_batches = counted(node.count, "micro-batch", "micro-batches")
            raise NotStored(f"no sum of {micro_batches} from {node.first} of chunk {chunk} is stored")
        return self.sums.pop(place)


class StoredSums:
    """Kept pieces and sums of all jobs; one thread owns them."""

    def __init__(self) -> None:
        self._jobs: dict[str, _JobSums] = {}

    def keep_piece(self, piece: TensorChunk) -> None:
        """Keep an arrived piece of a chunk, or a whole chunk, until KeepSum."""
        header = piece.header
        kept = self._jobs.get(header.job)
        if kept is None:
            kept = self._jobs[header.job] = _JobSums()
        chunks = kept.pieces.setdefault(header.lease, {})
        chunks.setdefault(header.index, {})[header.offset] = piece

    def carry_out(self, order: SumOrder) -> Steps:
        """Carry out an order; a step adds what two siblings have of one chunk.

        Raises:
            NotStored: a sum or piece that it names is not here.
        """
        kept = self._jobs.get(order.job) or _JobSums()
        match order:
            case pb.KeepSum():
                node = (order.node.first, order.node.count) if order.HasField("node") else None
                for chunk in order.chunks:
                    joined = kept.take_chunk(order.lease, chunk)
                    if node is not None:
                        kept.sums[chunk, node[0], node[1]] = joined
            case pb.MergeSums():
                for chunk in order.chunks:
                    left, right = kept.take(chunk, order.left), kept.take(chunk, order.right)
                    with timeline.span("reduce", "merge", job=order.job, chunk=chunk):
                        pair = SiblingSum(left, right)
                        merged = pair if pair.in_place else _compute(pair)
                        kept.sums[chunk, order.parent.first, order.parent.count] = merged
                    yield None
            case pb.DropSum():
                for chunk in order.chunks:
                    kept.take(chunk, order.node)
            case pb.DropPieces():
                kept.pieces.pop(order.lease, None)
            case pb.DropSums():
                self._jobs.pop(order.job, None)

    def finish(self, order: pb.FinishSum) -> Iterator[Float32Array]:
        """Return and forget, chunk by chunk, the sum of a whole step, [elements of the chunk] float32.

        Raises:
            NotStored: it is not here.
        """
        kept = self._jobs.get(order.job) or _JobSums()
        for chunk in order.chunks:
            with timeline.span("reduce", "finish", job=order.job, chunk=chunk):
                finished = _compute(kept.take(chunk, order.node))
                values = finished.values() if isinstance(finished, TensorChunk) else finished
            yield values


def _compute(wanted: Sum) -> TensorChunk | Float32Array:
    if isinstance(wanted, SiblingSum):
        return _sum(_compute(wanted.left), _compute(wanted.right))
    return wanted


def _sum(left: TensorChunk | Float32Array, right: TensorChunk | Float32Array) -> Float32Array:
    """Return the sum of two siblings, in the array of one if that is a sum made here; payloads stay unchanged."""
    into, other = (right, left) if isinstance(left, TensorChunk) else (left, right)
    if isinstance(into, TensorChunk):
        assert isinstance(other, TensorChunk)
        if into.header.dtype == FLOAT32:  # its values are a view of the payload
            out = np.empty(into.header.elements, np.float32)
            add(into.values(), other.values(), out)
            return out
        into = into.values()
    if isinstance(other, TensorChunk):
        other.add_to(into)
    else:
        accumulate(into, other)
    return into
