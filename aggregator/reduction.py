"""The sums that an aggregator keeps between a chunk's arrival and its root: payloads, and the additions on them.

All of it happens on one kernel thread, in the order in which the core asked; the event loop only queues.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from aggregator.events import Drop, DropAll, Forward, Keep, Merge
from protos.tensors_pb2 import ChunkHeader
from services.tensors.kernels import Float32Array, add
from services.tensors.tree import Node


class Reduction:
    """Kept sums by (chunk, node).

    Args:
        forward: called on the kernel thread with the header and the values, [elements] float32, of a finished sum.
        failed: called on the kernel thread with what went wrong there.
    """

    def __init__(
        self, forward: Callable[[ChunkHeader, Float32Array], None], failed: Callable[[Exception], None]
    ) -> None:
        self._forward = forward
        self._failed = failed
        self._kept: dict[tuple[int, Node], Float32Array] = {}
        self._kernel = ThreadPoolExecutor(1, "reduce")

    def submit(
        self, effects: list[Keep | Drop | DropAll | Merge | Forward], values: Float32Array | None
    ) -> None:
        """Carry out effects in order; `values` of the chunk that just arrived, for Keep."""
        self._kernel.submit(self._run, effects, values)

    def close(self) -> None:
        """Stop the thread."""
        self._kernel.shutdown(cancel_futures=True)

    def _run(
        self, effects: list[Keep | Drop | DropAll | Merge | Forward], values: Float32Array | None
    ) -> None:
        try:
            for effect in effects:
                self._carry_out(effect, values)
        except Exception as error:  # must reach the event loop: this thread has nobody to tell
            self._failed(error)

    def _carry_out(
        self, effect: Keep | Drop | DropAll | Merge | Forward, values: Float32Array | None
    ) -> None:
        kept = self._kept
        match effect:
            case Keep():
                assert values is not None
                kept[effect.chunk, effect.node] = values
            case Merge():
                left = kept.pop((effect.chunk, effect.left))
                right = kept.pop((effect.chunk, effect.right))
                # A received payload is a read-only view of its message; a sum made here may be added into.
                out = next((each for each in (left, right) if each.flags.writeable), None)
                out = np.empty_like(left) if out is None else out
                add(left, right, out)
                kept[effect.chunk, effect.parent] = out
            case Forward():
                self._forward(effect.header, kept.pop((effect.header.index, effect.node)))
            case Drop():
                kept.pop((effect.chunk, effect.node))
            case DropAll():
                kept.clear()
