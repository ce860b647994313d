"""Ops that repeat elements, pad a tensor, or split it into pieces. All accept every dtype and keep the layout."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mesh.emulator.data_movement import find_axis
from mesh.emulator.rounding import round_to_bfloat16
from mesh.emulator.tensor import Tensor, check, wrap, wrap_view
from mesh.emulator.types import NUMPY_TYPES, DataType, Layout, Shape

_TILE = 32


def repeat(input_tensor: Tensor, repeat_dims: Sequence[int] | Shape) -> Tensor:
    """Repeat the tensor `repeat_dims[i]` times along dimension i. The shorter of shape and counts gets leading ones.

    Raises RuntimeError for counts below 1.
    """
    check("repeat", input_tensor)
    array = input_tensor.array
    times = [int(one) for one in repeat_dims]
    if any(one < 1 for one in times):
        raise RuntimeError(f"repeat: repeat_dims {times}, expected positive numbers")
    rank = array.ndim - 2
    if len(times) > rank:
        array = array.reshape(*array.shape[:2], *(1,) * (len(times) - rank), *array.shape[2:])
    if math.prod(times) == 1:
        return wrap_view(input_tensor, array)
    repeated = np.tile(array, (1, 1, *(1,) * (rank - len(times)), *times))
    return wrap(repeated, input_tensor.dtype, input_tensor.layout, input_tensor.mesh)


def repeat_interleave(input_tensor: Tensor, repeats: int, dim: int) -> Tensor:
    """Repeat each element `repeats` times along `dim`. Raises RuntimeError for `repeats` below 1."""
    check("repeat_interleave", input_tensor)
    axis = find_axis("repeat_interleave", input_tensor, dim)
    if repeats < 1:
        raise RuntimeError(f"repeat_interleave: {repeats} repeats, expected a positive number")
    if repeats == 1:
        return wrap_view(input_tensor, input_tensor.array)
    repeated = np.repeat(input_tensor.array, repeats, axis=axis)
    return wrap(repeated, input_tensor.dtype, input_tensor.layout, input_tensor.mesh)


def pad(input_tensor: Tensor, padding: Sequence[Sequence[int]], value: float) -> Tensor:
    """Add (before, after) elements of `value` to each dimension; fewer pairs apply to the last dimensions.

    As in ttnn, RuntimeError is raised for padding in front of a tiled tensor, and for padding a tiled vector beyond
    its last tile. TypeError is raised for negative numbers.
    """
    check("pad", input_tensor)
    array, dtype = input_tensor.array, input_tensor.dtype
    pairs = [tuple(int(one) for one in pair) for pair in padding]
    if any(len(pair) != 2 or min(pair) < 0 for pair in pairs):
        raise TypeError(f"pad(): incompatible function arguments: padding {pairs}, expected (before, after)")
    missing = array.ndim - 2 - len(pairs)
    if missing < 0:
        raise RuntimeError(
            f"pad: padding len {len(pairs)} can't be larger than input tensor rank {array.ndim - 2}"
        )
    if input_tensor.layout is Layout.TILE and any(before for before, _ in pairs):
        raise RuntimeError("pad: on device tile padding does not support front padding")
    if not any(after or before for before, after in pairs):
        return wrap_view(input_tensor, array)
    if array.ndim == 3 and input_tensor.layout is Layout.TILE:
        room = -(-array.shape[2] // _TILE) * _TILE
        if array.shape[2] + pairs[0][1] > room:
            raise RuntimeError(
                f"pad: a tiled vector can't grow beyond its {room} elements; MeshBuffer must be large enough"
            )
    filling = np.array(value, NUMPY_TYPES[dtype])
    if dtype is DataType.BFLOAT16:
        round_to_bfloat16(filling)
    padded = np.pad(array, ((0, 0),) * (2 + missing) + tuple(pairs), constant_values=filling)
    return wrap(padded, dtype, input_tensor.layout, input_tensor.mesh)


def split(input_tensor: Tensor, split_size: int | Sequence[int], dim: int = 0) -> list[Tensor]:
    """Split along `dim` into pieces of `split_size` elements, of which the last may be smaller, or of listed sizes.

    Raises RuntimeError unless the sizes are positive and add up to the dimension.
    """
    check("split", input_tensor)
    axis = find_axis("split", input_tensor, dim)
    size = input_tensor.array.shape[axis]
    if isinstance(split_size, int):
        sizes = (
            [min(split_size, size - start) for start in range(0, size, split_size)] if split_size > 0 else []
        )
    else:
        sizes = list(split_size)
    if sum(sizes) != size or any(one < 1 for one in sizes):
        raise RuntimeError(
            f"split: split_sizes {split_size} must sum exactly to {size}, the size of dimension {dim}"
        )
    if len(sizes) == 1:
        return [wrap_view(input_tensor, input_tensor.array)]
    pieces = []
    start = 0
    for one in sizes:
        piece = input_tensor.array[(np.s_[:],) * axis + (np.s_[start : start + one],)]
        pieces.append(wrap(piece, input_tensor.dtype, input_tensor.layout, input_tensor.mesh))
        start += one
    return pieces


def chunk(input_tensor: Tensor, chunks: int, dim: int) -> list[Tensor]:
    """Split along `dim` into at most `chunks` pieces of equal size, of which the last may be smaller."""
    check("chunk", input_tensor)
    if chunks < 1:
        raise RuntimeError(f"chunk: {chunks} chunks, expected a positive number")
    size = input_tensor.array.shape[find_axis("chunk", input_tensor, dim)]
    return split(input_tensor, -(-size // chunks), dim)
