"""Ops that move elements without changing them. All accept every dtype."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mesh.emulator.broadcast import Array
from mesh.emulator.tensor import Tensor, check, wrap, wrap_view
from mesh.emulator.types import Layout, Shape

_TILE = 32


def reshape(input_tensor: Tensor, shape: Sequence[int] | Shape) -> Tensor:
    """Return the elements in another shape, in which one size may be -1.

    The result shares the buffer if no element changes its place in a tile or row. Raises RuntimeError for a shape of
    another volume.
    """
    check("reshape", input_tensor)
    sizes = [int(size) for size in shape]
    array = input_tensor.array
    volume = math.prod(array.shape[2:])
    if sizes.count(-1) == 1:
        known = -math.prod(sizes)
        if known == 0 or volume % known:
            raise RuntimeError(f"reshape: {input_tensor.shape} to {sizes}: the volume is not divisible")
        sizes[sizes.index(-1)] = volume // known
    if math.prod(sizes) != volume or any(size < 0 for size in sizes):
        raise RuntimeError(f"reshape: {input_tensor.shape} to {sizes}: new_volume != old_volume")
    reshaped = array.reshape(*array.shape[:2], *sizes)
    if _keeps_places(input_tensor.layout, array.shape[2:], tuple(sizes)):
        return wrap_view(input_tensor, reshaped)
    return wrap(reshaped, input_tensor.dtype, input_tensor.layout, input_tensor.mesh)


def _keeps_places(layout: Layout, before: tuple[int, ...], after: tuple[int, ...]) -> bool:
    """Return whether a reshape leaves every element where it is: in ttnn a view, else a copy."""
    (*_, old_height, old_width), (*_, height, width) = (1, 1, *before), (1, 1, *after)
    if width != old_width:
        return False
    return layout is Layout.ROW_MAJOR or height == old_height or height % _TILE == old_height % _TILE == 0


def transpose(input_tensor: Tensor, dim1: int, dim2: int) -> Tensor:
    """Swap two dimensions. Raises RuntimeError for a tiled tensor of rank 1, as ttnn does."""
    check("transpose", input_tensor)
    if input_tensor.array.ndim < 4 and input_tensor.layout is Layout.TILE:
        raise RuntimeError(f"transpose: Can't convert shape rank of {input_tensor.shape}")
    first, second = find_axis("transpose", input_tensor, dim1), find_axis("transpose", input_tensor, dim2)
    return _wrap_moved(input_tensor, input_tensor.array.swapaxes(first, second))


def permute(input_tensor: Tensor, dims: Sequence[int]) -> Tensor:
    """Reorder all dimensions. Raises RuntimeError unless `dims` is a permutation."""
    check("permute", input_tensor)
    rank = input_tensor.array.ndim - 2
    order = [find_axis("permute", input_tensor, dim) for dim in dims]
    if sorted(order) != list(range(2, rank + 2)):
        raise RuntimeError(
            f"permute: {list(dims)} is no permutation of the {rank} dimensions of {input_tensor.shape}"
        )
    return _wrap_moved(input_tensor, input_tensor.array.transpose(0, 1, *order))


def concat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Concatenate tensors of one dtype and layout along `dim`. Raises RuntimeError if other dimensions differ."""
    if not tensors:
        raise RuntimeError("concat: no tensors")
    first = tensors[0]
    for tensor in tensors:
        check("concat", tensor)
        if tensor.dtype is not first.dtype or tensor.layout is not first.layout:
            raise RuntimeError("concat: all tensors must have the same dtype and layout")
    if len(tensors) == 1:
        return wrap_view(first, first.array)
    axis = find_axis("concat", first, dim)
    arrays = [tensor.array for tensor in tensors]
    mesh = np.broadcast_shapes(*(array.shape[:2] for array in arrays))
    arrays = [
        array if array.shape[:2] == mesh else np.broadcast_to(array, (*mesh, *array.shape[2:]))
        for array in arrays
    ]
    try:
        joined = np.concatenate(arrays, axis=axis)
    except ValueError as error:
        shapes = [tensor.shape for tensor in tensors]
        raise RuntimeError(f"concat: shapes {shapes} don't fit along dimension {dim}") from error
    return wrap(joined, first.dtype, first.layout, first.mesh)


def slice(
    input_tensor: Tensor,
    slice_start: Sequence[int],
    slice_end: Sequence[int],
    slice_step: Sequence[int] | None = None,
) -> Tensor:
    """Return elements `slice_start` to `slice_end`, exclusive, with a step, in each dimension.

    Raises RuntimeError for empty ranges and ranges out of bounds: ttnn slices into the padding of tiles.
    """
    check("slice", input_tensor)
    sizes = input_tensor.array.shape[2:]
    steps = [1] * len(sizes) if slice_step is None else list(slice_step)
    if not len(slice_start) == len(slice_end) == len(steps) == len(sizes):
        raise RuntimeError(
            f"slice: {list(slice_start)} to {list(slice_end)} of a tensor of shape {input_tensor.shape}"
        )
    cuts: list[Any] = [np.s_[:], np.s_[:]]
    for size, start, end, step in zip(sizes, slice_start, slice_end, steps, strict=True):
        if not (0 <= start < end <= size and step > 0):
            raise RuntimeError(f"slice: {start} to {end} by {step} of a dimension of size {size}")
        cuts.append(np.s_[start:end:step])
    cut = input_tensor.array[tuple(cuts)]
    if cut.shape == input_tensor.array.shape:
        return wrap_view(input_tensor, cut)
    return wrap(cut, input_tensor.dtype, input_tensor.layout, input_tensor.mesh)


def to_layout(tensor: Tensor, layout: Layout) -> Tensor:
    """Convert to another layout. A tensor of that layout is returned as a view."""
    check("to_layout", tensor, on_device=False)
    if layout is tensor.layout:
        return wrap_view(tensor, tensor.array)
    return wrap(tensor.array, tensor.dtype, layout, tensor.mesh, on_host=tensor.on_host)


def find_axis(op: str, tensor: Tensor, dim: int) -> int:
    """Return the array axis of a dimension of the tensor. Raises RuntimeError if it doesn't exist."""
    rank = tensor.array.ndim - 2
    if not -rank <= dim < rank:
        raise RuntimeError(f"{op}: dimension {dim} of a tensor of shape {tensor.shape}")
    return dim % rank + 2


def _wrap_moved(source: Tensor, array: Array) -> Tensor:
    """Wrap a moved array. As on the device, it gets a new buffer unless no element moved."""
    if [size for size in array.shape if size != 1] == [size for size in source.array.shape if size != 1] and (
        array.strides == source.array.strides or array.flags.c_contiguous
    ):
        return wrap_view(source, array)
    return wrap(array, source.dtype, source.layout, source.mesh)
