"""The reduction tree: one fixed binary tree over the micro-batches of a step.

A node is a range [first, first + count) of micro-batches. The left subtree of a node of n leaves has the largest
power of two below n as its number of leaves. Workers and aggregator add gradients along this tree only. So the sum of a
step has the same bits, however the micro-batches were distributed over leases.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, order=True)
class Node:
    """A subtree of the reduction tree: micro-batches `first` to `first + count - 1`."""

    first: int
    count: int

    @property
    def stop(self) -> int:
        """Index after the last micro-batch."""
        return self.first + self.count

    @property
    def micro_batches(self) -> range:
        """Indices of the micro-batches, the node's leaves."""
        return range(self.first, self.stop)

    @property
    def is_leaf(self) -> bool:
        """Whether the node is a single micro-batch."""
        return self.count == 1

    def contains(self, other: Node) -> bool:
        """Return whether `other` lies within this node's range."""
        return self.first <= other.first and other.stop <= self.stop


def children(node: Node) -> tuple[Node, Node]:
    """Return the two subtrees of an inner node, left first."""
    left = 1 << ((node.count - 1).bit_length() - 1)
    return Node(node.first, left), Node(node.first + left, node.count - left)


@lru_cache(maxsize=4096)
def path_to(root: Node, node: Node) -> tuple[tuple[Node, Node], ...]:
    """Return each ancestor of `node` in the tree of `root`, with the sibling of the way down; the root is first.

    Raises:
        ValueError: `node` is no node of this tree.
    """
    path: list[tuple[Node, Node]] = []
    above = root
    while above != node:
        if above.is_leaf or not above.contains(node):
            raise ValueError(f"{node} is no node of the tree of {root}")
        left, right = children(above)
        down, sibling = (left, right) if node.first < right.first else (right, left)
        path.append((above, sibling))
        above = down
    return tuple(path)
