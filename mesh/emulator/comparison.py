"""Comparisons, which return 1 for true and 0 for false, and the selection between two operands."""

from __future__ import annotations

import math

import numpy as np

from mesh.emulator.broadcast import Array
from mesh.emulator.elementwise import align_pair, convert_scalar, join_layouts
from mesh.emulator.tensor import Tensor, check, check_tiled, wrap_result
from mesh.emulator.types import FLOATING, NUMPY_TYPES, DataType, Layout


def eq(input_tensor_a: Tensor, input_tensor_b: Tensor | float, *, dtype: DataType | None = None) -> Tensor:
    """Return 1 where `a == b`, else 0. Operands broadcast; `dtype` defaults to that of `a`."""
    return _compare("eq", np.equal, input_tensor_a, input_tensor_b, dtype)


def ge(input_tensor_a: Tensor, input_tensor_b: Tensor | float, *, dtype: DataType | None = None) -> Tensor:
    """Return 1 where `a >= b`, else 0. Operands broadcast; `dtype` defaults to that of `a`."""
    return _compare("ge", np.greater_equal, input_tensor_a, input_tensor_b, dtype)


def lt(input_tensor_a: Tensor, input_tensor_b: Tensor | float, *, dtype: DataType | None = None) -> Tensor:
    """Return 1 where `a < b`, else 0. Operands broadcast; `dtype` defaults to that of `a`."""
    return _compare("lt", np.less, input_tensor_a, input_tensor_b, dtype)


def _compare(
    op: str, function: np.ufunc, first: Tensor, second: Tensor | float, dtype: DataType | None
) -> Tensor:
    check(op, first)
    wanted = first.dtype if dtype is None else dtype
    layout = first.layout
    if isinstance(second, Tensor):
        found = function(*align_pair(op, first, second))
        layout = join_layouts(first, second)
    else:
        found = function(first.array, convert_scalar(op, second, first))
    return wrap_result(first, found.astype(NUMPY_TYPES[wanted]), wanted, layout)


def where(predicate: Tensor, true_value: Tensor | float, false_value: Tensor | float) -> Tensor:
    """Return `true_value` where `predicate` isn't 0, else `false_value`. Operands broadcast, in tile layout.

    The result has the dtype of the first value that is a tensor. With two numbers it has that of the predicate, or
    float32 for an integer predicate. As in ttnn, RuntimeError is raised for a number that the other value's dtype
    can't represent. It is also raised for a float predicate whose dtype differs from that of a single tensor value.
    """
    op = "where"
    check_tiled(op, predicate)
    tensors = [value for value in (true_value, false_value) if isinstance(value, Tensor)]
    if not tensors:
        dtype = predicate.dtype if predicate.dtype in FLOATING else DataType.FLOAT32
        return wrap_result(
            predicate, _select(op, predicate, true_value, false_value, dtype), dtype, Layout.TILE
        )
    dtype = tensors[0].dtype
    if len(tensors) == 1 and predicate.dtype in FLOATING and predicate.dtype is not dtype:
        raise RuntimeError(f"{op}: Mixed dtype is not supported: {predicate.dtype} and {dtype}")
    if len(tensors) == 2 and tensors[1].dtype is not dtype and not {t.dtype for t in tensors} <= FLOATING:
        raise RuntimeError(f"{op}: values of {dtype} and {tensors[1].dtype}, expected one dtype")
    return wrap_result(predicate, _select(op, predicate, true_value, false_value, dtype), dtype, Layout.TILE)


def _select(
    op: str, predicate: Tensor, true_value: Tensor | float, false_value: Tensor | float, dtype: DataType
) -> Array:
    operands = [predicate.array, _operand(op, true_value, dtype), _operand(op, false_value, dtype)]
    rank = max(array.ndim for array in operands)
    ranked = [
        array.reshape(*array.shape[:2], *(1,) * (rank - array.ndim), *array.shape[2:])
        if array.ndim
        else array
        for array in operands
    ]
    try:
        chosen: Array = np.where(ranked[0] != 0, ranked[1], ranked[2])
    except ValueError as error:
        shapes = [list(array.shape[2:]) for array in ranked]
        raise RuntimeError(f"{op}: shapes {shapes} do not broadcast") from error
    return chosen


def _operand(op: str, value: Tensor | float, dtype: DataType) -> Array:
    if isinstance(value, Tensor):
        check(op, value)
        return value.array
    if not isinstance(value, (int, float)):
        raise TypeError(
            f"{op}(): incompatible function arguments: {type(value).__name__}, expected a Tensor or number"
        )
    if dtype not in FLOATING and not (math.isfinite(value) and float(value).is_integer()):
        raise RuntimeError(f"{op}: a {dtype} tensor cannot represent the scalar {value}")
    return np.array(value).astype(NUMPY_TYPES[dtype])
