"""Functions of one operand, element by element, and the gradients that ttnn has of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mesh.emulator.broadcast import Array, align
from mesh.emulator.parallel import over_rows
from mesh.emulator.tensor import Tensor, check, check_floating, result
from mesh.emulator.types import Layout

_ONE = np.float32(1)


def _logistic(x: Array, out: Array) -> None:
    """`1 / (1 + e**-x)`; the exponential overflows to infinity where that is 0."""
    np.negative(x, out=out)
    np.exp(out, out=out)
    out += _ONE
    np.reciprocal(out, out=out)


def _by_blocks(function: Callable[..., object], *operands: Array) -> Array:
    """What `function` puts into `out` of operands that broadcast, block by block: its passes find them in the cache."""
    shape = np.broadcast_shapes(*(operand.shape for operand in operands))
    flat = [np.broadcast_to(operand, shape).reshape(-1) for operand in operands]
    out = np.empty(flat[0].size, np.float32)

    def compute(block: slice) -> None:
        function(*(one[block] for one in flat), out=out[block])

    over_rows(compute, out.size, 1)
    return out.reshape(shape)


def silu(input_tensor: Tensor) -> Tensor:
    """`a / (1 + e**-a)`."""
    return _applied("silu", _silu, input_tensor)


def _silu(x: Array, out: Array) -> None:
    _logistic(x, out)
    out *= x


def sigmoid(input_tensor: Tensor) -> Tensor:
    """`1 / (1 + e**-a)`."""
    return _applied("sigmoid", _logistic, input_tensor)


def relu(input_tensor: Tensor) -> Tensor:
    """`a` where it is positive, else 0; integers too."""
    check("relu", input_tensor)
    return result(input_tensor, np.maximum(input_tensor.array, input_tensor.array.dtype.type(0)))


def tanh(input_tensor: Tensor) -> Tensor:
    """The hyperbolic tangent."""
    return _applied("tanh", np.tanh, input_tensor)


def sqrt(input_tensor: Tensor) -> Tensor:
    """The square root, NaN below 0."""
    return _applied("sqrt", np.sqrt, input_tensor)


def rsqrt(input_tensor: Tensor) -> Tensor:
    """1 / the square root, infinity at 0, NaN below."""
    return _applied("rsqrt", _rsqrt, input_tensor)


def _rsqrt(x: Array, out: Array) -> None:
    np.sqrt(x, out=out)
    np.reciprocal(out, out=out)


def reciprocal(input_tensor: Tensor) -> Tensor:
    """`1 / a`, infinity at 0."""
    return _applied("reciprocal", np.reciprocal, input_tensor)


def log(input_tensor: Tensor) -> Tensor:
    """The natural logarithm, minus infinity at 0, NaN below."""
    return _applied("log", np.log, input_tensor)


def _applied(op: str, function: Callable[..., object], tensor: Tensor) -> Tensor:
    check_floating(op, tensor)
    return result(tensor, _by_blocks(function, tensor.array))


def silu_bw(grad_tensor: Tensor, input_tensor: Tensor) -> list[Tensor]:
    """[dx] of `silu`; the gradient may be broadcast to the operand, whose dtype and layout the result has."""
    check_floating("silu_bw", grad_tensor, input_tensor)
    if {grad_tensor.layout, input_tensor.layout} == {Layout.ROW_MAJOR}:
        raise RuntimeError("silu_bw: Optional output tensor with Row Major input is not supported right now")
    x, dy = _meeting("silu_bw", input_tensor, grad_tensor)
    if np.broadcast_shapes(x.shape[2:], dy.shape[2:]) != input_tensor.array.shape[2:]:
        raise RuntimeError(f"silu_bw: gradient of shape {grad_tensor.shape} for {input_tensor.shape}")
    return [result(input_tensor, _by_blocks(_silu_gradient, dy, x))]


def _silu_gradient(dy: Array, x: Array, out: Array) -> None:
    phi = np.empty_like(out)
    _logistic(x, phi)
    np.subtract(_ONE, phi, out=out)
    out *= x
    out += _ONE
    out *= phi
    out *= dy


def relu_bw(grad_tensor: Tensor, input_tensor: Tensor) -> list[Tensor]:
    """[dx] of `relu`, dy where the operand is positive, else 0; broadcast, dtypes equal."""
    check_floating("relu_bw", grad_tensor, input_tensor)
    if grad_tensor.dtype is not input_tensor.dtype:
        raise RuntimeError(
            f"relu_bw: Mixed dtype is not supported: {grad_tensor.dtype} and {input_tensor.dtype}"
        )
    x, dy = _meeting("relu_bw", input_tensor, grad_tensor)
    tiled = Layout.TILE in (grad_tensor.layout, input_tensor.layout)
    layout = Layout.TILE if tiled else Layout.ROW_MAJOR
    return [result(input_tensor, np.multiply(dy, x > 0, dtype=np.float32), layout=layout)]


def sigmoid_bw(grad_tensor: Tensor, input_tensor: Tensor) -> list[Tensor]:
    """[dx] of `sigmoid`, shapes and layouts equal; the operand's dtype."""
    x, dy = _alike("sigmoid_bw", grad_tensor, input_tensor)
    return [result(input_tensor, _by_blocks(_sigmoid_gradient, dy, x))]


def _sigmoid_gradient(dy: Array, x: Array, out: Array) -> None:
    phi = np.empty_like(out)
    _logistic(x, phi)
    np.subtract(_ONE, phi, out=out)
    out *= phi
    out *= dy


def tanh_bw(grad_tensor: Tensor, input_tensor: Tensor) -> list[Tensor]:
    """[dx] of `tanh`, shapes and layouts equal; the operand's dtype."""
    x, dy = _alike("tanh_bw", grad_tensor, input_tensor)
    return [result(input_tensor, _by_blocks(_tanh_gradient, dy, x))]


def _tanh_gradient(dy: Array, x: Array, out: Array) -> None:
    # 4 s (1 - s) with s = 1 / (1 + e**-2x) keeps its digits where 1 - tanh(x)**2 cancels.
    other = np.empty_like(out)
    _logistic(x + x, out)
    _logistic(np.multiply(x, np.float32(-2)), other)
    out *= other
    out *= np.float32(4)
    out *= dy


def _meeting(op: str, operand: Tensor, gradient: Tensor) -> tuple[Array, Array]:
    x, dy = align(operand.array, gradient.array)
    for size, other in zip(x.shape[2:], dy.shape[2:], strict=True):
        if size != other and size != 1 and other != 1:
            raise RuntimeError(f"{op}: Invalid subtile broadcast type: {operand.shape} and {gradient.shape}")
    return x, dy


def _alike(op: str, gradient: Tensor, operand: Tensor) -> tuple[Array, Array]:
    check_floating(op, gradient, operand)
    if gradient.array.shape[2:] != operand.array.shape[2:] or gradient.layout is not operand.layout:
        raise RuntimeError(
            f"{op}: gradient {gradient.shape} in {gradient.layout}, expected {operand.shape} in {operand.layout}"
        )
    return operand.array, gradient.array
