"""Bytes between roles in a step. Headers and frames add less than a thousandth."""

from __future__ import annotations

from dataclasses import dataclass

from services.config.job import JobConfig
from services.sizing.share import FLOAT32_BYTES
from services.tensors.chunk_messages import bytes_per_element


@dataclass(frozen=True)
class Link:
    """Bytes of one step between two roles, over all links of that kind.

    Attributes:
        sender: role that sends.
        receiver: role that receives.
        content: what is sent.
        dtype: type on the wire.
        total_bytes: bytes of all senders together.
        links: number of links that share them evenly.
    """

    sender: str
    receiver: str
    content: str
    dtype: str
    total_bytes: int
    links: int


def estimate_links(config: JobConfig, elements: int, *, workers: int, tiers: int, shards: int) -> list[Link]:
    """Return the bytes of a step on each kind of link; see `estimate_host_memory` for the arguments.

    Each worker sends one node's sum. It sends two if nodes of equal size would leave some workers idle. The workers of
    a pipeline send one together, each its stages' part.
    """
    wire = config.wire_dtype
    holders = config.count_holders(workers)
    senders = min(holders, config.micro_batches)
    types = config.plan().wire
    gradients, weights = (
        bytes_per_element(types.gradients) * elements,
        bytes_per_element(types.weights) * elements,
    )
    middle = "shards" if shards else "aggregator"
    streams = (shards or 1) * min(workers, config.stages)
    links = [
        Link("workers", middle, "gradients", wire.gradients, senders * gradients, senders * streams),
        Link(middle, "workers", "weights", wire.weights, holders * weights, holders * streams),
    ]
    if tiers == 3 and not shards:
        links += [
            Link("aggregator", "optimizer", "sum", "float32", FLOAT32_BYTES * elements, 1),
            Link("optimizer", "aggregator", "weights", wire.weights, weights, 1),
        ]
    return links
