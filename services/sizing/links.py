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

    Each worker sends one node's sum. It sends two if nodes of equal size would leave some workers idle.
    """
    wire = config.wire_dtype
    senders = min(workers, config.micro_batches)
    types = config.plan().wire
    gradients, weights = (
        bytes_per_element(types.gradients) * elements,
        bytes_per_element(types.weights) * elements,
    )
    middle = "shards" if shards else "aggregator"
    spread = shards or 1
    links = [
        Link("workers", middle, "gradients", wire.gradients, senders * gradients, senders * spread),
        Link(middle, "workers", "weights", wire.weights, workers * weights, workers * spread),
    ]
    if tiers == 3 and not shards:
        links += [
            Link("aggregator", "optimizer", "sum", "float32", FLOAT32_BYTES * elements, 1),
            Link("optimizer", "aggregator", "weights", wire.weights, weights, 1),
        ]
    return links
