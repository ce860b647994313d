"""GELU and its gradient, exact and in the tanh approximation, computed in blocks that fit into the cache.

Both variants are `x * Phi(x)` with `Phi(x) = 1 / (1 + exp(q(x)))`. For the tanh variant, q is the usual cubic. For the
exact one, q(x) = log(Phi(-x) / Phi(x)), which is odd and smooth. It is approximated by x times a polynomial of degree 6
in x**2, fitted to the normal distribution function by weighted least squares. The error of Phi is below 1.6e-7, about
the resolution of float32. The forward pass keeps Phi with its operand, so the gradient doesn't compute it again.
"""

from __future__ import annotations

import numpy as np

from mesh.emulator.broadcast import Array
from mesh.emulator.parallel import apply_elementwise, run_over_rows
from mesh.emulator.tensor import Tensor, check, wrap_result
from mesh.emulator.types import FLOATING, GeluVariant

_EXACT = tuple(
    np.float32(c)
    for c in (
        -3.61889470e-09,
        2.67301026e-07,
        -7.94634203e-06,
        1.10556723e-04,
        6.59066772e-05,
        -7.26678187e-02,
        -1.59576899,
    )
)
"""Coefficients of q(x) / x as a polynomial in x**2, highest power first."""

_TANH_SCALE = -1.5957691216057308  # -2 * sqrt(2 / pi)
_TANH = (np.float32(_TANH_SCALE * 0.044715), np.float32(_TANH_SCALE))
_DENSITY = np.float32(0.3989422804014327)  # 1 / sqrt(2 * pi)


def gelu(input_tensor: Tensor, *, variant: GeluVariant = GeluVariant.Accurate) -> Tensor:
    """Return `x * Phi(x)`, where Phi is the normal distribution function, or its tanh approximation.

    Accepts bfloat16 and float32 in any layout. The result has the operand's dtype and layout.
    """
    _check("gelu", input_tensor)
    x = input_tensor.array
    phi = _distribution(x, variant)
    input_tensor.derived = (variant, phi)
    return wrap_result(input_tensor, apply_elementwise(np.multiply, x, phi, dtype=np.float32))


def gelu_bw(
    grad_tensor: Tensor, input_tensor: Tensor, *, variant: GeluVariant = GeluVariant.Accurate
) -> list[Tensor]:
    """Return [dx] with dx = `dy * (Phi(x) + x * Phi'(x))`.

    Accepts bfloat16 and float32. Raises RuntimeError unless shapes and layouts are equal.
    """
    _check("gelu_bw", grad_tensor)
    _check("gelu_bw", input_tensor)
    if grad_tensor.layout is not input_tensor.layout:
        raise RuntimeError(f"gelu_bw: gradient in {grad_tensor.layout}, expected {input_tensor.layout}")
    if grad_tensor.array.shape[2:] != input_tensor.array.shape[2:]:
        raise RuntimeError(f"gelu_bw: gradient of shape {grad_tensor.shape}, expected {input_tensor.shape}")
    x, dy = input_tensor.array, grad_tensor.array
    kept, input_tensor.derived = input_tensor.derived, None
    phi = kept[1] if kept is not None and kept[0] is variant else _distribution(x, variant)
    if x.shape != dy.shape:
        mesh = np.broadcast_shapes(x.shape[:2], dy.shape[:2])
        x, phi, dy = (np.broadcast_to(array, (*mesh, *array.shape[2:])) for array in (x, phi, dy))
    return [wrap_result(input_tensor, _gradient(dy, x, phi, variant))]


def _check(op: str, tensor: Tensor) -> None:
    check(op, tensor)
    if tensor.dtype not in FLOATING:
        raise RuntimeError(f"{op}: {tensor.dtype} operand, expected bfloat16 or float32")


def _distribution(x: Array, variant: GeluVariant) -> Array:
    flat = x.reshape(-1)
    out = np.empty(flat.shape, np.float32)
    first, second, *rest = _EXACT if variant is GeluVariant.Accurate else _TANH

    def compute(block: slice) -> None:
        q = out[block]
        square = np.square(flat[block])
        np.multiply(square, first, out=q)
        q += second
        for coefficient in rest:
            q *= square
            q += coefficient
        q *= flat[block]
        np.exp(q, out=q)  # Overflows to infinity where Phi is 0.
        q += np.float32(1)
        np.reciprocal(q, out=q)

    run_over_rows(compute, flat.size, 1)
    return out.reshape(x.shape)


def _gradient(dy: Array, x: Array, phi: Array, variant: GeluVariant) -> Array:
    flat, distribution, grad = x.reshape(-1), phi.reshape(-1), dy.reshape(-1)
    out = np.empty(flat.shape, np.float32)

    def compute(block: slice) -> None:
        slope = out[block]
        np.multiply(flat[block], flat[block], out=slope)
        if variant is GeluVariant.Accurate:
            slope *= np.float32(-0.5)
            np.exp(slope, out=slope)
            slope *= _DENSITY
        else:
            # Phi' = Phi (1 - Phi) * -q'
            slope *= np.float32(-3) * _TANH[0]
            slope -= _TANH[1]
            factor = np.subtract(np.float32(1), distribution[block])
            factor *= distribution[block]
            slope *= factor
        slope *= flat[block]
        slope += distribution[block]
        slope *= grad[block]

    run_over_rows(compute, flat.size, 1)
    return out.reshape(x.shape)
