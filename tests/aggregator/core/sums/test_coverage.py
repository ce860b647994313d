"""Tests of coverage: in any order of arrival, every chunk reaches the root exactly once, along the tree."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aggregator.core.sums.coverage import Coverage
from services.tensors.reduction_tree import Node, children
from tests.support.chunk_sets import chunk_set


@st.composite
def covers(draw: st.DrawFn, node: Node) -> list[Node]:
    """Return nodes of the tree that cover `node` and don't overlap."""
    if node.is_leaf or draw(st.booleans()):
        return [node]
    left, right = children(node)
    return draw(covers(left)) + draw(covers(right))


def missing(coverage: Coverage, node: Node) -> list[int]:
    """Return the chunks of which something of a node is missing."""
    return [chunk for run in coverage.missing(node) for chunk in run]


@st.composite
def arrivals(draw: st.DrawFn) -> tuple[Node, list[Node]]:
    """Return a root and shuffled arrivals from several covers, with repetitions and nested nodes."""
    root = Node(0, draw(st.integers(1, 13)))
    nodes = [node for _ in range(draw(st.integers(1, 3))) for node in draw(covers(root))]
    return root, draw(st.permutations(nodes + draw(st.lists(st.sampled_from(nodes), max_size=5))))


@given(arrivals())
def test_any_order_of_any_covers_gives_the_root_once(case: tuple[Node, list[Node]]) -> None:
    root, nodes = case
    coverage = Coverage(root, 1)
    kept: dict[Node, set[int]] = {}
    finished = []
    for node in nodes:
        arrival = coverage.add(node, 0)
        if arrival.duplicate:
            assert not (arrival.superseded or arrival.merges or arrival.done)
            continue
        for superseded in arrival.superseded:
            del kept[superseded]
        kept[node] = set(range(node.first, node.stop))
        for left, right, parent in arrival.merges:
            assert children(parent) == (left, right)
            assert not kept[left] & kept[right]
            kept[parent] = kept.pop(left) | kept.pop(right)
        if arrival.done:
            finished.append(kept.pop(root))
    assert finished == [set(range(root.count))]
    assert not kept
    assert coverage.complete
    assert missing(coverage, root) == []


def test_chunks_are_counted_apart() -> None:
    coverage = Coverage(Node(0, 2), 3)
    coverage.add(Node(0, 2), 1)
    coverage.add(Node(0, 1), 2)
    assert missing(coverage, Node(0, 2)) == [0, 2]
    assert missing(coverage, Node(0, 1)) == [0]
    assert not coverage.complete


def test_a_bigger_node_takes_the_place_of_its_parts() -> None:
    coverage = Coverage(Node(0, 4), 1)
    coverage.add(Node(0, 1), 0)
    coverage.add(Node(3, 1), 0)
    arrival = coverage.add(Node(0, 4), 0)
    assert arrival.superseded == [Node(0, 1), Node(3, 1)]
    assert arrival.merges == [] and arrival.done


def test_a_sum_that_the_optimizer_lost_is_made_again() -> None:
    coverage = Coverage(Node(0, 2), 2)
    assert not coverage.reopen(chunk_set([0], 2)), "it was never passed on"
    coverage.add(Node(0, 2), 0)
    assert coverage.reopen(chunk_set([0, 1], 2)).runs() == [range(1)]
    assert missing(coverage, Node(0, 2)) == [0, 1]
    assert coverage.add(Node(0, 2), 0).done


def test_chunks_that_the_optimizer_has_are_dropped() -> None:
    coverage = Coverage(Node(0, 4), 2)
    coverage.add(Node(0, 1), 0)
    coverage.add(Node(2, 2), 0)
    coverage.add(Node(0, 1), 1)
    assert coverage.mark_all_done_except(chunk_set([1], 2)) == [(0, Node(0, 1)), (0, Node(2, 2))]
    assert coverage.mark_all_done_except(chunk_set([1], 2)) == []
    assert coverage.add(Node(1, 1), 0).duplicate
    assert coverage.stored_nodes() == {(1, Node(0, 1))}


@given(arrivals(), st.integers(1, 3), st.data())
def test_what_is_missing_is_what_no_stored_node_covers(
    case: tuple[Node, list[Node]], chunks: int, data: st.DataObject
) -> None:
    root, nodes = case
    coverage = Coverage(root, chunks)
    for node in nodes:
        chunk = data.draw(st.integers(0, chunks - 1))
        if data.draw(st.integers(0, 9)) == 0:
            coverage.reopen(chunk_set([chunk], chunks))
        coverage.add(node, chunk)
        for other in nodes:
            uncovered = [each for each in range(chunks) if not coverage.covers(other, each)]
            assert missing(coverage, other) == uncovered
            assert coverage.misses(other) == bool(uncovered)


def test_the_done_run_starts_at_the_last_chunk() -> None:
    coverage = Coverage(Node(0, 1), 4)
    for chunk in (3, 1, 0):
        coverage.add(Node(0, 1), chunk)
    assert coverage.done_in_order(0) == 1
    coverage.add(Node(0, 1), 2)
    assert coverage.done_in_order(1) == 4


@given(arrivals(), st.integers(1, 4), st.data())
def test_a_gate_holds_back_the_last_chunk_alone(
    case: tuple[Node, list[Node]], chunks: int, data: st.DataObject
) -> None:
    root, nodes = case
    coverage = Coverage(root, chunks, gated=True)
    finished = []
    for node, chunk in data.draw(
        st.permutations([(node, chunk) for node in nodes for chunk in range(chunks)])
    ):
        if coverage.add(node, chunk).done:
            finished.append(chunk)
    assert not coverage.complete
    assert len(finished) == chunks - 1
    assert missing(coverage, root) == [], "nothing must be sent again"
    (held_back,) = set(range(chunks)) - set(finished)
    assert coverage.open_gate() == held_back
    assert coverage.complete
    assert coverage.open_gate() is None


def test_a_chunk_that_comes_through_an_open_gate_is_done() -> None:
    coverage = Coverage(Node(0, 2), 1, gated=True)
    coverage.add(Node(0, 1), 0)
    assert coverage.open_gate() is None
    assert coverage.add(Node(1, 1), 0).done
