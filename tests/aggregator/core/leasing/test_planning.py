"""Tests of plans: they cover all work once, use every worker, and give faster workers more."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.core.leasing.planning import MAX_NODES_PER_WORKER, MOST_SPLITS, assign, plan, splits
from services.tensors.reduction_tree import Node, path_to


def leaves(nodes: list[Node]) -> list[int]:
    return sorted(index for node in nodes for index in range(node.first, node.stop))


speeds = st.dictionaries(st.integers(1, 50), st.floats(0.01, 100), min_size=1, max_size=6)


@given(st.integers(1, 40), speeds)
def test_a_plan_covers_every_micro_batch_once_with_nodes_of_the_tree(
    count: int, speeds: dict[int, float]
) -> None:
    root = Node(0, count)
    owners = plan([root], speeds)
    assert leaves(list(owners)) == list(range(count))
    for node in owners:
        path_to(root, node)  # raises ValueError if it is no node of the tree
    assert set(owners.values()) <= set(speeds)
    assert len(owners) <= max(1, MAX_NODES_PER_WORKER * len(speeds))


@given(st.integers(1, 6), st.integers(1, 60))
def test_no_worker_has_much_more_than_its_share(workers: int, count: int) -> None:
    owners = plan([Node(0, count)], dict.fromkeys(range(workers), 1.0))
    loads = [sum(node.count for node in owners if owners[node] == worker) for worker in range(workers)]
    assert max(loads) <= 1.5 * -(-count // workers)


@pytest.mark.parametrize(("workers", "count"), [(2, 2), (2, 7), (3, 3), (3, 7), (4, 4), (4, 7), (4, 16)])
def test_all_workers_are_used(workers: int, count: int) -> None:
    owners = plan([Node(0, count)], dict.fromkeys(range(workers), 1.0))
    assert len(set(owners.values())) == workers


def test_a_worker_that_could_not_shorten_the_step_is_spared() -> None:
    assert len(set(plan([Node(0, 4)], dict.fromkeys(range(3), 1.0)).values())) == 2
    assert len(set(plan([Node(0, 3)], dict.fromkeys(range(3), 1.0)).values())) == 3


def test_the_faster_worker_gets_more() -> None:
    owners = plan([Node(0, 8)], {1: 1.0, 2: 3.0})
    load = {worker: sum(node.count for node in owners if owners[node] == worker) for worker in (1, 2)}
    assert load == {1: 2, 2: 6}


def test_a_worker_much_too_slow_gets_nothing() -> None:
    assert set(plan([Node(0, 2)], {1: 0.001, 2: 10.0}).values()) == {2}


def test_a_plan_does_not_depend_on_the_order_of_workers() -> None:
    assert plan([Node(0, 7)], {1: 1.0, 2: 2.0, 3: 1.5}) == plan([Node(0, 7)], {3: 1.5, 2: 2.0, 1: 1.0})


def test_orphans_stay_within_their_nodes() -> None:
    orphans = [Node(4, 2), Node(6, 1)]
    owners = plan(orphans, {1: 1.0, 2: 1.0, 3: 1.0})
    assert leaves(list(owners)) == [4, 5, 6]
    assert all(any(orphan.contains(node) for orphan in orphans) for node in owners)


def test_busy_workers_get_less() -> None:
    owners = plan([Node(0, 8)], {1: 1.0, 2: 1.0}, {2: 4.0})
    load = {worker: sum(node.count for node in owners if owners[node] == worker) for worker in (1, 2)}
    assert load == {1: 6, 2: 2}


def test_the_largest_node_is_split_first() -> None:
    found = [sorted(nodes) for nodes in splits([Node(0, 4), Node(4, 3)], 4)]
    assert found == [
        [Node(0, 2), Node(2, 2), Node(4, 3)],
        [Node(0, 2), Node(2, 2), Node(4, 2), Node(6, 1)],
    ]
    assert list(splits([Node(0, 1), Node(1, 1)], 4)) == []


@given(st.integers(1, 5000), st.integers(1, 600))
def test_few_splits_are_compared_and_the_finest_is_among_them(count: int, most: int) -> None:
    found = list(splits([Node(0, count)], most))
    assert len(found) <= 2 * MOST_SPLITS
    assert all(leaves(nodes) == list(range(count)) for nodes in found)
    if count > 1 and most > 1:
        assert len(found[-1]) == min(count, most)


def test_assignment_takes_the_worker_that_would_finish_first() -> None:
    seconds, owners = assign([Node(0, 2), Node(2, 1)], {1: 1.0, 2: 1.0})
    assert (seconds, owners) == (2.0, {Node(0, 2): 1, Node(2, 1): 2})
