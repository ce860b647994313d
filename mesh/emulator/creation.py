"""Tensors created on the device, the same on each chip, or on the host without a device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mesh.emulator.device import MeshDevice
from mesh.emulator.rounding import round_to_bfloat16
from mesh.emulator.tensor import Array, Tensor, check, wrap
from mesh.emulator.types import FLOATING, NUMPY_TYPES, DataType, Layout, Shape

_UNSET_BYTES = {
    dtype: np.array(np.nan if kind is np.float32 else 0, kind).tobytes()
    for dtype, kind in NUMPY_TYPES.items()
}


def full(
    shape: Sequence[int] | Shape,
    fill_value: float,
    dtype: DataType | None = None,
    layout: Layout | None = None,
    device: MeshDevice | None = None,
) -> Tensor:
    """Return a tensor of one value. Defaults are bfloat16, row-major, and on the host."""
    kind = DataType.BFLOAT16 if dtype is None else dtype
    array = np.full((1, 1, *shape), fill_value, NUMPY_TYPES[kind])
    return _create("full", array, kind, layout, device)


def zeros(
    shape: Sequence[int] | Shape,
    dtype: DataType | None = None,
    layout: Layout | None = None,
    device: MeshDevice | None = None,
) -> Tensor:
    """Return a tensor of zeros, with the defaults of `full`."""
    return full(shape, 0, dtype, layout, device)


def ones(
    shape: Sequence[int] | Shape,
    dtype: DataType | None = None,
    layout: Layout | None = None,
    device: MeshDevice | None = None,
) -> Tensor:
    """Return a tensor of ones, with the defaults of `full`."""
    return full(shape, 1, dtype, layout, device)


def full_like(
    tensor: Tensor,
    fill_value: float,
    dtype: DataType | None = None,
    layout: Layout | None = None,
    device: MeshDevice | None = None,
) -> Tensor:
    """Return a tensor of one value. Shape, dtype, layout and device default to those of `tensor`."""
    check("full_like", tensor, on_device=False)
    return full(
        tensor.shape,
        fill_value,
        tensor.dtype if dtype is None else dtype,
        tensor.layout if layout is None else layout,
        tensor.device() if device is None else device,
    )


def zeros_like(
    tensor: Tensor,
    dtype: DataType | None = None,
    layout: Layout | None = None,
    device: MeshDevice | None = None,
) -> Tensor:
    """Return zeros, with the defaults of `full_like`."""
    return full_like(tensor, 0, dtype, layout, device)


def ones_like(
    tensor: Tensor,
    dtype: DataType | None = None,
    layout: Layout | None = None,
    device: MeshDevice | None = None,
) -> Tensor:
    """Return ones, with the defaults of `full_like`."""
    return full_like(tensor, 1, dtype, layout, device)


def empty(
    shape: Sequence[int] | Shape,
    dtype: DataType = DataType.BFLOAT16,
    layout: Layout = Layout.ROW_MAJOR,
    *,
    device: MeshDevice,
) -> Tensor:
    """Return a tensor for an op to fill. It holds NaN, to expose forgotten elements; ttnn leaves old values."""
    sizes = (1, 1, *shape)
    # Strides of 0 repeat one element. This is much cheaper than np.broadcast_to, and ops need many outputs.
    array: Array = np.ndarray(sizes, NUMPY_TYPES[dtype], _UNSET_BYTES[dtype], strides=(0,) * len(sizes))
    return _create("empty", array, dtype, layout, device)


def empty_like(tensor: Tensor) -> Tensor:
    """Return a tensor like another one on a mesh, for ops to fill as a whole or chip by chip. It holds NaN."""
    check("empty_like", tensor)
    assert tensor.mesh is not None
    shape = (*tensor.mesh.shape, *tensor.array.shape[2:])
    fill_value = np.nan if tensor.dtype in FLOATING else 0
    array: Array = np.full(shape, fill_value, NUMPY_TYPES[tensor.dtype])
    return wrap(array, tensor.dtype, tensor.layout, tensor.mesh)


def arange(
    start: int,
    end: int | None = None,
    step: int = 1,
    *,
    dtype: DataType = DataType.BFLOAT16,
    device: MeshDevice | None = None,
    layout: Layout = Layout.ROW_MAJOR,
) -> Tensor:
    """Return a vector of numbers from `start` up to but excluding `end`. A single argument is the end."""
    first, last = (0, start) if end is None else (start, end)
    array = np.arange(first, last, step).astype(NUMPY_TYPES[dtype])[np.newaxis, np.newaxis]
    if dtype is DataType.BFLOAT16:
        round_to_bfloat16(array)
    return _create("arange", array, dtype, layout, device)


def _create(
    op: str, array: Array, dtype: DataType, layout: Layout | None, device: MeshDevice | None
) -> Tensor:
    if device is not None:
        device.check_open(op)
    if dtype is DataType.BFLOAT16 and op == "full":
        round_to_bfloat16(array)
    kind = Layout.ROW_MAJOR if layout is None else layout
    return wrap(array, dtype, kind, device, on_host=device is None)
