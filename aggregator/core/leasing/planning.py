"""Planning: the split of a step's reduction tree among the workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from heapq import heapify, heappush, heapreplace
from itertools import groupby
from types import MappingProxyType

from services.tensors.reduction_tree import Node, children

MAX_NODES_PER_WORKER = 2
"""Limit of nodes per worker; a worker keeps the sum of each until COMMIT, so its memory grows with their number."""
LEAST_GAIN = 0.98
"""A finer split is taken only if it needs less than this fraction of the time: larger nodes mean fewer bytes."""
MOST_SPLITS = 16
"""Approximate number of splits that are compared. Comparing all of them would take seconds for hundreds of workers."""

NOTHING_BUSY: Mapping[int, float] = MappingProxyType({})


def splits(nodes: Sequence[Node], most: int) -> Iterator[list[Node]]:
    """Yield finer and finer splits of the nodes, each time with the largest nodes split into their children.

    Args:
        nodes: the nodes to split.
        most: the limit of nodes.
    """
    apart = max(1, most // MOST_SPLITS)
    largest = [(-node.count, node.first) for node in nodes]
    heapify(largest)
    while len(largest) < most and largest[0][0] < -1:
        count, first = largest[0]
        left, right = children(Node(first, -count))
        heapreplace(largest, (-left.count, left.first))
        heappush(largest, (-right.count, right.first))
        last = len(largest) == most or largest[0][0] == -1
        if last or len(largest) % apart == 0:
            yield [Node(first, -count) for count, first in largest]


def assign(
    nodes: Sequence[Node], speeds: Mapping[int, float], busy_seconds: Mapping[int, float] = NOTHING_BUSY
) -> tuple[float, dict[Node, int]]:
    """Assign each node to the worker that would finish it first, largest node first.

    Args:
        nodes: the nodes to compute.
        speeds: micro-batches per second, by worker.
        busy_seconds: how long a worker still computes other work; idle workers are absent.

    Returns:
        The seconds until the last worker is done, and the worker of each node.
    """
    busy_until = {worker: busy_seconds.get(worker, 0.0) for worker in speeds}
    owners: dict[Node, int] = {}
    in_order = sorted(nodes, key=lambda node: (-node.count, node.first))
    for count, alike in groupby(in_order, key=lambda node: node.count):
        first = [(busy + count / speeds[worker], worker) for worker, busy in busy_until.items()]
        heapify(first)
        for node in alike:
            done, worker = first[0]
            owners[node], busy_until[worker] = worker, done
            heapreplace(first, (done + count / speeds[worker], worker))
    return max(busy_until.values()), owners


def plan(
    nodes: Sequence[Node], speeds: Mapping[int, float], busy_seconds: Mapping[int, float] = NOTHING_BUSY
) -> dict[Node, int]:
    """Split the nodes where that helps, and return the worker of each piece.

    The split that is done soonest wins. `assign` explains the arguments.
    """
    best_seconds, best = assign(nodes, speeds, busy_seconds)
    for finer in splits(nodes, MAX_NODES_PER_WORKER * len(speeds)):
        seconds, owners = assign(finer, speeds, busy_seconds)
        if seconds < LEAST_GAIN * best_seconds:
            best_seconds, best = seconds, owners
    return best


def describe_range(unit: str, first: int, count: int) -> str:
    """Return a range of micro-batches or batches as text, such as "batches 2-3"."""
    return f"{unit} {first}" if count == 1 else f"{unit}es {first}-{first + count - 1}"
