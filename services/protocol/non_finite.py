"""What people are told of a step whose gradient is not finite. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from protos.tensors_pb2 import FLOAT16, DType, NonFinite

MAX_NAMED_MICRO_BATCHES = 4
"""Micro-batches that one line names; of the others it says how many there are."""
MAX_PARAMETER_NAME_CHARACTERS = 200
"""Characters of a parameter's name, which is as a worker says."""


def describe_non_finite(found: Sequence[NonFinite], gradients: DType) -> str:
    """Why the sum of a step's gradients has a NaN or an infinity.

    Args:
        found: micro-batches whose own gradients have.
        gradients: how gradients travel.
    """
    text = "the gradient is not finite"
    if found:
        named = (
            f"worker {each.worker}, micro-batch {each.micro_batch}, parameter {_printable(each.parameter)}"
            for each in found[:MAX_NAMED_MICRO_BATCHES]
        )
        others = len(found) - MAX_NAMED_MICRO_BATCHES
        return f"{text}: {'; '.join(named)}" + (f"; and {others} micro-batches more" if others > 0 else "")
    if gradients == FLOAT16:
        return f"{text}; it travels as float16, whose largest is 65504: with wire_dtype bfloat16 it may be larger"
    return f"{text}, though those of all micro-batches are: their sum overflowed"


def _printable(name: str) -> str:
    cut = name if len(name) <= MAX_PARAMETER_NAME_CHARACTERS else name[:MAX_PARAMETER_NAME_CHARACTERS] + "..."
    return cut if cut.isprintable() else ascii(cut)
