"""The sums that an aggregator keeps between a chunk's arrival and its root: payloads, and the additions on them.

A payload is kept in the type it came in, and widened when it is added: every sum is float32.
All of it happens on one kernel thread, in the order in which the core asked; the event loop only queues.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from aggregator.core.events import Drop, DropAll, Forward, Keep, Merge, SumEffect
from protos.tensors_pb2 import FLOAT32, ChunkHeader
from services.instrumentation import timeline
from services.runtime.backlog import Backlog
from services.tensors.chunk_messages import TensorChunk
from services.tensors.kernels.arithmetic import Float32Array, accumulate, add
from services.tensors.reduction_tree import Node


@dataclass(frozen=True)
class SiblingSum:
    """The sum of two siblings, to be computed.

    What lies in workers' memory costs none here, so such sums are computed when their root is finished: what is added
    up on the way then stays in the cache.
    """

    left: Sum
    right: Sum

    @property
    def in_place(self) -> bool:
        """Whether all of it lies in workers' memory."""
        return all(
            each.memory is not None if isinstance(each, TensorChunk) else isinstance(each, SiblingSum)
            for each in (self.left, self.right)
        )


Sum: TypeAlias = "TensorChunk | Float32Array | SiblingSum"


class KeptSums:
    """Kept sums by (chunk, node), and what is done with them; on whichever thread owns them.

    Args:
        forward: called with the header and the values, [elements] float32, of a finished sum.
    """

    def __init__(self, forward: Callable[[ChunkHeader, Float32Array], None]) -> None:
        self._forward = forward
        self._kept: dict[tuple[int, Node], Sum] = {}

    def carry_out(self, effect: SumEffect, chunk: TensorChunk | None) -> None:
        """Carry out one effect; `chunk` just arrived, for Keep."""
        kept = self._kept
        match effect:
            case Keep():
                assert chunk is not None
                kept[effect.chunk, effect.node] = chunk
            case Merge():
                left = kept.pop((effect.chunk, effect.left))
                right = kept.pop((effect.chunk, effect.right))
                with timeline.span("reduce", "merge", chunk=effect.chunk):
                    pair = SiblingSum(left, right)
                    kept[effect.chunk, effect.parent] = pair if pair.in_place else _computed(pair)
            case Forward():
                with timeline.span("reduce", "finish", chunk=effect.header.index):
                    finished = _computed(kept.pop((effect.header.index, effect.node)))
                    values = finished.values() if isinstance(finished, TensorChunk) else finished
                self._forward(effect.header, values)
            case Drop():
                kept.pop((effect.chunk, effect.node))
            case DropAll():
                kept.clear()


class Reduction:
    """Kept sums with a kernel thread of their own.

    Args:
        forward: called on the kernel thread with the header and the values, [elements] float32, of a finished sum.
        failed: called on the kernel thread with what went wrong there.
    """

    def __init__(
        self, forward: Callable[[ChunkHeader, Float32Array], None], failed: Callable[[Exception], None]
    ) -> None:
        self._sums = KeptSums(forward)
        self._failed = failed
        self._kernel = ThreadPoolExecutor(1, "reduce")
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[Sequence[SumEffect], TensorChunk | None]] = deque()
        self._backlog = Backlog()

    def submit(self, effects: Sequence[SumEffect], chunk: TensorChunk | None) -> None:
        """Carry out effects in order; `chunk` just arrived, for Keep."""
        if not self._waiting:
            self._loop.call_soon(self._start)
        self._waiting.append((effects, chunk))
        if _costs_memory(chunk):
            self._backlog.add()

    async def room(self) -> None:
        """Wait while too many wait for the kernel thread; whoever hands one in then must do so at once."""
        await self._backlog.wait_for_room()

    def _start(self) -> None:
        """All that came in one turn of the event loop is one task of the kernel thread."""
        work, self._waiting = self._waiting, deque()
        self._kernel.submit(self._run, work)

    def close(self) -> None:
        """Stop the thread."""
        self._kernel.shutdown(cancel_futures=True)

    def _run(self, work: deque[tuple[Sequence[SumEffect], TensorChunk | None]]) -> None:
        try:
            while work:
                # Taken out of what waits: a payload is not held any longer than its sum needs it.
                effects, chunk = work.popleft()
                for effect in effects:
                    self._sums.carry_out(effect, chunk)
                if _costs_memory(chunk):
                    self._backlog.remove()
        except Exception as error:  # must reach the event loop: this thread has nobody to tell
            self._failed(error)


def _costs_memory(chunk: TensorChunk | None) -> bool:
    """Whether a payload takes room here: not if it lies in its worker's memory."""
    return chunk is not None and chunk.memory is None


def _computed(wanted: Sum) -> TensorChunk | Float32Array:
    if isinstance(wanted, SiblingSum):
        return _sum(_computed(wanted.left), _computed(wanted.right))
    return wanted


def _sum(left: TensorChunk | Float32Array, right: TensorChunk | Float32Array) -> Float32Array:
    """The sum of two siblings, which may be either's array: a sum made here may be added into, a payload may not."""
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
