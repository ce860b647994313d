"""Text for people about a step whose gradient is not finite."""

from __future__ import annotations

from collections.abc import Sequence

from protos.tensors_pb2 import FLOAT16, DType, NonFinite
from services.printable import counted

MAX_NAMED_MICRO_BATCHES = 4
"""Maximum number of micro-batches that the line names; the others are counted."""
MAX_REPORTED_MICRO_BATCHES = 256
"""Maximum number of micro-batches that a message names; a step may have many more."""
MAX_PARAMETER_NAME_CHARACTERS = 200
"""Maximum number of characters shown of a parameter's name, which comes from a worker unchecked."""


def describe_non_finite(found: Sequence[NonFinite], gradients: DType) -> str:
    """Return one line that says why the sum of a step's gradients has a NaN or an infinity.

    Args:
        found: micro-batches whose own gradients are not finite; empty if all are.
        gradients: dtype of gradients on the wire.
    """
    text = "the gradient is not finite"
    if found:
        named = (
            f"worker {each.worker}, micro-batch {each.micro_batch}, parameter {_printable(each.parameter)}"
            for each in found[:MAX_NAMED_MICRO_BATCHES]
        )
        others = len(found) - MAX_NAMED_MICRO_BATCHES
        many = "at least " if len(found) >= MAX_REPORTED_MICRO_BATCHES else ""
        unnamed = counted(others, "more micro-batch", "more micro-batches")
        more = f"; and {many}{unnamed}" if others > 0 else ""
        return f"{text}: {'; '.join(named)}{more}"
    if gradients == FLOAT16:
        return f"{text}; it is sent as float16, whose largest value is 65504; set wire_dtype to bfloat16 or float32"
    return f"{text}, though the gradients of all micro-batches are: their sum overflowed"


def _printable(name: str) -> str:
    cut = name if len(name) <= MAX_PARAMETER_NAME_CHARACTERS else name[:MAX_PARAMETER_NAME_CHARACTERS] + "..."
    return cut if cut.isprintable() else ascii(cut)
