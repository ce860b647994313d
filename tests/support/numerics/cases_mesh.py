"""Numerics cases of creation, caches and collectives."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.support.numerics.numeric_case import FEW, Array, Case, Draw, Drawn, Operand, draw_shape, one

# Creation -------------------------------------------------------------------------------------------------------------

_NUMBERS = st.sampled_from([0.0, 1.0, -2.5, 1e-3, 3e38])


def _draw_made(draw: Draw) -> Drawn:
    return Drawn((), {"shape": draw_shape(draw)})


def _draw_full(draw: Draw) -> Drawn:
    return Drawn((), {"shape": draw_shape(draw), "value": draw(_NUMBERS)})


def _draw_range(draw: Draw) -> Drawn:
    start = draw(st.integers(-50, 50))
    return Drawn(
        (), {"start": start, "end": start + draw(st.integers(1, 70)), "step": draw(st.integers(1, 3))}
    )


def _made(op: str, value: float) -> Case:
    def call(tt: Any, device: Any, *, shape: Any) -> Any:
        return getattr(tt, op)(list(shape), dtype=tt.float32, layout=tt.TILE_LAYOUT, device=device)

    return Case(op, _draw_made, call, lambda shape: np.full(shape, value), rounds=False)


def _like(op: str, value: float) -> Case:
    return Case(op, one(), lambda tt, device, x: getattr(tt, op)(x), lambda x: np.full_like(x, value))


# Caches ---------------------------------------------------------------------------------------------------------------

_WIDTH = 32


def _draw_update(draw: Draw) -> Drawn:
    batch, heads, window = draw(FEW), draw(FEW), draw(st.sampled_from([1, 32, 50]))
    offset = draw(st.integers(0, 2))
    rows = offset + batch + draw(st.integers(0, 2))
    options = {"token": draw(st.integers(0, window - 1)), "offset": offset}
    return Drawn((Operand((batch, heads, window, _WIDTH)), Operand((1, heads, rows, _WIDTH))), options)


def _updated(cache: Array, rows: Array, *, token: int, offset: int) -> tuple[Array, Array]:
    out = cache.copy()
    for sequence in range(cache.shape[0]):
        out[sequence, :, token] = rows[0, :, offset + sequence]
    return out, cache


def _update(tt: Any, device: Any, cache: Any, rows: Any, *, token: int, offset: int) -> Any:
    before = tt.typecast(cache, cache.dtype)  # A copy does not change with the cache.
    tt.update_cache(cache, rows, token, batch_offset=offset)
    return cache, before


def _draw_fill(draw: Draw) -> Drawn:
    batch, heads, window = draw(FEW), draw(FEW), draw(st.sampled_from([32, 64, 100]))
    first = 32 * draw(st.integers(0, (window - 1) // 32))
    tokens = draw(st.integers(1, window - first))
    options = {"sequence": draw(st.integers(0, batch - 1)), "first": first}
    return Drawn((Operand((batch, heads, window, _WIDTH)), Operand((1, heads, tokens, _WIDTH))), options)


def _filled(cache: Array, tokens: Array, *, sequence: int, first: int) -> Array:
    out = cache.copy()
    end = first + tokens.shape[2]
    out[sequence, :, first : -(-end // 32) * 32] = 0  # The device writes whole tiles.
    out[sequence, :, first:end] = tokens[0]
    return out


# Collectives ----------------------------------------------------------------------------------------------------------

_AXES = st.sampled_from([0, 1])


def _axis(shape: tuple[int, ...], axis: int | None) -> int | None:
    """Return the mesh axis to use: the other one if this has a single chip."""
    return 1 if axis is not None and shape[axis] == 1 else axis


def _axes(array: Array, axis: int | None) -> tuple[int, ...]:
    chosen = _axis(array.shape, axis)
    return (0, 1) if chosen is None else (chosen,)


def _draw_sum(draw: Draw) -> Drawn:
    return Drawn((Operand(draw_shape(draw)),), {"axis": draw(st.sampled_from([0, 1, None]))})


def _sum(x: Array, *, axis: int | None) -> Array:
    total = x.sum(_axes(x, axis), keepdims=True)
    return np.broadcast_to(total, x.shape)


def _draw_gathered(draw: Draw) -> Drawn:
    shape = draw_shape(draw)
    dim = draw(st.integers(-len(shape), len(shape) - 1))
    return Drawn((Operand(shape, "points"),), {"dim": dim, "axis": draw(_AXES)})


def _gathered(x: Array, *, dim: int, axis: int) -> Array:
    along = _axis(x.shape, axis)
    assert along is not None
    place = dim % (x.ndim - 2) + 1
    pieces = [np.take(x, chip, axis=along) for chip in range(x.shape[along])]
    joined = np.expand_dims(np.concatenate(pieces, axis=place), along)
    return np.broadcast_to(joined, (*x.shape[:2], *joined.shape[2:]))


def _draw_scattered(draw: Draw) -> Drawn:
    shape = draw(st.sampled_from([(8, 3, 5), (2, 16, 40), (1, 1, 3, 104), (40, 2)]))
    dim = next(place for place, size in enumerate(shape) if size % 8 == 0)
    return Drawn((Operand(shape),), {"dim": dim, "axis": draw(st.sampled_from([0, 1, None]))})


def _draw_parts(draw: Draw) -> Drawn:
    shape, dim = draw(st.sampled_from([((8, 3, 5), 0), ((2, 256, 3), 1), ((1, 1, 2, 256), -1)]))
    return Drawn((Operand(shape, "points"),), {"dim": dim, "axis": draw(st.sampled_from([0, 1, None]))})


def _parts(x: Array, *, dim: int, axis: int | None) -> Array:
    axes = _axes(x, axis)
    place = dim % (x.ndim - 2)
    sizes = [x.shape[one] for one in axes]
    out = []
    for row, col in np.ndindex(*x.shape[:2]):
        mine = int(np.ravel_multi_index([(row, col)[one] for one in axes], sizes))
        out.append(np.split(x[row, col], int(np.prod(sizes)), axis=place)[mine])
    result: Array = np.stack(out).reshape(*x.shape[:2], *out[0].shape)
    return result


def _along(op: str) -> Any:
    def call(tt: Any, device: Any, x: Any, *, dim: int, axis: int | None) -> Any:
        return getattr(tt, op)(x, dim, cluster_axis=_axis(tuple(device.shape), axis))

    return call


CASES = [
    _made("empty", np.nan),
    _made("zeros", 0.0),
    _made("ones", 1.0),
    Case(
        "full",
        _draw_full,
        lambda tt, device, shape, value: tt.full(list(shape), value, dtype=tt.float32, device=device),
        lambda shape, value: np.full(shape, value),
        rounds=False,
    ),
    _like("zeros_like", 0.0),
    _like("ones_like", 1.0),
    Case("full_like", one(), lambda tt, device, x: tt.full_like(x, 1e-3), lambda x: np.full_like(x, 1e-3)),
    Case(
        "arange",
        _draw_range,
        lambda tt, device, start, end, step: tt.arange(start, end, step, dtype=tt.float32, device=device),
        lambda start, end, step: np.arange(start, end, step, dtype=np.float64),
        rounds=False,
    ),
    Case("update_cache", _draw_update, _update, _updated),
    Case(
        "fill_cache",
        _draw_fill,
        lambda tt, device, cache, tokens, sequence, first: tt.fill_cache(
            cache, tokens, sequence, update_idx=first
        ),
        _filled,
    ),
    Case(
        "all_reduce",
        _draw_sum,
        lambda tt, device, x, axis: tt.all_reduce(x, cluster_axis=_axis(tuple(device.shape), axis)),
        _sum,
        1e-6,
        lambda x, axis: _sum(np.abs(x), axis=axis),
        over_mesh=True,
    ),
    Case("all_gather", _draw_gathered, _along("all_gather"), _gathered, over_mesh=True),
    Case(
        "reduce_scatter",
        _draw_scattered,
        _along("reduce_scatter"),
        lambda x, dim, axis: _parts(_sum(x, axis=axis), dim=dim, axis=axis),
        1e-6,
        lambda x, dim, axis: _parts(_sum(np.abs(x), axis=axis), dim=dim, axis=axis),
        over_mesh=True,
    ),
    Case("mesh_partition", _draw_parts, _along("mesh_partition"), _parts, over_mesh=True),
]
