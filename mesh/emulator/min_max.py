"""Maximum and minimum over dimensions of a chip's tensor, and the index of the maximum."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mesh.emulator.broadcast import Array
from mesh.emulator.reductions import find_axes, reduce_shape
from mesh.emulator.tensor import Tensor, check, note_scratch, wrap_result
from mesh.emulator.types import FLOATING, DataType, Layout, WormholeComputeKernelConfig


def max(
    input_tensor: Tensor,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    compute_kernel_config: WormholeComputeKernelConfig | None = None,
) -> Tensor:
    """Return the maximum over `dim` (all dimensions if None), in tile layout."""
    return _extreme("max", np.maximum, input_tensor, dim, keepdim)


def min(
    input_tensor: Tensor,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    compute_kernel_config: WormholeComputeKernelConfig | None = None,
) -> Tensor:
    """Return the minimum over `dim` (all dimensions if None), in tile layout."""
    return _extreme("min", np.minimum, input_tensor, dim, keepdim)


def _extreme(
    op: str, function: np.ufunc, tensor: Tensor, dim: int | Sequence[int] | None, keepdim: bool
) -> Tensor:
    check(op, tensor)
    axes = find_axes(op, tensor, dim)
    found: Array = function.reduce(tensor.array, axis=axes)
    if len(axes) == 1 and axes[0] < tensor.array.ndim - 2:
        # ttnn transposes the dimension into the tiles, which pads it to 32.
        shape = list(tensor.array.shape)
        shape[axes[0]], shape[-2] = shape[-2], shape[axes[0]]
        note_scratch(tensor, 2, tuple(shape[2:]))
    return wrap_result(tensor, found.reshape(reduce_shape(tensor, axes, keepdim)), layout=Layout.TILE)


def argmax(input_tensor: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Return the index of the first maximum along `dim`, as uint32 in row-major layout.

    As in ttnn, RuntimeError is raised for a tiled operand of integers or without `dim`. It is also raised for integers
    along a dimension other than the last.
    """
    op = "argmax"
    check(op, input_tensor)
    floating = input_tensor.dtype in FLOATING
    array = input_tensor.array
    rank = array.ndim - 2
    if input_tensor.layout is Layout.TILE and not floating:
        raise RuntimeError(f"{op}: {input_tensor.dtype} in Layout.TILE, expected bfloat16 or float32")
    if dim is None:
        if input_tensor.layout is Layout.TILE:
            raise RuntimeError(f"{op}: For inputs with TILE layout, dim parameter must be specified")
        found = array.reshape(*array.shape[:2], -1).argmax(axis=-1)
        axes = tuple(range(2, rank + 2))
    else:
        axes = find_axes(op, input_tensor, dim)
        if not floating and axes != (rank + 1,):
            raise RuntimeError(f"{op}: dim {dim} of {input_tensor.dtype}, expected the last dimension")
        found = array.argmax(axis=axes[0])
    places = found.astype(np.uint32).reshape(reduce_shape(input_tensor, axes, keepdim))
    return wrap_result(input_tensor, places, DataType.UINT32, Layout.ROW_MAJOR)
