"""The sum of a lease's micro-batches, added up the reduction tree in float32 on the host as gradients arrive.

It needs at most ceil(log2(n)) + 1 model copies for n micro-batches, one for each level of the node's tree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise

import numpy as np

from services.pipeline.exchange import Compute, FinishedPass
from services.tensors.kernels.arithmetic import Float32Array, add


class NodeSum:
    """The sum of one node's leaves, whose gradients come range by range of the model's blocks.

    Each range's part is added up the reduction tree by itself, in index order. A whole model is one range.

    Args:
        ranges: the part of the layout that each range has, by its index, in order.
        out: [elements of the ranges] float32, the array that the node's sum is written to, one range after another.
        leaves: number of leaves (micro-batches) of the node.
        ready: callback, called with an index of `out` when the node's sum is complete from there to its end.
    """

    def __init__(
        self, ranges: Mapping[int, slice], out: Float32Array, leaves: int, ready: Callable[[int], None]
    ) -> None:
        borders = list(pairwise((0, *accumulate(own.stop - own.start for own in ranges.values()))))
        end = _CompleteEnd(borders, ready)
        self._sums = {
            index: _RangeSum(out[start:stop], leaves, partial(end.note, place))
            for place, (index, (start, stop)) in enumerate(zip(ranges, borders, strict=True))
        }

    def add_leaf(self, range_index: int, compute: Compute) -> FinishedPass:
        """Compute and add a range's part of its next leaf, and return what `compute` returns."""
        return self._sums[range_index].add_leaf(compute)


class _RangeSum:
    """One range's part of a `NodeSum`; `ready` counts from the start of the range."""

    def __init__(self, out: Float32Array, leaves: int, ready: Callable[[int], None]) -> None:
        self._out = out
        self._leaves = leaves
        self._ready = ready
        self._subtrees: list[tuple[int, Float32Array]] = []  # finished subtrees, larger ones first
        self._added = 0
        self._merged_from = out.size  # from here on, the last leaf is added up

    def add_leaf(self, compute: Compute) -> FinishedPass:
        self._added += 1
        if self._added == self._leaves:
            # The last leaf completes every open subtree: add them up while it is being computed.
            return compute(self._out, self._merge_down_to)
        leaf = np.empty(self._out.size, np.float32)
        result = compute(leaf, lambda offset: None)
        size = 1
        while self._subtrees and self._subtrees[-1][0] == size:
            _, left = self._subtrees.pop()
            add(left, leaf, leaf)
            size *= 2
        self._subtrees.append((size, leaf))
        return result

    def _merge_down_to(self, offset: int) -> None:
        piece = slice(offset, self._merged_from)
        for _, left in reversed(self._subtrees):
            add(left[piece], self._out[piece], self._out[piece])
        self._merged_from = offset
        if offset == 0:
            self._subtrees.clear()
        self._ready(offset)


class _CompleteEnd:
    """The end of a sum that is complete: ranges from the last one on, and a part of the one before them.

    It knows nothing of `NodeSum`. A cycle would leave the memory of sums to the garbage collector.

    Args:
        borders: index of the first element, and after the last, of each range in the sum.
        ready: see `NodeSum`.
    """

    def __init__(self, borders: Sequence[tuple[int, int]], ready: Callable[[int], None]) -> None:
        self._starts = [start for start, _ in borders]
        self._missing = [stop - start for start, stop in borders]  # elements that are not complete
        self._ready = ready

    def note(self, place: int, offset: int) -> None:
        """Note that a range is complete from an index of it to its end, and report the sum's end if it has grown."""
        self._missing[place] = offset
        if any(self._missing[place + 1 :]):
            return  # a later range is not complete
        while place and not self._missing[place]:
            place -= 1
        self._ready(self._starts[place] + self._missing[place])
