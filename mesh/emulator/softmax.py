"""Softmax and log-softmax over one dimension, forward and backward, computed in blocks of rows that fit the cache."""

from __future__ import annotations

import numpy as np

from mesh.emulator.broadcast import Array
from mesh.emulator.data_movement import find_axis
from mesh.emulator.float32_extensions import require_dtype
from mesh.emulator.parallel import run_over_rows
from mesh.emulator.tensor import Tensor, check_shape, check_tiled, wrap_result
from mesh.emulator.types import FLOATING, WormholeComputeKernelConfig


def softmax(
    input_tensor: Tensor,
    dim: int = -1,
    *,
    numeric_stable: bool = True,
    compute_kernel_config: WormholeComputeKernelConfig | None = None,
) -> Tensor:
    """Return the softmax over `dim`; `numeric_stable` subtracts the maximum first.

    The operand is tiled, of a float dtype. Row-major operands are refused: ttnn accepts them for some ranks only.
    """
    check_tiled("softmax", input_tensor)
    axis = _axis("softmax", input_tensor, dim)
    x = _rows(input_tensor.array, axis)
    out = np.empty(x.shape, np.float32)
    ones = np.ones((x.shape[1], 1), np.float32)

    def compute(rows: slice) -> None:
        block = out[rows]
        if numeric_stable:
            np.subtract(x[rows], x[rows].max(axis=1, keepdims=True), out=block)
            np.exp(block, out=block)
        else:
            np.exp(x[rows], out=block)
        block *= np.reciprocal(np.matmul(block, ones))

    run_over_rows(compute, *x.shape)
    return wrap_result(input_tensor, _restore_shape(out, input_tensor.array.shape, axis))


def moreh_softmax_backward(
    output_tensor: Tensor,
    output_grad_tensor: Tensor,
    dim: int,
    *,
    compute_kernel_config: WormholeComputeKernelConfig | None = None,
) -> Tensor:
    """Return `y * (dy - sum(y * dy))` for the softmax y over a non-negative `dim`.

    Operands are tiled and bfloat16; float32 is accepted here too. Raises RuntimeError for different shapes, which
    ttnn doesn't check.
    """
    op = "moreh_softmax_backward"
    y, dy, shape, axis = _operands(op, output_tensor, output_grad_tensor, dim)
    out = np.empty(y.shape, np.float32)
    ones = np.ones((y.shape[1], 1), np.float32)

    def compute(rows: slice) -> None:
        block = out[rows]
        np.multiply(y[rows], dy[rows], out=block)
        weighted = np.matmul(block, ones)
        np.subtract(dy[rows], weighted, out=block)
        block *= y[rows]

    run_over_rows(compute, *y.shape)
    return wrap_result(output_tensor, _restore_shape(out, shape, axis))


def moreh_logsoftmax(
    input_tensor: Tensor, dim: int, *, compute_kernel_config: WormholeComputeKernelConfig | None = None
) -> Tensor:
    """Return the log-softmax over a non-negative `dim` of a tiled operand of a float dtype."""
    check_tiled("moreh_logsoftmax", input_tensor)
    _check_unsigned("moreh_logsoftmax", dim)
    axis = _axis("moreh_logsoftmax", input_tensor, dim)
    x = _rows(input_tensor.array, axis)
    out = np.empty(x.shape, np.float32)
    ones = np.ones((x.shape[1], 1), np.float32)

    def compute(rows: slice) -> None:
        block = out[rows]
        np.subtract(x[rows], x[rows].max(axis=1, keepdims=True), out=block)
        block -= np.log(np.matmul(np.exp(block), ones))

    run_over_rows(compute, *x.shape)
    return wrap_result(input_tensor, _restore_shape(out, input_tensor.array.shape, axis))


def moreh_logsoftmax_backward(output_tensor: Tensor, output_grad_tensor: Tensor, dim: int) -> Tensor:
    """Return `dy - exp(y) * sum(dy)` for the log-softmax y. Operands as for `moreh_softmax_backward`."""
    op = "moreh_logsoftmax_backward"
    y, dy, shape, axis = _operands(op, output_tensor, output_grad_tensor, dim)
    out = np.empty(y.shape, np.float32)
    ones = np.ones((y.shape[1], 1), np.float32)

    def compute(rows: slice) -> None:
        block = out[rows]
        np.exp(y[rows], out=block)
        block *= np.matmul(dy[rows], ones)
        np.subtract(dy[rows], block, out=block)

    run_over_rows(compute, *y.shape)
    return wrap_result(output_tensor, _restore_shape(out, shape, axis))


def _operands(op: str, output: Tensor, grad: Tensor, dim: int) -> tuple[Array, Array, tuple[int, ...], int]:
    """Return both operands as rows, with the shape and array axis to restore."""
    check_tiled(op, output, grad)
    _check_unsigned(op, dim)
    require_dtype(op, output.dtype)
    require_dtype(op, grad.dtype)
    axis = _axis(op, output, dim)
    check_shape(op, "output_grad_tensor", grad, output.array.shape[2:])
    y, dy = output.array, grad.array
    if y.shape != dy.shape:
        mesh = np.broadcast_shapes(y.shape[:2], dy.shape[:2])
        y = np.broadcast_to(y, (*mesh, *y.shape[2:]))
        dy = np.broadcast_to(dy, (*mesh, *dy.shape[2:]))
    return _rows(y, axis), _rows(dy, axis), y.shape, axis


def _check_unsigned(op: str, dim: int) -> None:
    if dim < 0:
        raise TypeError(f"{op}(): incompatible function arguments: dim {dim} is negative")


def _axis(op: str, tensor: Tensor, dim: int) -> int:
    """Return the array axis of `dim`. Raises RuntimeError for integers and for a dimension that doesn't exist."""
    if tensor.dtype not in FLOATING:
        raise RuntimeError(f"{op}: {tensor.dtype} operand, expected bfloat16 or float32")
    return find_axis(op, tensor, dim)


def _rows(array: Array, axis: int) -> Array:
    """Reshape to [rows, size of axis]; a view for the last axis, else a copy."""
    return array.swapaxes(axis, -1).reshape(-1, array.shape[axis])


def _restore_shape(rows: Array, shape: tuple[int, ...], axis: int) -> Array:
    """Restore `shape` from the rows of `axis`."""
    order = list(shape)
    order[axis], order[-1] = order[-1], order[axis]
    return rows.reshape(order).swapaxes(axis, -1)
