"""Numerics cases of element-wise ops."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.support.numerics.numeric_case import (
    Array,
    Case,
    Draw,
    Drawn,
    Operand,
    alike,
    broadcasting,
    draw_broadcast,
    draw_shape,
    one,
)

_NEAR = 4e-7
"""Tolerance of a few roundings in float32."""

_erfc = np.vectorize(math.erfc, otypes=[np.float64])


def sigmoid(x: Array) -> Array:
    """Return 1 / (1 + exp(-x)), computed without cancellation."""
    small = np.exp(-np.abs(x))
    result: Array = np.where(x < 0, small, 1.0) / (1 + small)
    return result


def silu(x: Array) -> Array:
    """Return x * sigmoid(x), which is -0 far below 0."""
    return np.where(np.isneginf(x), np.nan, x * sigmoid(x))


def gelu(x: Array) -> Array:
    """Return x times the normal distribution function."""
    result: Array = x * 0.5 * _erfc(-x / math.sqrt(2))
    return result


def gelu_tanh(x: Array) -> Array:
    """Return the tanh approximation of gelu."""
    return x * sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


def _unary(op: str, reference: Callable[[Array], Array], tolerance: float, values: str = "points") -> Case:
    def call(tt: Any, device: Any, x: Any) -> Any:
        return getattr(tt, op)(x)

    return Case(op, one(values), call, reference, tolerance)


def _binary(op: str, reference: Callable[..., Array], values: str = "points") -> list[Case]:
    def call(tt: Any, device: Any, a: Any, b: Any) -> Any:
        return getattr(tt, op)(a, b)

    def call_scalar(tt: Any, device: Any, a: Any, *, scalar: float) -> Any:
        return getattr(tt, op)(a, scalar)

    def draw_scalar(draw: Draw) -> Drawn:
        scalar = draw(st.sampled_from([0.0, 1.0, -2.5, 2.0**-10, 3, -1e9]))
        return Drawn((Operand(draw_shape(draw), values),), {"scalar": scalar})

    def scalar_reference(a: Array, *, scalar: float) -> Array:
        return reference(a, scalar)

    # A float64 sum or product of float32 values, rounded to float32, has the bits of the float32 one.
    return [
        Case(op, broadcasting(values), call, reference),
        Case(op, draw_scalar, call_scalar, scalar_reference, name="with a number"),
    ]


def _comparison(op: str, reference: Callable[..., Array]) -> list[Case]:
    return _binary(op, lambda a, b: reference(a, b).astype(np.float32), "few")


def _gelu(variant: str, reference: Callable[[Array], Array]) -> Case:
    def call(tt: Any, device: Any, x: Any) -> Any:
        return tt.gelu(x, variant=getattr(tt.GeluVariant, variant))

    # Far below 0, the error is bounded by 2e-7 times x: float32 has few digits of the small probability.
    return Case("gelu", one(), call, reference, 2e-7, magnitude=lambda x: 1 + np.abs(x), name=variant)


def _draw_where(draw: Draw) -> Drawn:
    shape = draw_shape(draw)
    predicate = draw_broadcast(draw, shape)
    return Drawn((Operand(predicate, "few"), Operand(shape), Operand(draw_broadcast(draw, shape))))


def _where_number(tt: Any, device: Any, predicate: Any, a: Any) -> Any:
    return tt.where(predicate, a, -2.5)


def _cast(tt: Any, device: Any, x: Any, *, to: str) -> Any:
    return tt.typecast(x, getattr(tt, to))


def _draw_cast(draw: Draw) -> Drawn:
    return Drawn(
        (Operand(draw_shape(draw), "positive"),),
        {"to": draw(st.sampled_from(["float32", "uint32", "int32"]))},
    )


def _cast_reference(x: Array, *, to: str) -> Array:
    kind = {"float32": np.float32, "uint32": np.uint32, "int32": np.int32}[to]
    return np.trunc(x).astype(kind) if to != "float32" else x


def _cast_up(tt: Any, device: Any, x: Any) -> Any:
    return tt.typecast(x, tt.float32)


CASES = [
    *_binary("add", np.add),
    *_binary("subtract", np.subtract),
    *_binary("multiply", np.multiply),
    *_comparison("eq", np.equal),
    *_comparison("ge", np.greater_equal),
    *_comparison("lt", np.less),
    Case(
        "where",
        _draw_where,
        lambda tt, device, p, a, b: tt.where(p, a, b),
        lambda p, a, b: np.where(p != 0, a, b),
    ),
    Case(
        "where",
        alike(2, ["few", "points"]),
        _where_number,
        lambda p, a: np.where(p != 0, a, -2.5),
        name="number",
    ),
    _unary("neg", np.negative, 0),
    _unary("exp", np.exp, _NEAR),
    _unary("log", np.log, _NEAR),
    _unary("reciprocal", np.reciprocal, _NEAR),
    _unary("relu", lambda x: np.maximum(x, 0), _NEAR),
    _unary("rsqrt", lambda x: 1 / np.sqrt(x), _NEAR),
    _unary("sigmoid", sigmoid, _NEAR),
    _unary("silu", silu, _NEAR),
    _unary("sqrt", np.sqrt, _NEAR),
    _unary("square", np.square, _NEAR),
    _unary("tanh", np.tanh, _NEAR),
    _gelu("Accurate", gelu),
    _gelu("Tanh", gelu_tanh),
    Case("typecast", _draw_cast, _cast, _cast_reference, name="of floats", rounds=False),
    Case(
        "typecast",
        lambda draw: Drawn((Operand(draw_shape(draw), "indices", below=1 << 24),)),
        _cast_up,
        lambda x: x,
        name="of integers",
        rounds=False,
    ),
]
