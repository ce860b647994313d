"""Functions of one operand, element by element, and the gradients that ttnn has for them. All compute in float32."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mesh.emulator.broadcast import Array, align
from mesh.emulator.parallel import run_over_rows
from mesh.emulator.tensor import Tensor, check, check_floating, note_scratch, wrap_result
from mesh.emulator.types import Layout

_ONE = np.float32(1)


def _logistic(x: Array, out: Array) -> None:
    """Store `1 / (1 + e**-x)` in `out`. The exponential overflows to infinity where the result is 0."""
    np.negative(x, out=out)
    np.exp(out, out=out)
    out += _ONE
    np.reciprocal(out, out=out)


def _by_blocks(function: Callable[..., object], *operands: Array) -> Array:
    """Apply `function`, which has several passes, to operands that broadcast, in blocks that fit the cache."""
    shape = np.broadcast_shapes(*(operand.shape for operand in operands))
    flat = [np.broadcast_to(operand, shape).reshape(-1) for operand in operands]
    out = np.empty(flat[0].size, np.float32)

    def compute(block: slice) -> None:
        function(*(one[block] for one in flat), out=out[block])

    run_over_rows(compute, out.size, 1)
    return out.reshape(shape)


def silu(input_tensor: Tensor) -> Tensor:
    """Return `a / (1 + e**-a)`."""
    return _apply("silu", _silu, input_tensor)


def _silu(x: Array, out: Array) -> None:
    _logistic(x, out)
    out *= x


def sigmoid(input_tensor: Tensor) -> Tensor:
    """Return `1 / (1 + e**-a)`."""
    return _apply("sigmoid", _logistic, input_tensor)


def relu(input_tensor: Tensor) -> Tensor:
    """Return `a` where it is positive, else 0, for all dtypes."""
    check("relu", input_tensor)
    return wrap_result(input_tensor, np.maximum(input_tensor.array, input_tensor.array.dtype.type(0)))


def tanh(input_tensor: Tensor) -> Tensor:
    """Return the hyperbolic tangent."""
    return _apply("tanh", np.tanh, input_tensor)


def sqrt(input_tensor: Tensor) -> Tensor:
    """Return the square root; NaN below 0."""
    return _apply("sqrt", np.sqrt, input_tensor)


def rsqrt(input_tensor: Tensor) -> Tensor:
    """Return `1 / sqrt(a)`; infinity at 0, NaN below."""
    return _apply("rsqrt", _rsqrt, input_tensor)


def _rsqrt(x: Array, out: Array) -> None:
    np.sqrt(x, out=out)
    np.reciprocal(out, out=out)


def reciprocal(input_tensor: Tensor) -> Tensor:
    """Return `1 / a`; infinity at 0."""
    return _apply("reciprocal", np.reciprocal, input_tensor)


def log(input_tensor: Tensor) -> Tensor:
    """Return the natural logarithm; minus infinity at 0, NaN below."""
    return _apply("log", np.log, input_tensor)


def _apply(op: str, function: Callable[..., object], tensor: Tensor) -> Tensor:
    check_floating(op, tensor)
    return wrap_result(tensor, _by_blocks(function, tensor.array))


def silu_bw(grad_tensor: Tensor, input_tensor: Tensor) -> list[Tensor]:
    """Return [dx] of `silu`, with the operand's dtype and layout. The gradient may broadcast to the operand."""
    check_floating("silu_bw", grad_tensor, input_tensor)
    if {grad_tensor.layout, input_tensor.layout} == {Layout.ROW_MAJOR}:
        raise RuntimeError("silu_bw: Optional output tensor with Row Major input is not supported right now")
    x, dy = _broadcast_pair("silu_bw", input_tensor, grad_tensor)
    if np.broadcast_shapes(x.shape[2:], dy.shape[2:]) != input_tensor.array.shape[2:]:
        raise RuntimeError(f"silu_bw: gradient of shape {grad_tensor.shape} for {input_tensor.shape}")
    result = wrap_result(input_tensor, _by_blocks(_silu_gradient, dy, x))
    note_scratch(result, 5)
    return [result]


def _silu_gradient(dy: Array, x: Array, out: Array) -> None:
    phi = np.empty_like(out)
    _logistic(x, phi)
    np.subtract(_ONE, phi, out=out)
    out *= x
    out += _ONE
    out *= phi
    out *= dy


def relu_bw(grad_tensor: Tensor, input_tensor: Tensor) -> list[Tensor]:
    """Return [dx] of `relu`: dy where the operand is positive, else 0. Operands broadcast, and have one dtype."""
    check_floating("relu_bw", grad_tensor, input_tensor)
    if grad_tensor.dtype is not input_tensor.dtype:
        raise RuntimeError(
            f"relu_bw: Mixed dtype is not supported: {grad_tensor.dtype} and {input_tensor.dtype}"
        )
    x, dy = _broadcast_pair("relu_bw", input_tensor, grad_tensor)
    tiled = Layout.TILE in (grad_tensor.layout, input_tensor.layout)
    layout = Layout.TILE if tiled else Layout.ROW_MAJOR
    result = wrap_result(input_tensor, np.multiply(dy, x > 0, dtype=np.float32), layout=layout)
    note_scratch(result, 1)
    return [result]


def sigmoid_bw(grad_tensor: Tensor, input_tensor: Tensor) -> list[Tensor]:
    """Return [dx] of `sigmoid`, in the operand's dtype. Shapes and layouts must be equal."""
    x, dy = _equal_pair("sigmoid_bw", grad_tensor, input_tensor)
    return [wrap_result(input_tensor, _by_blocks(_sigmoid_gradient, dy, x))]


def _sigmoid_gradient(dy: Array, x: Array, out: Array) -> None:
    phi = np.empty_like(out)
    _logistic(x, phi)
    np.subtract(_ONE, phi, out=out)
    out *= phi
    out *= dy


def tanh_bw(grad_tensor: Tensor, input_tensor: Tensor) -> list[Tensor]:
    """Return [dx] of `tanh`, in the operand's dtype. Shapes and layouts must be equal."""
    x, dy = _equal_pair("tanh_bw", grad_tensor, input_tensor)
    return [wrap_result(input_tensor, _by_blocks(_tanh_gradient, dy, x))]


def _tanh_gradient(dy: Array, x: Array, out: Array) -> None:
    # 4 s (1 - s) with s = 1 / (1 + e**-2x) stays accurate where 1 - tanh(x)**2 cancels.
    other = np.empty_like(out)
    _logistic(x + x, out)
    _logistic(np.multiply(x, np.float32(-2)), other)
    out *= other
    out *= np.float32(4)
    out *= dy


def _broadcast_pair(op: str, operand: Tensor, gradient: Tensor) -> tuple[Array, Array]:
    x, dy = align(operand.array, gradient.array)
    for size, other in zip(x.shape[2:], dy.shape[2:], strict=True):
        if size != other and size != 1 and other != 1:
            raise RuntimeError(f"{op}: Invalid subtile broadcast type: {operand.shape} and {gradient.shape}")
    return x, dy


def _equal_pair(op: str, gradient: Tensor, operand: Tensor) -> tuple[Array, Array]:
    check_floating(op, gradient, operand)
    if gradient.array.shape[2:] != operand.array.shape[2:] or gradient.layout is not operand.layout:
        raise RuntimeError(
            f"{op}: gradient {gradient.shape} in {gradient.layout}, expected {operand.shape} in {operand.layout}"
        )
    return operand.array, gradient.array
