"""Sums and means over dimensions of a chip's tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mesh.emulator.broadcast import Array
from mesh.emulator.tensor import Tensor, check, result
from mesh.emulator.types import FLOATING, WormholeComputeKernelConfig


def sum(
    input_tensor: Tensor,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    compute_kernel_config: WormholeComputeKernelConfig | None = None,
) -> Tensor:
    """The sum over `dim` (all dimensions if None); float32 inside, rounded once."""
    total, _ = _total("sum", input_tensor, dim, keepdim)
    return result(input_tensor, total)


def mean(
    input_tensor: Tensor,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    compute_kernel_config: WormholeComputeKernelConfig | None = None,
) -> Tensor:
    """The mean over `dim` (all dimensions if None); float32 inside, rounded once."""
    total, count = _total("mean", input_tensor, dim, keepdim)
    return result(input_tensor, total * np.float32(1.0 / count))


def _total(op: str, tensor: Tensor, dim: int | Sequence[int] | None, keepdim: bool) -> tuple[Array, int]:
    check(op, tensor)
    if tensor.dtype not in FLOATING:
        raise RuntimeError(f"{op}: {tensor.dtype} operand, expected bfloat16 or float32")
    array = tensor.array
    rank = array.ndim - 2
    wanted = range(rank) if dim is None else (dim,) if isinstance(dim, int) else dim
    for one in wanted:
        if not -rank <= one < rank:
            raise RuntimeError(f"{op}: dimension {one} of a tensor of shape {tensor.shape}")
    axes = tuple(sorted({one % rank + 2 for one in wanted}))
    count = math.prod(array.shape[axis] for axis in axes)
    kept = tuple(1 if axis in axes else size for axis, size in enumerate(array.shape))
    leading = axes == tuple(range(2, len(axes) + 2)) and array.shape[:2] == (1, 1)
    if leading and axes:
        # Columns of one matrix: a product with ones is the fastest sum over rows.
        total = np.matmul(np.ones(count, array.dtype), array.reshape(count, -1)).reshape(kept)
    else:
        total = np.add.reduce(array, axis=axes, keepdims=True)
    if not keepdim:
        total = total.reshape(tuple(size for axis, size in enumerate(kept) if axis not in axes))
    return total, count
