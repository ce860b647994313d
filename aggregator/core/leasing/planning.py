"""Planning: the split of a step's reduction tree among the workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from services.tensors.reduction_tree import Node, children

MAX_NODES_PER_WORKER = 2
"""Limit of nodes per worker; a worker keeps the sum of each until COMMIT, so its memory grows with their number."""
LEAST_GAIN = 0.98
"""A finer split is taken only if it needs less than this fraction of the time: larger nodes mean fewer bytes."""

NOTHING_BUSY: Mapping[int, float] = MappingProxyType({})


def split_largest(nodes: Sequence[Node]) -> list[Node] | None:
    """Return the nodes with the first largest one split into its children; None if all are single micro-batches."""
    largest = max(nodes, key=lambda node: (node.count, -node.first))
    if largest.is_leaf:
        return None
    at = nodes.index(largest)
    return [*nodes[:at], *children(largest), *nodes[at + 1 :]]


def assign(
    nodes: Sequence[Node], speeds: Mapping[int, float], busy_seconds: Mapping[int, float] = NOTHING_BUSY
) -> tuple[float, dict[Node, int]]:
    """Assign each node to the worker that would finish it first, largest node first.

    Args:
        nodes: The nodes to compute.
        speeds: Micro-batches per second, by worker.
        busy_seconds: How long a worker still computes other work; idle workers are absent.

    Returns:
        The seconds until the last worker is done, and the worker of each node.
    """
    busy_until = {worker: busy_seconds.get(worker, 0.0) for worker in sorted(speeds)}
    owners: dict[Node, int] = {}
    for node in sorted(nodes, key=lambda node: (-node.count, node.first)):
        worker = min(busy_until, key=lambda worker: busy_until[worker] + node.count / speeds[worker])
        busy_until[worker] += node.count / speeds[worker]
        owners[node] = worker
    return max(busy_until.values()), owners


def plan(
    nodes: Sequence[Node], speeds: Mapping[int, float], busy_seconds: Mapping[int, float] = NOTHING_BUSY
) -> dict[Node, int]:
    """Split the nodes where that helps, and return the worker of each piece.

    The split that is done soonest wins. `assign` explains the arguments.
    """
    best_seconds, best = assign(nodes, speeds, busy_seconds)
    finer = split_largest(nodes)
    while finer is not None and len(finer) <= MAX_NODES_PER_WORKER * len(speeds):
        seconds, owners = assign(finer, speeds, busy_seconds)
        if seconds < LEAST_GAIN * best_seconds:
            best_seconds, best = seconds, owners
        finer = split_largest(finer)
    return best


def describe_range(unit: str, first: int, count: int) -> str:
    """Return a range of micro-batches or batches as text, such as "batches 2-3"."""
    return f"{unit} {first}" if count == 1 else f"{unit}es {first}-{first + count - 1}"
