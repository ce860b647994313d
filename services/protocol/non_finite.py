"""What people are told of a step whose gradient is not finite. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from protos.tensors_pb2 import FLOAT16, DType, NonFinite

MOST_NAMED = 4
"""Micro-batches that one line names; of the others it says how many there are."""
LONGEST_PARAMETER = 200
"""Characters of a parameter's name, which is as a worker says."""


def why_not_finite(found: Sequence[NonFinite], gradients: DType) -> str:
    """Why the sum of a step's gradients has a NaN or an infinity.

    Args:
        found: micro-batches whose own gradients have.
        gradients: how gradients travel.
    """
    text = "the gradient is not finite"
    if found:
        named = (
            f"worker {each.worker}, micro-batch {each.micro_batch}, parameter {_printable(each.parameter)}"
            for each in found[:MOST_NAMED]
        )
        others = len(found) - MOST_NAMED
        return f"{text}: {'; '.join(named)}" + (f"; and {others} micro-batches more" if others > 0 else "")
    if gradients == FLOAT16:
        return f"{text}; it travels as float16, whose largest is 65504: with wire_dtype bfloat16 it may be larger"
    return f"{text}, though those of all micro-batches are: their sum overflowed"


def _printable(name: str) -> str:
    cut = name if len(name) <= LONGEST_PARAMETER else name[:LONGEST_PARAMETER] + "..."
    return cut if cut.isprintable() else ascii(cut)
