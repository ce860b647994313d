"""Sums and means over dimensions of a chip's tensor, in float32 and rounded once."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mesh.emulator.broadcast import Array
from mesh.emulator.tensor import Tensor, check, check_floating, wrap_result
from mesh.emulator.types import FLOATING, Layout, WormholeComputeKernelConfig


def sum(
    input_tensor: Tensor,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    compute_kernel_config: WormholeComputeKernelConfig | None = None,
) -> Tensor:
    """Return the sum over `dim` (all dimensions if None). Accepts all dtypes; floats are summed in float32.

    The result is tiled. As in ttnn, a row-major float operand stays row-major over one of its last two dimensions.
    """
    check("sum", input_tensor)
    total, axes = _total("sum", input_tensor, dim, keepdim)
    return wrap_result(input_tensor, total, layout=_layout(input_tensor, axes))


def mean(
    input_tensor: Tensor,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    compute_kernel_config: WormholeComputeKernelConfig | None = None,
) -> Tensor:
    """Return the mean over `dim` (all dimensions if None) for float dtypes. The layout is that of `sum`."""
    check_floating("mean", input_tensor)
    total, axes = _total("mean", input_tensor, dim, keepdim)
    count = math.prod(input_tensor.array.shape[axis] for axis in axes)
    return wrap_result(input_tensor, total * np.float32(1.0 / count), layout=_layout(input_tensor, axes))


def find_axes(op: str, tensor: Tensor, dim: int | Sequence[int] | None) -> tuple[int, ...]:
    """Return the sorted array axes of `dim`. None and an empty list mean all dimensions of the tensor.

    Raises RuntimeError for a dimension that doesn't exist or occurs twice.
    """
    rank = tensor.array.ndim - 2
    wanted = (dim,) if isinstance(dim, int) else dim or range(rank)
    for one in wanted:
        if not -rank <= one < rank:
            raise RuntimeError(f"{op}: dimension {one} of a tensor of shape {tensor.shape}")
    axes = tuple(sorted({one % rank + 2 for one in wanted}))
    if len(axes) != len(wanted):
        raise RuntimeError(f"{op}: reduce dim list contains a duplicate axis: {dim}")
    return axes


def reduce_shape(tensor: Tensor, axes: tuple[int, ...], keepdim: bool) -> tuple[int, ...]:
    """Return the array's shape without `axes`, or with size 1 there if `keepdim`."""
    sizes = enumerate(tensor.array.shape)
    if keepdim:
        return tuple(1 if axis in axes else size for axis, size in sizes)
    return tuple(size for axis, size in sizes if axis not in axes)


def _layout(tensor: Tensor, axes: tuple[int, ...]) -> Layout:
    keeps_layout = tensor.dtype in FLOATING and len(axes) == 1 and axes[0] >= tensor.array.ndim - 2
    return tensor.layout if keeps_layout else Layout.TILE


def _total(
    op: str, tensor: Tensor, dim: int | Sequence[int] | None, keepdim: bool
) -> tuple[Array, tuple[int, ...]]:
    """Return the sum, and the array axes of `dim`."""
    array = tensor.array
    axes = find_axes(op, tensor, dim)
    count = math.prod(array.shape[axis] for axis in axes)
    leading = axes == tuple(range(2, len(axes) + 2)) and array.shape[:2] == (1, 1)
    if leading and axes:
        # A product with ones is the fastest sum over the rows of one matrix.
        total = np.matmul(np.ones(count, array.dtype), array.reshape(count, -1))
    else:
        total = np.add.reduce(array, axis=axes, dtype=array.dtype)
    return total.reshape(reduce_shape(tensor, axes, keepdim)), axes
