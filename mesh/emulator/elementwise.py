"""Arithmetic with broadcasting, exponential, casts and gather. Float arithmetic is float32 and rounds once per op."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mesh.emulator import parallel
from mesh.emulator.broadcast import Array, align
from mesh.emulator.data_movement import find_axis
from mesh.emulator.tensor import Tensor, check, check_floating, wrap, wrap_result
from mesh.emulator.types import FLOATING, NUMPY_TYPES, DataType, Layout


def convert_scalar(op: str, value: object, tensor: Tensor) -> Array:
    """Return `value` as an element of the tensor's dtype.

    Raises TypeError if `value` isn't a number, RuntimeError if an integer tensor can't represent it.
    """
    if not isinstance(value, (int, float)):
        raise TypeError(
            f"{op}(): incompatible function arguments: {type(value).__name__}, expected a Tensor or number"
        )
    if tensor.dtype not in FLOATING and isinstance(value, float):
        least, most = (0, 2**32 - 1) if tensor.dtype is DataType.UINT32 else (-(2**31), 2**31 - 1)
        fits = value.is_integer() and least <= value <= most
    else:
        fits = True  # Integers wrap around, as in ttnn.
    if not fits:
        raise RuntimeError(f"{op}: a {tensor.dtype} tensor cannot represent the scalar {value}")
    return np.asarray(value).astype(tensor.array.dtype)


def align_pair(op: str, first: Tensor, second: Tensor) -> tuple[Array, Array]:
    """Return both operands' arrays with equal rank. Raises RuntimeError for incompatible dtypes or shapes."""
    check(op, second)
    if first.dtype is not second.dtype and not (first.dtype in FLOATING and second.dtype in FLOATING):
        raise RuntimeError(f"{op}: Mixed dtype is not supported: {first.dtype} and {second.dtype}")
    one, other = align(first.array, second.array)
    for size, other_size in zip(one.shape[2:], other.shape[2:], strict=True):
        if size != other_size and size != 1 and other_size != 1:
            raise RuntimeError(f"{op}: Invalid subtile broadcast type: {first.shape} and {second.shape}")
    return one, other


def join_layouts(first: Tensor, second: Tensor) -> Layout:
    """Return the layout of a result of two operands: tiled if either is."""
    return Layout.TILE if Layout.TILE in (first.layout, second.layout) else Layout.ROW_MAJOR


def _arithmetic(
    op: str, function: Callable[..., Array], first: Tensor, second: Tensor | float, dtype: DataType | None
) -> Tensor:
    check(op, first)
    if op == "multiply" and first.dtype not in FLOATING and isinstance(second, float):
        first = typecast(first, DataType.FLOAT32)
    wanted = first.dtype if dtype is None else dtype
    if wanted is not first.dtype and not (wanted in FLOATING and first.dtype in FLOATING):
        raise RuntimeError(
            f"{op}: {first.dtype} operands, dtype {wanted}: only float dtypes convert to each other"
        )
    if isinstance(second, Tensor):
        pair = align_pair(op, first, second)
        return wrap_result(
            first,
            parallel.apply_elementwise(function, *pair, dtype=pair[0].dtype),
            wanted,
            join_layouts(first, second),
        )
    kind = first.array.dtype
    return wrap_result(
        first,
        parallel.apply_elementwise(function, first.array, convert_scalar(op, second, first), dtype=kind),
        wanted,
    )


def add(input_tensor_a: Tensor, input_tensor_b: Tensor | float, *, dtype: DataType | None = None) -> Tensor:
    """Return `a + b` with broadcasting. `dtype` defaults to that of `a`; mixed float dtypes are accepted."""
    return _arithmetic("add", np.add, input_tensor_a, input_tensor_b, dtype)


def subtract(
    input_tensor_a: Tensor, input_tensor_b: Tensor | float, *, dtype: DataType | None = None
) -> Tensor:
    """Return `a - b` with broadcasting. `dtype` defaults to that of `a`; mixed float dtypes are accepted."""
    return _arithmetic("subtract", np.subtract, input_tensor_a, input_tensor_b, dtype)


def multiply(
    input_tensor_a: Tensor, input_tensor_b: Tensor | float, *, dtype: DataType | None = None
) -> Tensor:
    """Return `a * b` with broadcasting. `dtype` defaults to that of `a`, or float32 for integers times a float."""
    return _arithmetic("multiply", np.multiply, input_tensor_a, input_tensor_b, dtype)


def neg(input_tensor: Tensor) -> Tensor:
    """Return `-a` for float dtypes and int32; uint32 is refused."""
    check("neg", input_tensor)
    if input_tensor.dtype is DataType.UINT32:
        raise RuntimeError("neg: does not support integer input dtype DataType.UINT32")
    return _unary(np.negative, input_tensor)


def exp(input_tensor: Tensor) -> Tensor:
    """Return `e ** a` for float dtypes."""
    check_floating("exp", input_tensor)
    return _unary(np.exp, input_tensor)


def square(input_tensor: Tensor) -> Tensor:
    """Return `a * a` for all dtypes."""
    check("square", input_tensor)
    return _unary(np.square, input_tensor)


def _unary(function: Callable[..., Array], operand: Tensor) -> Tensor:
    return wrap_result(
        operand, parallel.apply_elementwise(function, operand.array, dtype=operand.array.dtype)
    )


def typecast(input_tensor: Tensor, dtype: DataType) -> Tensor:
    """Cast to another dtype, always in a new buffer. Floats are truncated towards zero for integers."""
    check("typecast", input_tensor)
    if dtype is input_tensor.dtype or (dtype is DataType.FLOAT32 and input_tensor.dtype in FLOATING):
        # The values stay the same. Arrays are never written to, so two buffers can share one.
        return wrap(input_tensor.array, dtype, input_tensor.layout, input_tensor.mesh)
    cast: Array = input_tensor.array.astype(NUMPY_TYPES[dtype])
    return wrap_result(input_tensor, cast, dtype)


def gather(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """Select elements of `input` by `index` along `dim`; the result has the index's shape.

    The index is uint32 with the rank and layout of `input`. Raises RuntimeError for indices out of range, and for an
    index longer than `input` in another dimension: ttnn reads out of bounds.
    """
    op = "gather"
    check(op, input)
    check(op, index)
    if index.dtype is not DataType.UINT32:
        raise RuntimeError(f"{op}: index of {index.dtype}, expected DataType.UINT32")
    if index.layout is not input.layout:
        raise RuntimeError(
            f"{op}: Input tensor and index tensor must have the same layout, got {index.layout}"
        )
    values, places = input.array, index.array
    if values.ndim != places.ndim:
        raise RuntimeError(f"{op}: input {input.shape} and index {index.shape} differ in rank")
    axis = find_axis(op, input, dim)
    if places.size and int(places.max()) >= values.shape[axis]:
        raise RuntimeError(f"{op}: index {int(places.max())} beyond dimension {dim} of {input.shape}")
    sizes = [
        mine if other in (0, 1, axis) else theirs
        for other, (mine, theirs) in enumerate(zip(values.shape, places.shape, strict=True))
    ]
    if any(size > mine for mine, size in zip(values.shape, sizes, strict=True)):
        raise RuntimeError(
            f"{op}: index {index.shape} is longer than {input.shape} in a dimension other than {dim}"
        )
    mesh = np.broadcast_shapes(values.shape[:2], places.shape[:2])
    corner = values[tuple(np.s_[:size] for size in sizes)]
    found = np.take_along_axis(
        np.broadcast_to(corner, (*mesh, *sizes[2:])),
        np.broadcast_to(places, (*mesh, *places.shape[2:])).astype(np.int64),
        axis,
    )
    return wrap_result(input, found)
