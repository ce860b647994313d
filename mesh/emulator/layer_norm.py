"""Layer normalisation over the last dimension, forward and backward, computed in blocks of rows that fit the cache."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mesh.emulator.broadcast import Array, apply_per_chip
from mesh.emulator.float32_extensions import require_dtype
from mesh.emulator.parallel import run, run_over_rows, split_rows
from mesh.emulator.tensor import Tensor, check_shape, check_tiled, fill, wrap_result
from mesh.emulator.types import WormholeComputeKernelConfig


def moreh_layer_norm(
    input: Tensor,
    normalized_dims: int,
    eps: float = 1e-5,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    mean: Tensor | None = None,
    rstd: Tensor | None = None,
    compute_kernel_config: WormholeComputeKernelConfig | None = None,
) -> list[Tensor | None]:
    """Normalise the last dimension; return [y, mean, rstd].

    All tensors are tiled and bfloat16; float32 is accepted here too. `mean` and `rstd` are pre-allocated outputs of
    the operand's shape without its last dimension, and are None otherwise. `gamma` and `beta` are [E] or [1, E].
    RuntimeError is raised for other sizes, which ttnn doesn't check.
    """
    op = "moreh_layer_norm"
    operands = [tensor for tensor in (gamma, beta, mean, rstd) if tensor is not None]
    _check(op, normalized_dims, input, operands)
    for name, tensor in (("gamma", gamma), ("beta", beta)):
        _check_scale(op, name, tensor, input)
    outputs = [("mean", mean), ("rstd", rstd)]
    for name, output in outputs:
        if output is not None:
            check_shape(op, f"{name} must have logical shape", output, input.array.shape[2:-1])

    def rows(x: Array, scale: Array | None, offset: Array | None) -> Sequence[Array]:
        return _forward(x, scale, offset, eps)

    y, means, rstds = apply_per_chip(rows, input.array, _array(gamma), _array(beta))
    return [
        wrap_result(input, y),
        None if mean is None else fill(mean, means, op),
        None if rstd is None else fill(rstd, rstds, op),
    ]


def moreh_layer_norm_backward(
    output_grad: Tensor,
    input: Tensor,
    mean: Tensor,
    rstd: Tensor,
    normalized_dims: int,
    *,
    gamma: Tensor | None = None,
    input_grad: Tensor | None = None,
    gamma_grad: Tensor | None = None,
    beta_grad: Tensor | None = None,
    compute_kernel_config: WormholeComputeKernelConfig | None = None,
) -> list[Tensor | None]:
    """Return the gradients [dx, dgamma, dbeta] that are pre-allocated, None for the others.

    Operands are tiled, as for `moreh_layer_norm`. Raises RuntimeError without any pre-allocated output: ttnn would
    compute nothing.
    """
    op = "moreh_layer_norm_backward"
    operands = [tensor for tensor in (gamma, input_grad, gamma_grad, beta_grad) if tensor is not None]
    _check(op, normalized_dims, input, [output_grad, mean, rstd, *operands])
    check_shape(op, "output_grad", output_grad, input.array.shape[2:])
    for name, tensor in (("mean", mean), ("rstd", rstd)):
        check_shape(op, name, tensor, input.array.shape[2:-1])
    for name, scale in (("gamma", gamma), ("gamma_grad", gamma_grad), ("beta_grad", beta_grad)):
        _check_scale(op, name, scale, input)
    if input_grad is None and gamma_grad is None and beta_grad is None:
        raise RuntimeError(f"{op}: no output is pre-allocated; ttnn would compute nothing")
    dx, dgamma, dbeta = apply_per_chip(
        _backward, output_grad.array, input.array, mean.array, rstd.array, _array(gamma)
    )
    outputs: list[Tensor | None] = []
    for output, computed in ((input_grad, dx), (gamma_grad, dgamma), (beta_grad, dbeta)):
        if output is None:
            outputs.append(None)
        else:
            shape = computed.shape if output is input_grad else (*computed.shape[:2], *output.array.shape[2:])
            outputs.append(fill(output, computed.reshape(shape), op))
    return outputs


def _array(tensor: Tensor | None) -> Array | None:
    return None if tensor is None else tensor.array


def _check(op: str, normalized_dims: int, operand: Tensor, others: list[Tensor]) -> None:
    check_tiled(op, operand, *others)
    for tensor in (operand, *others):
        require_dtype(op, tensor.dtype)
    if normalized_dims != 1:
        raise RuntimeError(f"{op}: normalized_dims {normalized_dims}, expected 1: the emulator has no others")


def _check_scale(op: str, name: str, tensor: Tensor | None, operand: Tensor) -> None:
    if tensor is None:
        return
    width = operand.array.shape[-1]
    if tensor.array.shape[2:] not in ((width,), (1, width)):
        raise RuntimeError(f"{op}: {name} must have logical shape Shape([1, {width}]). Got {tensor.shape}")


def _forward(x: Array, gamma: Array | None, beta: Array | None, eps: float) -> tuple[Array, Array, Array]:
    """Return output, mean and reciprocal standard deviation of the rows of x [..., E]."""
    width = x.shape[-1]
    flat = x.reshape(-1, width)
    rows = flat.shape[0]
    y = np.empty((rows, width), np.float32)
    mean = np.empty((rows, 1), np.float32)
    rstd = np.empty((rows, 1), np.float32)
    averaging = np.full((width, 1), 1.0 / width, np.float32)

    def compute(block: slice) -> None:
        out = y[block]
        np.matmul(flat[block], averaging, out=mean[block])
        np.subtract(flat[block], mean[block], out=out)
        deviation = rstd[block]
        np.matmul(np.square(out), averaging, out=deviation)
        deviation += np.float32(eps)
        np.sqrt(deviation, out=deviation)
        np.reciprocal(deviation, out=deviation)
        out *= deviation
        if gamma is not None:
            out *= gamma.reshape(1, width)
        if beta is not None:
            out += beta.reshape(1, width)

    run_over_rows(compute, rows, width)
    return y.reshape(x.shape), mean.reshape(x.shape[:-1]), rstd.reshape(x.shape[:-1])


def _backward(
    dy: Array, x: Array, mean: Array, rstd: Array, gamma: Array | None
) -> tuple[Array, Array, Array]:
    """Return the gradients of x [..., E], gamma [E] and beta [E]."""
    width = x.shape[-1]
    flat, grad = x.reshape(-1, width), dy.reshape(-1, width)
    rows = flat.shape[0]
    mean, rstd = mean.reshape(rows, 1), rstd.reshape(rows, 1)
    scale = np.ones(width, np.float32) if gamma is None else gamma.reshape(width)
    averaging = (scale * np.float32(1.0 / width)).reshape(width, 1)
    ones = np.ones(rows, np.float32)
    dx = np.empty((rows, width), np.float32)
    blocks = split_rows(rows, width)
    dgamma = np.empty((len(blocks), width), np.float32)
    dbeta = np.empty((len(blocks), width), np.float32)

    def compute(index: int) -> None:
        block = blocks[index]
        normal = flat[block] - mean[block]
        normal *= rstd[block]
        out = dx[block]
        np.multiply(grad[block], normal, out=out)
        np.matmul(ones[: len(out)], out, out=dgamma[index])
        np.matmul(ones[: len(out)], grad[block], out=dbeta[index])
        normal *= np.matmul(out, averaging)
        np.multiply(grad[block], scale, out=out)
        out -= normal
        out -= np.matmul(grad[block], averaging)
        out *= rstd[block]

    run(compute, len(blocks))
    return dx.reshape(x.shape), dgamma.sum(axis=0), dbeta.sum(axis=0)
