"""The stored sums of an aggregator, from a chunk's arrival to its root: payloads and their additions.

A payload is stored in the type it came in. It is widened when it is added, so every sum is float32. All additions
happen on one kernel thread, in the order the core has decided. The event loop only queues them. Pieces of a chunk,
from the workers of a row, wait here until the chunk can be put together.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from aggregator.core.events import (
    Assemble,
    Drop,
    DropAll,
    DropPieces,
    Forward,
    Keep,
    KeepPiece,
    Merge,
    SumEffect,
)
from protos.tensors_pb2 import FLOAT32, ChunkHeader
from services.instrumentation import timeline
from services.printable import counted
from services.runtime.backlog import Backlog
from services.tasks import start_call
from services.tensors.chunk_messages import TensorChunk, join_pieces
from services.tensors.kernels.arithmetic import Float32Array, accumulate, add
from services.tensors.reduction_tree import Node


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


class NotStored(LookupError):
    """An effect on a sum, or on pieces, that are not stored: what decided it expects other payloads here."""


class StoredPieces:
    """Pieces of chunks that are not whole yet, by lease, chunk and offset."""

    def __init__(self) -> None:
        self._stored: dict[int, dict[int, dict[int, TensorChunk]]] = {}

    def keep(self, effect: KeepPiece, piece: TensorChunk) -> None:
        """Store a piece."""
        self._stored.setdefault(effect.lease, {}).setdefault(effect.chunk, {})[effect.offset] = piece

    def assemble(self, effect: Assemble) -> TensorChunk:
        """Return a chunk, and forget its pieces.

        Raises:
            NotStored: there are none.
        """
        chunks = self._stored.get(effect.lease, {})
        if effect.chunk not in chunks:
            raise NotStored(f"no piece of chunk {effect.chunk} of lease {effect.lease} is stored")
        pieces = chunks.pop(effect.chunk)
        if not chunks:
            del self._stored[effect.lease]
        return join_pieces(pieces.values())

    def drop(self, lease: int) -> None:
        """Drop the pieces of a lease."""
        self._stored.pop(lease, None)

    def clear(self) -> None:
        """Drop all pieces."""
        self._stored.clear()


class StoredSums:
    """Stored sums by (chunk, node); one thread owns them.

    Args:
        forward: called with the header and the values, [elements] float32, of a finished sum.
    """

    def __init__(self, forward: Callable[[ChunkHeader, Float32Array], None]) -> None:
        self._forward = forward
        self._stored: dict[tuple[int, Node], Sum] = {}
        self._pieces = StoredPieces()

    def carry_out(self, effects: Sequence[SumEffect], chunk: TensorChunk | None) -> None:
        """Carry out the effects of one input.

        Args:
            effects: the effects.
            chunk: the chunk, or piece of a chunk, that just arrived.

        Raises:
            NotStored: a sum or piece that they name is not here.
        """
        for effect in effects:
            if isinstance(effect, Assemble):
                chunk = self._pieces.assemble(effect)
            else:
                self._carry_out(effect, chunk)

    def _carry_out(self, effect: SumEffect, chunk: TensorChunk | None) -> None:
        stored = self._stored
        match effect:
            case Keep():
                assert chunk is not None
                stored[effect.chunk, effect.node] = chunk
            case KeepPiece():
                assert chunk is not None
                self._pieces.keep(effect, chunk)
            case Merge():
                left, right = self._take(effect.chunk, effect.left), self._take(effect.chunk, effect.right)
                with timeline.span("reduce", "merge", chunk=effect.chunk):
                    pair = SiblingSum(left, right)
                    stored[effect.chunk, effect.parent] = pair if pair.in_place else _compute(pair)
            case Forward():
                with timeline.span("reduce", "finish", chunk=effect.header.index):
                    finished = _compute(self._take(effect.header.index, effect.node))
                    values = finished.values() if isinstance(finished, TensorChunk) else finished
                self._forward(effect.header, values)
            case Drop():
                self._take(effect.chunk, effect.node)
            case DropPieces():
                self._pieces.drop(effect.lease)
            case DropAll():
                stored.clear()
                self._pieces.clear()

    def _take(self, chunk: int, node: Node) -> Sum:
        """Return a stored sum, and forget it."""
        if (chunk, node) not in self._stored:
            micro_batches = counted(node.count, "micro-batch", "micro-batches")
            raise NotStored(f"no sum of {micro_batches} from {node.first} of chunk {chunk} is stored")
        return self._stored.pop((chunk, node))


class Reduction:
    """Stored sums with a kernel thread of their own.

    Args:
        forward: called on the kernel thread with the header and the values, [elements] float32, of a finished sum.
        on_failure: called on the kernel thread with the error that ended it.
    """

    def __init__(
        self, forward: Callable[[ChunkHeader, Float32Array], None], on_failure: Callable[[Exception], None]
    ) -> None:
        self._sums = StoredSums(forward)
        self._on_failure = on_failure
        self._kernel = ThreadPoolExecutor(1, "reduce")
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[Sequence[SumEffect], TensorChunk | None]] = deque()
        self._backlog = Backlog()

    def submit(self, effects: Sequence[SumEffect], chunk: TensorChunk | None) -> None:
        """Queue the effects of one input, to be carried out in order; `chunk` just arrived."""
        if not self._waiting:
            self._loop.call_soon(self._start)
        self._waiting.append((effects, chunk))
        if _costs_memory(chunk):
            self._backlog.add()

    async def wait_for_room(self) -> None:
        """Wait while too many payloads are queued; the caller must then submit its own without another await."""
        await self._backlog.wait_for_room()

    def _start(self) -> None:
        """Give the kernel thread everything that was queued in this turn of the event loop, as one task."""
        work, self._waiting = self._waiting, deque()
        start_call(self._kernel, "reduction", self._run, work)

    def close(self) -> None:
        """Stop the thread."""
        self._kernel.shutdown(cancel_futures=True)

    def _run(self, work: deque[tuple[Sequence[SumEffect], TensorChunk | None]]) -> None:
        try:
            while work:
                # Popped, so that a payload is freed as soon as its sum does not need it.
                effects, chunk = work.popleft()
                self._sums.carry_out(effects, chunk)
                if _costs_memory(chunk):
                    self._backlog.remove()
        except Exception as error:  # must reach the event loop: nothing awaits this thread
            self._on_failure(error)


def _costs_memory(chunk: TensorChunk | None) -> bool:
    """Return whether a payload takes memory here; one in its worker's shared memory does not."""
    return chunk is not None and chunk.memory is None


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
