"""The reduction tree: one fixed binary tree over the micro-batches of a step.

A node is a range [first, first + count) of micro-batches. The left subtree of a node of n leaves holds the largest
power of two below n. Whoever adds, adds along this tree, so a step's sum has the same bits however it was split.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Node:
    """A subtree of the reduction tree: micro-batches `first` to `first + count - 1`."""

    first: int
    count: int

    @property
    def stop(self) -> int:
        """The index after the last micro-batch."""
        return self.first + self.count

    @property
    def micro_batches(self) -> range:
        """Its leaves."""
        return range(self.first, self.stop)

    @property
    def is_leaf(self) -> bool:
        """Whether the node is a single micro-batch."""
        return self.count == 1

    def contains(self, other: Node) -> bool:
        """Whether `other` lies within this node's range."""
        return self.first <= other.first and other.stop <= self.stop


def children(node: Node) -> tuple[Node, Node]:
    """The two subtrees of an inner node, left first."""
    left = 1 << ((node.count - 1).bit_length() - 1)
    return Node(node.first, left), Node(node.first + left, node.count - left)


def parent_and_sibling(root: Node, node: Node) -> tuple[Node, Node]:
    """The node above `node` in the tree of `root`, and the other child of it.

    Raises:
        ValueError: `node` is the root or no node of this tree.
    """
    above = root
    while above.count > 1:
        left, right = children(above)
        if node == left:
            return above, right
        if node == right:
            return above, left
        above = left if left.contains(node) else right
    raise ValueError(f"{node} has no parent in the tree of {root}")


def is_node(root: Node, node: Node) -> bool:
    """Whether `node` is a node of the tree of `root`."""
    above = root
    while above.contains(node) and node.count > 0:
        if above == node:
            return True
        if above.is_leaf:
            return False
        left, right = children(above)
        above = left if left.contains(node) else right
    return False
