"""Broadcasting of arrays with two leading mesh axes: aligned by rank, or chip by chip."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def align(first: Array, second: Array) -> tuple[Array, Array]:
    """Return views of equal rank: the lower rank gets dimensions of size 1 after its mesh axes."""
    missing = first.ndim - second.ndim
    if missing == 0:
        return first, second
    if missing > 0:
        return first, second.reshape(*second.shape[:2], *(1,) * missing, *second.shape[2:])
    return first.reshape(*first.shape[:2], *(1,) * -missing, *first.shape[2:]), second


def apply_per_chip(function: Callable[..., Sequence[Array]], *operands: Array | None) -> tuple[Array, ...]:
    """Apply `function` to each chip's operands; replicated work is done once.

    Args:
        function: function of as many arrays without mesh axes, which returns a sequence of arrays. It gets None for
            an operand that is None.
        operands: arrays with mesh axes.

    Returns:
        The arrays that `function` returned, with mesh axes.
    """
    present = [operand for operand in operands if operand is not None]
    rows = max(operand.shape[0] for operand in present)
    cols = max(operand.shape[1] for operand in present)
    if rows == cols == 1:
        return tuple(
            array[np.newaxis, np.newaxis]
            for array in function(*(None if operand is None else operand[0, 0] for operand in operands))
        )
    chips = [
        function(
            *(
                None
                if operand is None
                else operand[row if operand.shape[0] > 1 else 0, col if operand.shape[1] > 1 else 0]
                for operand in operands
            )
        )
        for row in range(rows)
        for col in range(cols)
    ]
    return tuple(np.stack(parts).reshape(rows, cols, *parts[0].shape) for parts in zip(*chips, strict=True))
