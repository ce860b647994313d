"""Numerics cases of ops that combine elements: products, reductions, normalisation, softmax, lookups."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.support.numerics.numeric_case import FEW, SIZES, Array, Case, Draw, Drawn, Operand, draw_shape

EPSILON = 1e-5
_NEAR = 1e-6


# References -----------------------------------------------------------------------------------------------------------


def softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(-1, keepdims=True))
    result: Array = powers / powers.sum(-1, keepdims=True)
    return result


def logsoftmax(x: Array) -> Array:
    shifted = x - x.max(-1, keepdims=True)
    result: Array = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return result


def layer_norm(x: Array, gamma: Array, beta: Array) -> tuple[Array, Array, Array]:
    """Return output, mean and reciprocal deviation of the rows of the last dimension."""
    mean = x.mean(-1, keepdims=True)
    rstd = 1 / np.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + EPSILON)
    return (x - mean) * rstd * gamma + beta, mean[..., 0], rstd[..., 0]


def _norm_terms(x: Array, gamma: Array, beta: Array, *outputs: Array) -> tuple[Array, Array, Array]:
    _, _, rstd = layer_norm(x, gamma, beta)
    largest = np.abs(x).max(-1)
    spread = largest * rstd
    return spread[..., None] * np.abs(gamma) + np.abs(beta), largest, rstd * spread


def rms_norm(x: Array, weight: Array | float = 1.0) -> Array:
    """Return rows of the last dimension, scaled to a mean square of 1."""
    result: Array = x / np.sqrt((x**2).mean(-1, keepdims=True) + EPSILON) * weight
    return result


# Products -------------------------------------------------------------------------------------------------------------


def _draw_product(draw: Draw) -> Drawn:
    batch = tuple(draw(FEW) for _ in range(draw(st.integers(0, 2))))
    rows, inner, columns = draw(SIZES), draw(SIZES), draw(SIZES)
    left, right = draw(st.sampled_from([(batch, batch), (batch, ()), ((1,) * len(batch), batch)]))
    transpose_a, transpose_b = draw(st.booleans()), draw(st.booleans())
    a = (inner, rows) if transpose_a else (rows, inner)
    b = (columns, inner) if transpose_b else (inner, columns)
    options = {"transpose_a": transpose_a, "transpose_b": transpose_b}
    return Drawn((Operand((*left, *a)), Operand((*right, *b))), options)


def _draw_linear(draw: Draw) -> Drawn:
    drawn = _draw_product(draw)
    columns = drawn.operands[1].shape[-2 if drawn.options["transpose_b"] else -1]
    bias = Operand(draw(st.sampled_from([(columns,), (1, columns)])))
    return Drawn((*drawn.operands, bias), drawn.options)


def _product(a: Array, b: Array, bias: Array | float = 0.0, *, transpose_a: bool, transpose_b: bool) -> Array:
    a = np.swapaxes(a, -1, -2) if transpose_a else a
    b = np.swapaxes(b, -1, -2) if transpose_b else b
    result: Array = np.einsum("...ik,...kj->...ij", a, b) + bias
    return result


def _product_terms(a: Array, b: Array, bias: Array | float = 0.0, **options: bool) -> Array:
    return _product(np.abs(a), np.abs(b), np.abs(bias), **options)


# Reductions -----------------------------------------------------------------------------------------------------------


def _draw_reduction(values: str) -> Any:
    def draw_operands(draw: Draw) -> Drawn:
        shape = draw_shape(draw)
        dims = st.integers(-len(shape), len(shape) - 1)
        several = st.lists(st.integers(0, len(shape) - 1), min_size=1, unique=True)
        dim = draw(st.one_of(st.none(), dims, several))
        return Drawn((Operand(shape, values),), {"dim": dim, "keepdim": draw(st.booleans())})

    return draw_operands


def _reduction(op: str, function: Any, tolerance: float, values: str = "numbers") -> Case:
    def axes(dim: int | list[int] | None) -> Any:
        return tuple(dim) if isinstance(dim, list) else dim

    def call(tt: Any, device: Any, x: Any, **options: Any) -> Any:
        return getattr(tt, op)(x, **options)

    def reference(x: Array, *, dim: Any, keepdim: bool) -> Array:
        return np.asarray(function(x, axis=axes(dim), keepdims=keepdim))

    def terms(x: Array, *, dim: Any, keepdim: bool) -> Array:
        return np.asarray(function(np.abs(x), axis=axes(dim), keepdims=keepdim))

    return Case(op, _draw_reduction(values), call, reference, tolerance, terms if tolerance else None)


def _draw_argmax(draw: Draw) -> Drawn:
    shape = draw_shape(draw)
    dim = draw(st.integers(-len(shape), len(shape) - 1))
    return Drawn((Operand(shape, "few"),), {"dim": dim, "keepdim": draw(st.booleans())})


# Rows -----------------------------------------------------------------------------------------------------------------


def _draw_scores(draw: Draw) -> Drawn:
    return Drawn((Operand(draw_shape(draw, 2), "logits"),))


def _draw_plain_scores(draw: Draw) -> Drawn:
    return Drawn((Operand(draw_shape(draw, 2)),))


def _far(x: Array) -> Array:
    # e**(x - max) loses accuracy as the difference grows.
    result: Array = softmax(x) * (1 + np.abs(x - x.max(-1, keepdims=True)))
    return result


def _draw_norm(draw: Draw) -> Drawn:
    shape = draw_shape(draw, 2)
    row = draw(st.sampled_from([(shape[-1],), (1, shape[-1])]))
    scale, offset = Operand(row, shards=False), Operand(row, shards=False)
    return Drawn((Operand(shape), scale, offset, Operand(shape[:-1], "unset"), Operand(shape[:-1], "unset")))


def _norm(tt: Any, device: Any, x: Any, gamma: Any, beta: Any, mean: Any, rstd: Any) -> Any:
    return tt.moreh_layer_norm(x, 1, EPSILON, gamma, beta, mean=mean, rstd=rstd)


def _draw_rms(draw: Draw) -> Drawn:
    shape = draw_shape(draw, 2)
    row = draw(st.sampled_from([(shape[-1],), (1, shape[-1]), (1, 1, 1, shape[-1])]))
    return Drawn((Operand(shape), Operand(row)) if draw(st.booleans()) else (Operand(shape),))


def _rms(tt: Any, device: Any, x: Any, weight: Any = None) -> Any:
    return tt.rms_norm(x, epsilon=EPSILON, weight=weight)


def _draw_lookup(draw: Draw) -> Drawn:
    table = (draw(SIZES), draw(SIZES))
    return Drawn((Operand((draw(FEW), draw(SIZES)), "indices", below=table[0]), Operand(table, "points")))


def _draw_rotary(lengths: list[int]) -> Any:
    def draw_operands(draw: Draw) -> Drawn:
        length, width = draw(st.sampled_from(lengths)), draw(st.sampled_from([32, 64, 128]))
        table = Operand((1, 1, length + draw(st.sampled_from([0, 3, 32])), width))
        return Drawn((Operand((draw(FEW), draw(FEW), length, width)), table, table))

    return draw_operands


def _rotate(x: Array, cos: Array, sin: Array) -> Array:
    out = np.empty_like(x)
    half, rows = x.shape[-1] // 2, x.shape[2]
    for place in range(x.shape[3]):
        other = -x[..., place + half] if place < half else x[..., place - half]
        out[..., place] = x[..., place] * cos[0, 0, :rows, place] + other * sin[0, 0, :rows, place]
    return out


def _rotary(op: str, lengths: list[int]) -> Case:
    return Case(
        f"experimental.{op}",
        _draw_rotary(lengths),
        lambda tt, device, x, cos, sin: getattr(tt.experimental, op)(x, cos, sin),
        _rotate,
        _NEAR,
        magnitude=lambda x, cos, sin: np.abs(x).max() * (np.abs(cos).max() + np.abs(sin).max()),
    )


def _draw_dropout(draw: Draw) -> Drawn:
    options = {
        "probability": draw(st.sampled_from([0.0, 0.1, 0.9])),
        "seed": draw(st.integers(0, 2**32 - 1)),
        "use_per_device_seed": draw(st.booleans()),
    }
    return Drawn((Operand(draw_shape(draw)),), options)


def _dropped(tt: Any, device: Any, x: Any, **options: Any) -> Any:
    """Return x times the mask that the same call gives for ones. test_dropout.py checks the mask."""
    mask = tt.experimental.dropout(tt.ones_like(x), scale=2.0, **options)
    return tt.subtract(tt.experimental.dropout(x, scale=2.0, **options), tt.multiply(x, mask))


CASES = [
    Case(
        "matmul",
        _draw_product,
        lambda tt, device, a, b, **options: tt.matmul(a, b, **options),
        _product,
        _NEAR,
        _product_terms,
    ),
    Case(
        "linear",
        _draw_linear,
        lambda tt, device, a, b, bias, **options: tt.linear(a, b, bias=bias, **options),
        _product,
        _NEAR,
        _product_terms,
    ),
    _reduction("sum", np.sum, _NEAR),
    _reduction("mean", np.mean, _NEAR),
    _reduction("max", np.max, 0, "points"),
    _reduction("min", np.min, 0, "points"),
    Case(
        "argmax",
        _draw_argmax,
        lambda tt, device, x, **options: tt.argmax(x, **options),
        lambda x, dim, keepdim: np.argmax(x, axis=dim, keepdims=keepdim),
        rounds=False,
    ),
    Case("softmax", _draw_scores, lambda tt, device, x: tt.softmax(x, dim=-1), softmax, _NEAR, _far),
    Case(
        "softmax",
        _draw_plain_scores,
        lambda tt, device, x: tt.softmax(x, dim=-1, numeric_stable=False),
        softmax,
        _NEAR,
        lambda x: softmax(x) * (1 + np.abs(x)),
        name="unstable",
    ),
    Case(
        "moreh_logsoftmax",
        _draw_scores,
        lambda tt, device, x: tt.moreh_logsoftmax(x, len(x.shape) - 1),
        logsoftmax,
        _NEAR,
        lambda x: 1 + np.abs(x).max(-1, keepdims=True),
    ),
    Case(
        "moreh_layer_norm",
        _draw_norm,
        _norm,
        lambda x, gamma, beta, *outputs: layer_norm(x, gamma, beta),
        _NEAR,
        _norm_terms,
    ),
    Case("rms_norm", _draw_rms, _rms, lambda x, weight=1.0: rms_norm(x, np.ravel(weight)), _NEAR),
    Case(
        "embedding",
        _draw_lookup,
        lambda tt, device, ids, table: tt.embedding(ids, table),
        lambda ids, table: table[ids],
    ),
    _rotary("rotary_embedding", [32, 64]),
    _rotary("rotary_embedding_hf", [1, 5, 32, 40]),
    Case(
        "experimental.dropout", _draw_dropout, _dropped, lambda x, **options: np.zeros_like(x), rounds=False
    ),
]
