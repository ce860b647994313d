"""Memory of the roles on their hosts: a constant number of model copies each, and windows of chunks.

Libraries (some 100 to 250 MB a process) and a worker's corpus come on top.
"""

from __future__ import annotations

from dataclasses import dataclass

from services.config.job import JobConfig
from services.protocol.plan import TOTAL_WINDOW_CHUNKS, WINDOW_CHUNKS
from services.tensors.chunk_messages import bytes_per_element
from services.tensors.layout import CHUNK_ELEMENTS

FLOAT32_BYTES = 4
_WINDOWS_BYTES = (TOTAL_WINDOW_CHUNKS + WINDOW_CHUNKS) * CHUNK_ELEMENTS * FLOAT32_BYTES
"""Chunks that wait in an aggregator: those of all leases together, and sums that wait for the optimizer."""
_MOST_SUMS = 2
"""Sums that a worker keeps until a step's COMMIT: it has at most two nodes of a step."""


@dataclass(frozen=True)
class RoleMemory:
    """Memory of one process of a role, in bytes.

    Attributes:
        role: worker, aggregator, optimizer or shard.
        memory_bytes: memory during a step.
        checkpoint_bytes: additional memory while a checkpoint is written.
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
    config: JobConfig, elements: int, *, workers: int, tiers: int, shards: int
) -> list[RoleMemory]:
    """Return the memory of one process of each role.

    Args:
        config: config of the job.
        elements: number of the model's parameters.
        workers: number of worker daemons.
        tiers: 3 for an optimizer of its own, 2 for one inside the aggregator.
        shards: number of shards; 0 for none.
    """
    copy = FLOAT32_BYTES * elements
    worker = _worker_memory(config, copy, workers)
    windows = min(_WINDOWS_BYTES, (workers + 1) * copy)
    newest = bytes_per_element(config.plan().wire.weights) * elements
    state = count_state_arrays(config)
    tensors = (2 + state) * copy
    snapshot = (1 + state) * copy
    holds = f"weights, gradient and {state} arrays of {config.optimizer.type}"
    broadcast = f"weights in {config.wire_dtype.weights} for workers"
    if shards:
        share = (tensors + newest) // shards + windows
        return [
            worker,
            RoleMemory("shard", share, snapshot // shards, f"1/{shards} of: {holds}; {broadcast}"),
            RoleMemory("aggregator", 0, snapshot, "a checkpoint, while it is written"),
        ]
    if tiers == 2:
        text = f"{holds}; {broadcast}"
        return [worker, RoleMemory("aggregator", tensors + newest + windows, snapshot, text)]
    return [
        worker,
        RoleMemory("aggregator", newest + windows, 0, broadcast),
        RoleMemory(
            "optimizer", tensors + newest, snapshot, f"{holds}; weights in {config.wire_dtype.weights}"
        ),
    ]


def _worker_memory(config: JobConfig, copy: int, workers: int) -> RoleMemory:
    leaves = -(-config.micro_batches // workers)
    levels = (leaves - 1).bit_length()  # sums of subtrees that wait for their sibling
    copies = 1 + _MOST_SUMS + levels
    text = f"weights, {_MOST_SUMS} sums of gradients" + (f", {levels} of subtrees" if levels else "")
    return RoleMemory("worker", copies * copy, 0, text)
