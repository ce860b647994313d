"""The sum of a lease's micro-batches: each gradient is added up the reduction tree as it comes. Host float32 additions.

Memory: one model copy per level of the node's tree, ceil(log2(n)) + 1 at most.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from services.tensors.kernels.arithmetic import Float32Array, add


class NodeSum:
    """Sums the leaves of one node, in order.

    Args:
        out: [elements of the layout] float32, where the node's sum comes to be.
        leaves: of the node.
        ready: called with an offset when the node's sum is in place from it to the end.
    """

    def __init__(self, out: Float32Array, leaves: int, ready: Callable[[int], None]) -> None:
        self._out = out
        self._leaves = leaves
        self._ready = ready
        self._subtrees: list[tuple[int, Float32Array]] = []  # finished subtrees, larger ones first
        self._added = 0
        self._merged_from = out.size  # of the last leaf: what is added up already

    def add_leaf(self, compute: Callable[[Float32Array, Callable[[int], None]], float]) -> float:
        """Add the next leaf.

        Args:
            compute: fills an array, [elements] float32, from its end to its start, calling back with the offset from
                which it is in place; returns the leaf's loss.
        """
        self._added += 1
        if self._added == self._leaves:
            # The last leaf completes every subtree that is open: add them up while it is still being computed.
            return compute(self._out, self._merge_down_to)
        leaf = np.empty(self._out.size, np.float32)
        loss = compute(leaf, lambda offset: None)
        size = 1
        while self._subtrees and self._subtrees[-1][0] == size:
            _, left = self._subtrees.pop()
            add(left, leaf, leaf)
            size *= 2
        self._subtrees.append((size, leaf))
        return loss

    def _merge_down_to(self, offset: int) -> None:
        piece = slice(offset, self._merged_from)
        for _, left in reversed(self._subtrees):
            add(left[piece], self._out[piece], self._out[piece])
        self._merged_from = offset
        if offset == 0:
            self._subtrees.clear()
        self._ready(offset)
