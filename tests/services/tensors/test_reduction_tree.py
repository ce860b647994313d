"""Tests of the reduction tree: the additions are the same, however the work is split."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.tensors.kernels.arithmetic import Float32Array, add
from services.tensors.reduction_tree import Node, children, path_to

roots = st.builds(Node, st.integers(0, 50), st.integers(1, 200))


def nodes_of(root: Node) -> list[Node]:
    if root.is_leaf:
        return [root]
    return [root, *(node for child in children(root) for node in nodes_of(child))]


def sum_over(node: Node, leaves: dict[int, Float32Array]) -> Float32Array:
    """Return a node's sum by definition: the left child's sum plus the right child's."""
    if node.is_leaf:
        return leaves[node.first]
    left, right = children(node)
    return sum_over(left, leaves) + sum_over(right, leaves)


@given(roots)
def test_left_child_has_the_largest_power_of_two_below(root: Node) -> None:
    for node in nodes_of(root):
        if node.is_leaf:
            continue
        left, right = children(node)
        assert (left.first, left.stop, right.stop) == (node.first, right.first, node.stop)
        assert left.count.bit_count() == 1
        assert left.count < node.count <= 2 * left.count


@pytest.mark.parametrize(
    ("count", "left"), [(2, 1), (3, 2), (4, 2), (5, 4), (6, 4), (7, 4), (8, 4), (9, 8), (16, 8), (17, 16)]
)
def test_sizes_of_left_subtrees(count: int, left: int) -> None:
    assert children(Node(3, count)) == (Node(3, left), Node(3 + left, count - left))


@given(roots)
def test_path_to_every_node(root: Node) -> None:
    assert path_to(root, root) == ()
    nodes = nodes_of(root)
    every = set(nodes)
    for node in nodes[1:]:
        path = path_to(root, node)
        ancestors = [parent for parent, _ in path]
        assert ancestors[0] == root
        assert all(each in every for each in ancestors)
        for (parent, sibling), down in zip(path, [*ancestors[1:], node], strict=True):
            assert sorted(children(parent)) == sorted([down, sibling])


@given(roots, st.integers(-5, 260), st.integers(-5, 260))
def test_there_is_no_path_to_other_ranges(root: Node, first: int, count: int) -> None:
    node = Node(first, count)
    if node in nodes_of(root):
        path_to(root, node)
    else:
        with pytest.raises(ValueError, match="is no node"):
            path_to(root, node)


@given(roots)
def test_tree_has_one_inner_node_less_than_leaves(root: Node) -> None:
    nodes = nodes_of(root)
    assert len(nodes) == len(set(nodes)) == 2 * root.count - 1
    assert [node.first for node in nodes if node.is_leaf] == list(range(root.first, root.stop))


@given(st.integers(1, 40), st.data())
def test_merging_in_any_order_of_arrival_gives_the_same_bits(count: int, data: st.DataObject) -> None:
    root = Node(0, count)
    rng = np.random.Generator(np.random.Philox(count))
    leaves = {
        index: rng.standard_normal(5, dtype=np.float32) * np.float32(1e6) ** index for index in range(4)
    }
    leaves |= {index: rng.standard_normal(5, dtype=np.float32) for index in range(4, count)}
    expected = sum_over(root, leaves)

    # Workers compute some partition of the tree; their nodes arrive in any order and siblings merge at once.
    waiting, arrivals = [root], []
    while waiting:
        node = waiting.pop()
        if not node.is_leaf and data.draw(st.booleans()):
            waiting += children(node)
        else:
            arrivals.append(node)
    merged: dict[Node, Float32Array] = {}
    for node in data.draw(st.permutations(arrivals)):
        values = sum_over(node, leaves).copy()
        while node != root:
            parent, sibling = path_to(root, node)[-1]
            if sibling not in merged:
                break
            other = merged.pop(sibling)
            left, right = (values, other) if node < sibling else (other, values)
            add(left, right, out=values)
            node = parent
        merged[node] = values
    assert merged.keys() == {root}
    assert merged[root].tobytes() == expected.tobytes()
