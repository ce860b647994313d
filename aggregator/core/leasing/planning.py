"""Which worker computes which part of a step's reduction tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from services.tensors.reduction_tree import Node, children

MAX_NODES_PER_WORKER = 2
"""A worker holds the sum of each node it computes until COMMIT, so its memory grows with their number."""


def split_largest(nodes: Sequence[Node]) -> list[Node] | None:
    """The nodes with the (first) largest one split into its children; None if all are single micro-batches."""
    largest = max(nodes, key=lambda node: (node.count, -node.first))
    if largest.is_leaf:
        return None
    at = nodes.index(largest)
    return [*nodes[:at], *children(largest), *nodes[at + 1 :]]


NOBODY_BUSY: Mapping[int, float] = MappingProxyType({})


def assign(
    nodes: Sequence[Node], speeds: Mapping[int, float], busy_seconds: Mapping[int, float] = NOBODY_BUSY
) -> tuple[float, dict[Node, int]]:
    """Each node to the worker that would finish it first, largest node first.

    Args:
        nodes: to be computed.
        speeds: of the workers, in micro-batches per second.
        busy_seconds: for how long some of them have other work to do first.

    Returns:
        The time at which the last worker is done, in seconds, and the worker of each node.
    """
    busy_until = {worker: busy_seconds.get(worker, 0.0) for worker in sorted(speeds)}
    owners: dict[Node, int] = {}
    for node in sorted(nodes, key=lambda node: (-node.count, node.first)):
        worker = min(busy_until, key=lambda worker: busy_until[worker] + node.count / speeds[worker])
        busy_until[worker] += node.count / speeds[worker]
        owners[node] = worker
    return max(busy_until.values()), owners


def plan(
    nodes: Sequence[Node], speeds: Mapping[int, float], busy_seconds: Mapping[int, float] = NOBODY_BUSY
) -> dict[Node, int]:
    """The nodes, split where that helps, and the worker of each: the split that is done soonest. See `assign`.

    Larger nodes mean fewer bytes to send, so of two splits that finish within 2 % the one with fewer nodes is taken.
    """
    best_seconds, best = assign(nodes, speeds, busy_seconds)
    finer = split_largest(nodes)
    while finer is not None and len(finer) <= MAX_NODES_PER_WORKER * len(speeds):
        seconds, owners = assign(finer, speeds, busy_seconds)
        if seconds < 0.98 * best_seconds:
            best_seconds, best = seconds, owners
        finer = split_largest(finer)
    return best
