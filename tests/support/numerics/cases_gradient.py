"""Numerics cases of gradient ops, against finite differences of the forward function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.support.numerics.cases_elementwise import gelu, gelu_tanh, sigmoid, silu
from tests.support.numerics.cases_rows import EPSILON, layer_norm, logsoftmax, softmax
from tests.support.numerics.finite_differences import derivative, full_gradient, row_gradient
from tests.support.numerics.numeric_case import FEW, Array, Case, Draw, Drawn, Operand, alike

_NEAR = 1e-6
_UNSEEN = 1e-6
_NARROW = st.sampled_from([1, 2, 5, 17, 33, 40])


def _elementwise(op: str, function: Callable[[Array], Array]) -> Case:
    def call(tt: Any, device: Any, dy: Any, x: Any) -> Any:
        return getattr(tt, op)(dy, x)

    return Case(
        op,
        alike(2, ["numbers"]),
        call,
        lambda dy, x: dy * derivative(function, x),
        _NEAR,
        magnitude=lambda dy, x: np.abs(dy) * (1e-1 + np.abs(x)),
        name="by finite differences",
    )


def _gelu(variant: str, function: Callable[[Array], Array]) -> Case:
    def call(tt: Any, device: Any, dy: Any, x: Any) -> Any:
        return tt.gelu_bw(dy, x, variant=getattr(tt.GeluVariant, variant))

    return Case(
        "gelu_bw",
        alike(2, ["numbers"]),
        call,
        lambda dy, x: dy * derivative(function, x),
        _NEAR,
        magnitude=lambda dy, x: np.abs(dy) * (1 + np.abs(x)),
        name=variant,
    )


def _extreme(op: str, reference: Callable[[Array, Array], Array]) -> Case:
    """Magnitude for gradients whose slope is 0 or 1, where results are nearly exact."""

    def call(tt: Any, device: Any, dy: Any, x: Any) -> Any:
        return getattr(tt, op)(dy, tt.multiply(x, 50.0))

    return Case(
        op,
        alike(2, ["numbers", "few"]),
        call,
        reference,
        _NEAR,
        magnitude=lambda dy, x: np.abs(dy),
        name="far from 0 and at it",
        rounds=False,
    )


def _draw_rows(values: str) -> Callable[[Draw], Drawn]:
    def draw_operands(draw: Draw) -> Drawn:
        shape = (draw(FEW), draw(FEW), draw(FEW), draw(_NARROW))
        return Drawn((Operand(shape), Operand(shape, values)))

    return draw_operands


def _softmax_bw(tt: Any, device: Any, dy: Any, x: Any) -> Any:
    return tt.moreh_softmax_backward(tt.softmax(x, dim=-1), dy, 3)


def _logsoftmax_bw(tt: Any, device: Any, dy: Any, x: Any) -> Any:
    return tt.moreh_logsoftmax_backward(tt.moreh_logsoftmax(x, 3), dy, 3)


def _largest(dy: Array) -> Array:
    result: Array = np.abs(dy).sum(-1, keepdims=True)
    return result


def _draw_norm(draw: Draw) -> Drawn:
    rows, width = (1, draw(FEW), draw(FEW)), draw(_NARROW)
    x = Operand((*rows, width))
    row = Operand((1, width), shards=False)
    return Drawn((x, x, row, row, *(Operand(rows, "unset") for _ in range(2)), Operand((*rows, width), "unset"),
                  Operand((1, width), "unset"), Operand((width,), "unset")))  # fmt: skip


def _norm_bw(
    tt: Any,
    device: Any,
    dy: Any,
    x: Any,
    gamma: Any,
    beta: Any,
    mean: Any,
    rstd: Any,
    dx: Any,
    dgamma: Any,
    dbeta: Any,
) -> Any:
    _, mean, rstd = tt.moreh_layer_norm(x, 1, EPSILON, gamma, beta, mean=mean, rstd=rstd)
    return tt.moreh_layer_norm_backward(
        dy, x, mean, rstd, 1, gamma=gamma, input_grad=dx, gamma_grad=dgamma, beta_grad=dbeta
    )


def _norm_gradients(
    dy: Array, x: Array, gamma: Array, beta: Array, *outputs: Array
) -> tuple[Array, Array, Array]:
    return (
        row_gradient(lambda at: layer_norm(at, gamma, beta)[0], x, dy),
        full_gradient(lambda at: layer_norm(x, at, beta)[0], gamma, dy),
        full_gradient(lambda at: layer_norm(x, gamma, at)[0], beta[0], dy),
    )


def _norm_terms(
    dy: Array, x: Array, gamma: Array, beta: Array, *outputs: Array
) -> tuple[Array, Array, Array]:
    _, _, rstd = layer_norm(x, gamma, beta)
    # Means and deviations are float32: their error is 1e-7 of a row's largest element, over its deviation.
    spread = 1 + np.abs(x).max(-1, keepdims=True) * rstd[..., None]
    largest = np.abs(dy * gamma).max(-1, keepdims=True)
    rows = tuple(range(x.ndim - 1))
    return (
        rstd[..., None] * largest * spread,
        (np.abs(dy) * spread).sum(rows)[None],
        np.abs(dy).sum(rows),
    )


def _draw_norm_given(draw: Draw) -> Drawn:
    rows, width = (1, draw(FEW), draw(FEW)), draw(_NARROW)
    shapes = [(*rows, width), (*rows, width), rows, rows, (1, width)]
    outputs = [(*rows, width), (1, width), (width,)]
    return Drawn(
        (*(Operand(one) for one in shapes), *(Operand(one, "unset", shards=False) for one in outputs))
    )


def _norm_bw_given(
    tt: Any, device: Any, dy: Any, x: Any, mean: Any, rstd: Any, gamma: Any, dx: Any, dgamma: Any, dbeta: Any
) -> Any:
    return tt.moreh_layer_norm_backward(
        dy, x, mean, rstd, 1, gamma=gamma, input_grad=dx, gamma_grad=dgamma, beta_grad=dbeta
    )


def _norm_gradients_given(
    dy: Array, x: Array, mean: Array, rstd: Array, gamma: Array, *outputs: Array
) -> tuple[Array, Array, Array]:
    normal = (x - mean[..., None]) * rstd[..., None]
    scaled = dy * gamma
    inner = scaled - scaled.mean(-1, keepdims=True) - normal * (scaled * normal).mean(-1, keepdims=True)
    rows = tuple(range(x.ndim - 1))
    return rstd[..., None] * inner, (dy * normal).sum(rows)[None], dy.sum(rows)


def _terms_given(
    dy: Array, x: Array, mean: Array, rstd: Array, gamma: Array, *outputs: Array
) -> tuple[Array, Array, Array]:
    spread = np.abs(rstd[..., None]) * (np.abs(x) + np.abs(mean[..., None]))
    scaled = np.abs(dy * gamma)
    inner = scaled + scaled.mean(-1, keepdims=True) + spread * (scaled * spread).mean(-1, keepdims=True)
    rows = tuple(range(x.ndim - 1))
    return np.abs(rstd[..., None]) * inner, (np.abs(dy) * spread).sum(rows)[None], np.abs(dy).sum(rows)


def _draw_embedding(draw: Draw) -> Drawn:
    ids = (draw(FEW), draw(st.sampled_from([32, 64])))
    table = (draw(st.sampled_from([1, 2, 33, 70])), draw(_NARROW))
    rows = (1, 1, ids[0] * ids[1], table[1])
    indices = Operand(ids, "indices", below=table[0], layout="ROW_MAJOR")
    return Drawn((indices, Operand(table, shards=False), Operand(rows)))


def _lookup_gradient(
    ids: Array, table: Array, rows: Array, *, size: Callable[[Array], Array] = np.positive
) -> Array:
    out = np.zeros_like(table)
    for place, token in enumerate(ids.reshape(-1)):
        out[token] += size(rows[0, 0, place])
    return out[None, None]


CASES = [
    Case(
        "relu_bw",
        alike(2, ["numbers", "few"]),  # Differences must not reach across 0.
        lambda tt, device, dy, x: tt.relu_bw(dy, x),
        lambda dy, x: np.where(x == 0, 0, dy * derivative(lambda at: np.maximum(at, 0), x)),
        _NEAR,
        name="by finite differences",
    ),
    _elementwise("sigmoid_bw", sigmoid),
    _elementwise("silu_bw", silu),
    _elementwise("tanh_bw", np.tanh),
    _gelu("Accurate", gelu),
    _gelu("Tanh", gelu_tanh),
    _extreme("relu_bw", lambda dy, x: dy * (x > 0)),
    _extreme("silu_bw", lambda dy, x: np.where(x == 0, dy / 2, dy * (x > 0))),
    Case(
        "moreh_softmax_backward",
        _draw_rows("logits"),
        _softmax_bw,
        lambda dy, x: row_gradient(softmax, x, dy),
        2e-6,
        # Finite differences resolve about 1e-12 of the largest gradient.
        magnitude=lambda dy, x: (
            (softmax(x) * (1 + np.abs(np.log(softmax(x) + 1e-30))) + _UNSEEN) * _largest(dy)
        ),
        name="by finite differences",
        rounds=False,
    ),
    Case(
        "moreh_softmax_backward",
        alike(2, ["probabilities", "numbers"]),
        lambda tt, device, y, dy: tt.moreh_softmax_backward(y, dy, len(y.shape) - 1),
        lambda y, dy: y * (dy - (y * dy).sum(-1, keepdims=True)),
        _NEAR,
        magnitude=lambda y, dy: y * _largest(dy),
    ),
    Case(
        "moreh_logsoftmax_backward",
        _draw_rows("numbers"),  # Differences can't resolve 1e-7 next to masked scores of 1e9.
        _logsoftmax_bw,
        lambda dy, x: row_gradient(logsoftmax, x, dy),
        2e-6,
        magnitude=lambda dy, x: (
            np.abs(dy) + (1 + np.abs(x).max(-1, keepdims=True)) * softmax(x) * _largest(dy)
        ),
        name="by finite differences",
        rounds=False,
    ),
    Case(
        "moreh_logsoftmax_backward",
        alike(2, ["probabilities", "numbers"]),
        lambda tt, device, y, dy: tt.moreh_logsoftmax_backward(y, dy, len(y.shape) - 1),
        lambda y, dy: dy - np.exp(y) * dy.sum(-1, keepdims=True),
        _NEAR,
        magnitude=lambda y, dy: np.exp(y) * _largest(dy),
    ),
    Case(
        "moreh_layer_norm_backward",
        _draw_norm,
        _norm_bw,
        _norm_gradients,
        2e-6,
        magnitude=_norm_terms,
        name="by finite differences",
        rounds=False,
    ),
    Case(
        "moreh_layer_norm_backward",
        _draw_norm_given,
        _norm_bw_given,
        _norm_gradients_given,
        2e-6,
        _terms_given,
    ),
    Case(
        "embedding_bw",
        _draw_embedding,
        lambda tt, device, ids, table, rows: tt.embedding_bw(ids, table, rows),
        _lookup_gradient,
        _NEAR,
        magnitude=lambda ids, table, rows: _lookup_gradient(ids, table, rows, size=np.abs),
    ),
]
