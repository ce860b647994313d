"""Memory of the roles on their hosts at its peak: a constant number of model copies each, and windows of chunks.

Processes keep the memory of their peak. Libraries (some 70 to 250 MB a process), a worker's corpus and emulated chips
come on top. `tests/cluster/test_host_memory.py` compares the figures with real processes.
"""

from __future__ import annotations

from dataclasses import dataclass

from services.config.job import JobConfig
from services.config.settings import optimizer_name
from services.printable import counted
from services.protocol.plan import TOTAL_WINDOW_CHUNKS, WINDOW_CHUNKS
from services.sizing.share import FLOAT32_BYTES
from services.tensors.chunk_messages import bytes_per_element
from services.tensors.layout import CHUNK_ELEMENTS

_WINDOW_BYTES = WINDOW_CHUNKS * CHUNK_ELEMENTS * FLOAT32_BYTES
"""Chunks of float32 under way on one stream."""
_MOST_SUMS = 2
"""Sums that a worker keeps until a step's COMMIT: it has at most two nodes of a step."""
_TENSOR_COPIES = 4
"""Copies of a tensor on its way between the mesh and the host's arrays, as measured."""


@dataclass(frozen=True)
class RoleMemory:
    """Memory of one process of a role, in bytes.

    Attributes:
        role: worker, aggregator, optimizer or shard.
        memory_bytes: most memory during a step.
        checkpoint_bytes: additional memory since the first checkpoint, which is written from a copy.
        contents: what it consists of, for people.
    """

    role: str
    memory_bytes: int
    checkpoint_bytes: int
    contents: str


def count_state_arrays(config: JobConfig) -> int:
    """Return the number of arrays of model size that the update rule keeps."""
    optimizer = config.optimizer
    match optimizer.type:
        case "adamw":
            return 3 if optimizer.amsgrad else 2
        case "sgd":
            return 1 if optimizer.momentum else 0
        case "noop":
            return 0


def estimate_host_memory(
    config: JobConfig,
    elements: int,
    *,
    worker_elements: int | None = None,
    largest_elements: int,
    workers: int,
    tiers: int,
    shards: int,
) -> list[RoleMemory]:
    """Return the memory of one process of each role.

    Args:
        config: config of the job.
        elements: number of the model's parameters.
        worker_elements: number of those that a worker has; None for all.
        largest_elements: number of elements of its largest parameter.
        workers: number of worker daemons.
        tiers: 3 for an optimizer of its own, 2 for one inside the aggregator.
        shards: number of shards; 0 for none.
    """
    copy = FLOAT32_BYTES * elements
    wire = config.plan().wire
    gradient_streams = min(workers * WINDOW_CHUNKS, TOTAL_WINDOW_CHUNKS)
    windows = min(
        gradient_streams * CHUNK_ELEMENTS * bytes_per_element(wire.gradients) + _WINDOW_BYTES,
        (workers + 1) * copy,
    )
    window = min(_WINDOW_BYTES, copy)
    newest = bytes_per_element(wire.weights) * elements
    state = count_state_arrays(config)
    tensors = (2 + state) * copy
    snapshot = (1 + state) * copy
    arrays = f", {counted(state, 'array')} of {optimizer_name(config)}" if state else ""
    holds = f"weights, gradient{arrays}"
    broadcast = f"weights in {config.wire_dtype.weights} for workers"
    share = FLOAT32_BYTES * (elements if worker_elements is None else worker_elements)
    under_way = min(window, share) + _TENSOR_COPIES * FLOAT32_BYTES * largest_elements
    worker = _worker_memory(config, share, under_way, config.count_holders(workers))
    if shards:
        share = (tensors + newest) // shards + windows
        return [
            worker,
            RoleMemory("shard", share, snapshot // shards, f"1/{shards} of: {holds}; {broadcast}"),
            RoleMemory("aggregator", windows, snapshot, "a checkpoint, while it is written"),
        ]
    if tiers == 2:
        text = f"{holds}; {broadcast}"
        return [worker, RoleMemory("aggregator", tensors + newest + windows, snapshot, text)]
    return [
        worker,
        RoleMemory("aggregator", newest + windows, 0, broadcast),
        RoleMemory("optimizer", tensors + window, snapshot, holds),
    ]


def _worker_memory(config: JobConfig, copy: int, under_way: int, holders: int) -> RoleMemory:
    leaves = -(-config.micro_batches // holders)
    levels = (leaves - 1).bit_length()  # sums of subtrees that wait for their sibling
    sums = _MOST_SUMS if holders > 1 else 1  # a single worker, or row of them, has the whole tree
    text = "weights, " + (f"{sums} sums of gradients" if sums > 1 else "a sum of gradients")
    text += f", {levels} of subtrees" if levels else ""
    return RoleMemory("worker", (1 + sums + levels) * copy + under_way, 0, text)
