"""Element-wise ops: arithmetic with broadcasting, comparison, exponential, casts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mesh.emulator.broadcast import Array, align
from mesh.emulator.tensor import Tensor, check, result
from mesh.emulator.types import FLOATING, NUMPY_TYPES, DataType, Layout, Shape


def _scalar(op: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(
            f"{op}(): incompatible function arguments: {type(value).__name__}, expected a Tensor or number"
        )
    return value


def _pair(op: str, first: Tensor, second: Tensor) -> tuple[Array, Array]:
    """Both operands' arrays, aligned. Raises RuntimeError for dtypes or shapes that don't go together."""
    check(op, second)
    if first.dtype is not second.dtype and not (first.dtype in FLOATING and second.dtype in FLOATING):
        raise RuntimeError(f"{op}: Mixed dtype is not supported: {first.dtype} and {second.dtype}")
    one, other = align(first.array, second.array)
    for size, other_size in zip(one.shape[2:], other.shape[2:], strict=True):
        if size != other_size and size != 1 and other_size != 1:
            raise RuntimeError(f"{op}: Invalid subtile broadcast type: {first.shape} and {second.shape}")
    return one, other


def _layout(first: Tensor, second: Tensor) -> Layout:
    return Layout.TILE if Layout.TILE in (first.layout, second.layout) else Layout.ROW_MAJOR


def _arithmetic(
    op: str, function: Callable[..., Array], first: Tensor, second: Tensor | float, dtype: DataType | None
) -> Tensor:
    check(op, first)
    wanted = first.dtype if dtype is None else dtype
    if wanted is not first.dtype and not (wanted in FLOATING and first.dtype in FLOATING):
        raise RuntimeError(f"{op}: {first.dtype} operands give no {wanted}")
    if isinstance(second, Tensor):
        return result(first, function(*_pair(op, first, second)), wanted, _layout(first, second))
    return result(first, function(first.array, first.array.dtype.type(_scalar(op, second))), wanted)


def add(input_tensor_a: Tensor, input_tensor_b: Tensor | float, *, dtype: DataType | None = None) -> Tensor:
    """`a + b`, broadcast; the first operand's dtype unless told."""
    return _arithmetic("add", np.add, input_tensor_a, input_tensor_b, dtype)


def subtract(
    input_tensor_a: Tensor, input_tensor_b: Tensor | float, *, dtype: DataType | None = None
) -> Tensor:
    """`a - b`, broadcast; the first operand's dtype unless told."""
    return _arithmetic("subtract", np.subtract, input_tensor_a, input_tensor_b, dtype)


def multiply(
    input_tensor_a: Tensor, input_tensor_b: Tensor | float, *, dtype: DataType | None = None
) -> Tensor:
    """`a * b`, broadcast; the first operand's dtype unless told."""
    return _arithmetic("multiply", np.multiply, input_tensor_a, input_tensor_b, dtype)


def eq(input_tensor_a: Tensor, input_tensor_b: Tensor | float, *, dtype: DataType | None = None) -> Tensor:
    """1 where `a == b`, else 0, in the first operand's dtype unless told."""
    check("eq", input_tensor_a)
    wanted = input_tensor_a.dtype if dtype is None else dtype
    layout = input_tensor_a.layout
    if isinstance(input_tensor_b, Tensor):
        one, other = _pair("eq", input_tensor_a, input_tensor_b)
        layout = _layout(input_tensor_a, input_tensor_b)
        equal = np.equal(one, other)
    else:
        equal = np.equal(input_tensor_a.array, _scalar("eq", input_tensor_b))
    return result(input_tensor_a, equal.astype(NUMPY_TYPES[wanted]), wanted, layout)


def _float_only(op: str, tensor: Tensor) -> Array:
    check(op, tensor)
    if tensor.dtype not in FLOATING:
        raise RuntimeError(f"{op}: {tensor.dtype} operand, expected bfloat16 or float32")
    return tensor.array


def neg(input_tensor: Tensor) -> Tensor:
    """`-a`."""
    return result(input_tensor, np.negative(_float_only("neg", input_tensor)))


def exp(input_tensor: Tensor) -> Tensor:
    """`e ** a`."""
    return result(input_tensor, np.exp(_float_only("exp", input_tensor)))


def square(input_tensor: Tensor) -> Tensor:
    """`a * a`."""
    return result(input_tensor, np.square(_float_only("square", input_tensor)))


def typecast(input_tensor: Tensor, dtype: DataType) -> Tensor:
    """The same values in another dtype, always in a buffer of its own; floats to integers cut towards zero."""
    check("typecast", input_tensor)
    cast: np.ndarray[Any, Any] = input_tensor.array.astype(NUMPY_TYPES[dtype])
    return result(input_tensor, cast, dtype)


def gather(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """`input` at `index` (uint32) along `dim`, the index's shape."""
    check("gather", input)
    check("gather", index)
    if index.dtype is not DataType.UINT32:
        raise RuntimeError(f"gather: index of {index.dtype}, expected DataType.UINT32")
    values, places = input.array, index.array
    if values.ndim != places.ndim:
        raise RuntimeError(f"gather: input {input.shape} and index {Shape(places.shape[2:])} differ in rank")
    axis = dim % (values.ndim - 2) + 2
    if places.size and int(places.max()) >= values.shape[axis]:
        raise RuntimeError(f"gather: index {int(places.max())} beyond dimension {dim} of {input.shape}")
    mesh = np.broadcast_shapes(values.shape[:2], places.shape[:2])
    values = np.broadcast_to(values, (*mesh, *values.shape[2:]))
    places = np.broadcast_to(places, (*mesh, *places.shape[2:]))
    return result(input, np.take_along_axis(values, places.astype(np.int64), axis))
