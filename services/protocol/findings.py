"""The count of a sum's findings: how many tokens, or samples, count in the losses of its micro-batches."""

from __future__ import annotations

from services.errors import Refusal
from services.printable import counted

MAX_COUNT = 1 << 32
"""Largest number of tokens of a micro-batch; the sum of a step's is far below 2^64."""


def check_count(count: int, micro_batches: int, tokens: int = 0) -> Refusal | None:
    """Return why a count can't be that of some micro-batches; None if it can.

    Args:
        count: what a message says.
        micro_batches: number of micro-batches.
        tokens: number of tokens, or samples, in each; 0 if it is unknown.
    """
    most = micro_batches * min(tokens or MAX_COUNT, MAX_COUNT)
    if 0 < count <= most:
        return None
    many = counted(micro_batches, "micro-batch", "micro-batches")
    return Refusal(f"findings.count is {count}, expected 1 to {most}, the tokens of {many}")
