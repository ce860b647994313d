"""Softmax and log-softmax over the last dimension, forward and backward, blocked by rows to stay in the cache."""

from __future__ import annotations

import numpy as np

from mesh.emulator.broadcast import Array
from mesh.emulator.parallel import over_rows
from mesh.emulator.tensor import Tensor, check, check_shape, check_tiled, result
from mesh.emulator.types import FLOATING, Layout, WormholeComputeKernelConfig
from mesh.emulator.widened import require_dtype


def softmax(
    input_tensor: Tensor,
    dim: int = -1,
    *,
    numeric_stable: bool = True,
    compute_kernel_config: WormholeComputeKernelConfig | None = None,
) -> Tensor:
    """Softmax over the last dimension; with `numeric_stable` the largest of a row is subtracted first.

    In tile layout. Raises RuntimeError for integers.
    """
    check("softmax", input_tensor)
    _check_dim("softmax", input_tensor, dim % max(1, input_tensor.array.ndim - 2))
    x = _rows(input_tensor.array)
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

    over_rows(compute, *x.shape)
    return result(input_tensor, out.reshape(input_tensor.array.shape), layout=Layout.TILE)


def moreh_softmax_backward(
    output_tensor: Tensor,
    output_grad_tensor: Tensor,
    dim: int,
    *,
    compute_kernel_config: WormholeComputeKernelConfig | None = None,
) -> Tensor:
    """`y * (dy - sum(y * dy))`, y the softmax. Shapes must be equal (ttnn doesn't look; here RuntimeError)."""
    op = "moreh_softmax_backward"
    y, dy = _operands(op, output_tensor, output_grad_tensor, dim)
    out = np.empty(y.shape, np.float32)
    ones = np.ones((y.shape[1], 1), np.float32)

    def compute(rows: slice) -> None:
        block = out[rows]
        np.multiply(y[rows], dy[rows], out=block)
        weighted = np.matmul(block, ones)
        np.subtract(dy[rows], weighted, out=block)
        block *= y[rows]

    over_rows(compute, *y.shape)
    return result(output_tensor, _unflatten(out, output_tensor, output_grad_tensor))


def moreh_logsoftmax(
    input_tensor: Tensor, dim: int, *, compute_kernel_config: WormholeComputeKernelConfig | None = None
) -> Tensor:
    """Log-softmax over the last dimension."""
    check_tiled("moreh_logsoftmax", input_tensor)
    _check_unsigned("moreh_logsoftmax", dim)
    _check_dim("moreh_logsoftmax", input_tensor, dim)
    x = _rows(input_tensor.array)
    out = np.empty(x.shape, np.float32)
    ones = np.ones((x.shape[1], 1), np.float32)

    def compute(rows: slice) -> None:
        block = out[rows]
        np.subtract(x[rows], x[rows].max(axis=1, keepdims=True), out=block)
        block -= np.log(np.matmul(np.exp(block), ones))

    over_rows(compute, *x.shape)
    return result(input_tensor, out.reshape(input_tensor.array.shape))


def moreh_logsoftmax_backward(output_tensor: Tensor, output_grad_tensor: Tensor, dim: int) -> Tensor:
    """`dy - exp(y) * sum(dy)`, y the log-softmax. Shapes must be equal (ttnn doesn't look; here RuntimeError)."""
    op = "moreh_logsoftmax_backward"
    y, dy = _operands(op, output_tensor, output_grad_tensor, dim)
    out = np.empty(y.shape, np.float32)
    ones = np.ones((y.shape[1], 1), np.float32)

    def compute(rows: slice) -> None:
        block = out[rows]
        np.exp(y[rows], out=block)
        block *= np.matmul(dy[rows], ones)
        np.subtract(dy[rows], block, out=block)

    over_rows(compute, *y.shape)
    return result(output_tensor, _unflatten(out, output_tensor, output_grad_tensor))


def _operands(op: str, output: Tensor, grad: Tensor, dim: int) -> tuple[Array, Array]:
    check_tiled(op, output, grad)
    _check_unsigned(op, dim)
    require_dtype(op, output.dtype)
    require_dtype(op, grad.dtype)
    _check_dim(op, output, dim)
    check_shape(op, "output_grad_tensor", grad, output.array.shape[2:])
    y, dy = output.array, grad.array
    if y.shape != dy.shape:
        mesh = np.broadcast_shapes(y.shape[:2], dy.shape[:2])
        y = np.broadcast_to(y, (*mesh, *y.shape[2:]))
        dy = np.broadcast_to(dy, (*mesh, *dy.shape[2:]))
    return _rows(y), _rows(dy)


def _check_unsigned(op: str, dim: int) -> None:
    if dim < 0:
        raise TypeError(f"{op}(): incompatible function arguments: dim {dim} is negative")


def _check_dim(op: str, tensor: Tensor, dim: int) -> None:
    rank = tensor.array.ndim - 2
    if tensor.dtype not in FLOATING:
        raise RuntimeError(f"{op}: {tensor.dtype} operand, expected bfloat16 or float32")
    if dim != rank - 1:
        raise RuntimeError(f"{op}: dimension {dim} of {rank}, the emulator has the last one only")


def _rows(array: Array) -> Array:
    return array.reshape(-1, array.shape[-1])


def _unflatten(rows: Array, output: Tensor, grad: Tensor) -> Array:
    return rows.reshape(
        *np.broadcast_shapes(output.array.shape[:2], grad.array.shape[:2]), *output.array.shape[2:]
    )
