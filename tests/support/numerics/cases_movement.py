"""Numerics cases of ops that move, repeat or drop elements. They have numpy's bits."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.support.numerics.numeric_case import (
    FEW,
    SIZES,
    Array,
    Case,
    Draw,
    Drawn,
    Operand,
    draw_shape,
    one,
)


def _with(values: str, **options: Any) -> Any:
    """Return a function that draws an operand of rank 2 to 4, and each option by a function of (draw, shape)."""

    def draw_operands(draw: Draw) -> Drawn:
        shape = draw_shape(draw, 2)
        return Drawn((Operand(shape, values),), {name: one(draw, shape) for name, one in options.items()})

    return draw_operands


def _dim(draw: Draw, shape: tuple[int, ...]) -> int:
    return int(draw(st.integers(-len(shape), len(shape) - 1)))


def _order(draw: Draw, shape: tuple[int, ...]) -> list[int]:
    return list(draw(st.permutations(range(len(shape)))))


def _cuts(draw: Draw, shape: tuple[int, ...]) -> list[tuple[int, int, int]]:
    cuts = []
    for size in shape:
        start = draw(st.integers(0, size - 1))
        cuts.append((start, draw(st.integers(start + 1, size)), draw(st.sampled_from([1, 1, 2, 3]))))
    return cuts


def _slice(tt: Any, device: Any, x: Any, *, cuts: list[tuple[int, int, int]]) -> Any:
    starts, ends, steps = (list(one) for one in zip(*cuts, strict=True))
    return tt.slice(x, starts, ends, steps)


def _reshaped(draw: Draw, shape: tuple[int, ...]) -> list[int]:
    sizes = list(shape)
    place = draw(st.integers(0, len(sizes) - 2))
    joined = [*sizes[:place], sizes[place] * sizes[place + 1], *sizes[place + 2 :]]
    result: list[int] = draw(st.sampled_from([joined, [1, *sizes], [*joined[:-1], -1]]))
    return result


def _draw_concat(draw: Draw) -> Drawn:
    shape = draw_shape(draw)
    dim = _dim(draw, shape)
    sizes = draw(st.lists(SIZES, min_size=1, max_size=3))
    axis = dim % len(shape)
    parts = [(*shape[:axis], size, *shape[axis + 1 :]) for size in sizes]
    return Drawn(tuple(Operand(part, "points") for part in parts), {"dim": dim})


def _draw_gather(draw: Draw) -> Drawn:
    shape = draw_shape(draw, 2)
    axis = draw(st.integers(0, len(shape) - 1))
    index = tuple(
        draw(SIZES) if dim == axis else draw(st.integers(1, size)) for dim, size in enumerate(shape)
    )
    return Drawn((Operand(shape, "points"), Operand(index, "indices", below=shape[axis])), {"dim": axis})


def _gather(x: Array, index: Array, *, dim: int) -> Array:
    out = np.empty(index.shape)
    for place in np.ndindex(*index.shape):
        source = (*place[:dim], index[place], *place[dim + 1 :])
        out[place] = x[source]
    return out


def _pieces(x: Array, size: int, dim: int) -> list[Array]:
    axis = dim % x.ndim
    starts = range(0, x.shape[axis], size)
    return [np.take(x, range(start, min(start + size, x.shape[axis])), axis) for start in starts]


def _draw_split(draw: Draw) -> Drawn:
    shape = draw_shape(draw, 2)
    dim = _dim(draw, shape)
    return Drawn((Operand(shape, "points"),), {"size": draw(st.integers(1, shape[dim])), "dim": dim})


def _padding(draw: Draw, shape: tuple[int, ...]) -> list[tuple[int, int]]:
    return [(0, draw(st.integers(0, 3))) for _ in shape]


def _draw_heads(draw: Draw) -> Drawn:
    heads, groups, width = draw(FEW), draw(FEW), draw(st.sampled_from([32, 64]))
    rows = (draw(FEW), 1, draw(SIZES), (heads + 2 * groups) * width)
    options = {"num_heads": heads, "num_kv_heads": groups, "transpose_k_heads": draw(st.booleans())}
    return Drawn((Operand(rows),), options)


def _heads(x: Array, *, num_heads: int, num_kv_heads: int, transpose_k_heads: bool) -> tuple[Array, ...]:
    width = x.shape[3] // (num_heads + 2 * num_kv_heads)
    heads = [x[:, 0, :, start : start + width] for start in range(0, x.shape[3], width)]
    q = np.stack(heads[:num_heads], 1)
    k = np.stack(heads[num_heads : num_heads + num_kv_heads], 1)
    v = np.stack(heads[num_heads + num_kv_heads :], 1)
    return q, np.transpose(k, (0, 1, 3, 2)) if transpose_k_heads else k, v


def _draw_joining(draw: Draw) -> Drawn:
    return Drawn((Operand((draw(FEW), draw(FEW), draw(SIZES), draw(st.sampled_from([32, 64])))),))


def _joined(x: Array) -> Array:
    return np.concatenate([x[:, [head]] for head in range(x.shape[1])], axis=3)


def _copied(tt: Any, device: Any, x: Any) -> Any:
    copy = tt.empty(list(x.shape), dtype=x.dtype, layout=x.layout, device=device)
    tt.copy_host_to_device_tensor(x.cpu(), copy)
    return copy


CASES = [
    Case(
        "reshape",
        _with("points", shape=_reshaped),
        lambda tt, device, x, shape: tt.reshape(x, shape),
        lambda x, shape: x.reshape(shape),
    ),
    Case(
        "transpose",
        _with("points", dim1=_dim, dim2=_dim),
        lambda tt, device, x, dim1, dim2: tt.transpose(x, dim1, dim2),
        lambda x, dim1, dim2: np.swapaxes(x, dim1, dim2),
    ),
    Case(
        "permute",
        _with("points", dims=_order),
        lambda tt, device, x, dims: tt.permute(x, dims),
        lambda x, dims: np.transpose(x, dims),
    ),
    Case(
        "slice",
        _with("points", cuts=_cuts),
        _slice,
        lambda x, cuts: x[tuple(np.s_[start:end:step] for start, end, step in cuts)],
    ),
    Case(
        "concat",
        _draw_concat,
        lambda tt, device, *parts, dim: tt.concat(list(parts), dim=dim),
        lambda *parts, dim: np.concatenate(parts, axis=dim),
    ),
    Case(
        "to_layout",
        one("points"),
        lambda tt, device, x: tt.to_layout(tt.to_layout(x, tt.ROW_MAJOR_LAYOUT), tt.TILE_LAYOUT),
        lambda x: x,
    ),
    Case(
        "to_dtype",
        one("points"),
        lambda tt, device, x: tt.to_dtype(x.cpu(), tt.float32),
        lambda x: x,
        rounds=False,
    ),
    Case("copy_host_to_device_tensor", one("points"), _copied, lambda x: x),
    Case(
        "gather",
        _draw_gather,
        lambda tt, device, x, index, dim: tt.gather(x, dim, index),
        _gather,
    ),
    Case(
        "repeat",
        _with("points", times=lambda draw, shape: [draw(FEW) for _ in shape]),
        lambda tt, device, x, times: tt.repeat(x, times),
        lambda x, times: np.tile(x, times),
    ),
    Case(
        "repeat_interleave",
        _with("points", repeats=lambda draw, shape: draw(FEW), dim=_dim),
        lambda tt, device, x, repeats, dim: tt.repeat_interleave(x, repeats, dim),
        lambda x, repeats, dim: np.concatenate(
            [part for part in _pieces(x, 1, dim) for _ in range(repeats)], axis=dim
        ),
    ),
    Case(
        "pad",
        _with("points", padding=_padding, value=lambda draw, shape: draw(st.sampled_from([0.0, -1.5]))),
        lambda tt, device, x, padding, value: tt.pad(x, padding, value),
        lambda x, padding, value: np.pad(x, padding, constant_values=value),
    ),
    Case(
        "split",
        _draw_split,
        lambda tt, device, x, size, dim: tt.split(x, size, dim),
        _pieces,
    ),
    Case(
        "chunk",
        _draw_split,
        lambda tt, device, x, size, dim: tt.chunk(x, size, dim),
        lambda x, size, dim: _pieces(x, -(-x.shape[dim] // size), dim),
    ),
    Case(
        "experimental.nlp_create_qkv_heads",
        _draw_heads,
        lambda tt, device, x, **options: tt.experimental.nlp_create_qkv_heads(x, **options),
        _heads,
    ),
    Case(
        "experimental.nlp_concat_heads",
        _draw_joining,
        lambda tt, device, x: tt.experimental.nlp_concat_heads(x),
        _joined,
    ),
]
