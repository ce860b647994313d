"""The sum of a lease's micro-batches, added up the reduction tree in float32 on the host as gradients arrive.

It needs at most ceil(log2(n)) + 1 model copies for n micro-batches, one for each level of the node's tree.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from services.tensors.kernels.arithmetic import Float32Array, add

Result = TypeVar("Result")


class NodeSum:
    """The sum of one node's leaves, which are added in order.

    Args:
        out: [elements of the layout] float32, the array that the node's sum is written to.
        leaves: number of leaves (micro-batches) of the node.
        ready: callback, called with an offset when the node's sum is complete from there to its end.
    """

    def __init__(self, out: Float32Array, leaves: int, ready: Callable[[int], None]) -> None:
        self._out = out
        self._leaves = leaves
        self._ready = ready
        self._subtrees: list[tuple[int, Float32Array]] = []  # finished subtrees, larger ones first
        self._added = 0
        self._merged_from = out.size  # from here on, the last leaf is added up

    def add_leaf(self, compute: Callable[[Float32Array, Callable[[int], None]], Result]) -> Result:
        """Compute and add the next leaf, and return what `compute` returns.

        Args:
            compute: writes a gradient to an array, [elements] float32, from its end to its start. It calls back with
                the offset from which the gradient is complete, and returns the loss, or what else comes with it.
        """
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
