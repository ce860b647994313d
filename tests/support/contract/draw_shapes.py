"""Strategies for calls that move elements, create tensors, and use caches or embeddings."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import strategies as st

from tests.support.contract.call_strategies import (
    ANY_DTYPE,
    FLOATS,
    SIZES,
    SMALL_SIZES,
    Draw,
    dimension,
    operands,
    rarely,
    rarely_resized,
    register_op,
    shapes,
)
from tests.support.contract.calls import DEVICE, Call, Constant

_DTYPES = st.sampled_from(["bfloat16", "float32", "uint32", "int32"])
_LAYOUTS = st.sampled_from(["TILE_LAYOUT", "ROW_MAJOR_LAYOUT"])


@register_op("reshape")
def _reshape(draw: Draw) -> Call:
    operand = draw(operands(shapes()))
    rest = math.prod(operand.shape)
    sizes = []
    for _ in range(draw(st.integers(0, 3))):
        divisors = [size for size in (1, 2, 3, 4, 8, 16, 31, 32, 33, 64, 65, 96, 100) if rest % size == 0]
        sizes.append(draw(st.sampled_from(divisors)))
        rest //= sizes[-1]
    shape = draw(st.permutations([*sizes, rest]))
    if rarely(draw, 4):
        shape[draw(st.integers(0, len(shape) - 1))] = -1
    return Call("reshape", (operand, list(rarely_resized(draw, tuple(shape)))))


@register_op("transpose")
def _transpose(draw: Draw) -> Call:
    operand = draw(operands(shapes()))
    rank = len(operand.shape)
    return Call("transpose", (operand, dimension(draw, rank), dimension(draw, rank)))


@register_op("permute")
def _permute(draw: Draw) -> Call:
    operand = draw(operands(shapes()))
    order = draw(st.permutations(range(len(operand.shape))))
    if rarely(draw):
        order = order[:-1] or [1]
    return Call("permute", (operand, tuple(order)))


@register_op("concat")
def _concat(draw: Draw) -> Call:
    shape = draw(shapes())
    dim = dimension(draw, len(shape))
    first = draw(operands(shape))
    tensors = [first]
    for _ in range(draw(st.integers(0, 2))):
        sizes = list(shape)
        sizes[dim % len(shape)] = draw(SIZES)
        tensors.append(
            draw(
                operands(
                    rarely_resized(draw, tuple(sizes)),
                    ANY_DTYPE if rarely(draw) else first.dtype,
                    first.layout,
                )
            )
        )
    return Call("concat", (tensors,), {"dim": dim})


@register_op("slice")
def _slice(draw: Draw) -> Call:
    operand = draw(operands(shapes()))
    starts, ends, steps = [], [], []
    for size in operand.shape:
        start = draw(st.integers(0, size - 1))
        starts.append(0 if rarely(draw, 2) else start)
        ends.append(size if rarely(draw, 2) else draw(st.integers(starts[-1] + 1, size)))
        steps.append(draw(st.integers(1, 3)) if rarely(draw, 6) else 1)
    if rarely(draw):
        ends[-1] += 32
    arguments = [operand, starts, ends]
    if steps != [1] * len(steps) or rarely(draw):
        arguments.append(steps)
    return Call("slice", tuple(arguments))


@register_op("to_layout")
def _to_layout(draw: Draw) -> Call:
    return Call("to_layout", (draw(operands(shapes())), Constant(draw(_LAYOUTS))))


def _filled(name: str) -> None:
    @register_op(name)
    def draw_call(draw: Draw) -> Call:
        shape = list(draw(shapes()))
        options: dict[str, object] = {"device": DEVICE}
        if not rarely(draw, 3):
            options["dtype"] = Constant(draw(_DTYPES))
        if not rarely(draw, 3):
            options["layout"] = Constant(draw(_LAYOUTS))
        return Call(name, (shape, 1.5) if name == "full" else (shape,), options)


for _name in ("full", "zeros", "ones", "empty"):
    _filled(_name)


def _filled_like(name: str) -> None:
    @register_op(name)
    def draw_call(draw: Draw) -> Call:
        options: dict[str, object] = {}
        if rarely(draw, 2):
            options["dtype"] = Constant(draw(_DTYPES))
        if rarely(draw, 2):
            options["layout"] = Constant(draw(_LAYOUTS))
        operand = draw(operands(shapes()))
        return Call(name, (operand, 1.5) if name == "full_like" else (operand,), options)


for _name in ("full_like", "zeros_like", "ones_like"):
    _filled_like(_name)


@register_op("empty_like")
def _empty_like(draw: Draw) -> Call:
    return Call("empty_like", (draw(operands(shapes())),))


@register_op("pad")
def _pad(draw: Draw) -> Call:
    operand = draw(operands(shapes()))
    pairs = [
        (draw(st.integers(0, 2)) if rarely(draw, 8) else 0, draw(st.sampled_from([0, 0, 1, 31, 32])))
        for _ in range(len(operand.shape) + (1 if rarely(draw) else 0))
    ]
    return Call("pad", (operand, pairs, draw(st.sampled_from([0.0, 1.0]))))


@register_op("repeat")
def _repeat(draw: Draw) -> Call:
    operand = draw(operands(shapes()))
    times = [draw(st.integers(1, 3)) for _ in range(len(operand.shape) + (1 if rarely(draw) else 0))]
    return Call("repeat", (operand, times))


@register_op("repeat_interleave")
def _repeat_interleave(draw: Draw) -> Call:
    operand = draw(operands(shapes()))
    return Call("repeat_interleave", (operand, draw(st.integers(1, 3)), dimension(draw, len(operand.shape))))


@register_op("split")
def _split(draw: Draw) -> Call:
    operand = draw(operands(shapes()))
    return Call("split", (operand, draw(SIZES), dimension(draw, len(operand.shape))))


@register_op("chunk")
def _chunk(draw: Draw) -> Call:
    operand = draw(operands(shapes()))
    return Call("chunk", (operand, draw(st.integers(1, 4)), dimension(draw, len(operand.shape))))


@register_op("fill_cache")
def _fill_cache(draw: Draw) -> Call:
    batch, heads, window, width = draw(SMALL_SIZES), draw(SMALL_SIZES), draw(SIZES), draw(SIZES)
    dtype = draw(FLOATS)
    cache = replace(draw(operands((batch, heads, window, width), dtype)), sharded=(None, None))
    tokens = replace(
        draw(operands(rarely_resized(draw, (1, heads, draw(SIZES), width)), dtype)), sharded=(None, None)
    )
    return Call("fill_cache", (cache, tokens, draw(st.integers(0, batch - 1)) + rarely(draw)))


@register_op("update_cache")
def _update_cache(draw: Draw) -> Call:
    batch, heads, window, width = draw(SMALL_SIZES), draw(SMALL_SIZES), draw(SIZES), draw(SIZES)
    dtype = draw(FLOATS)
    cache = replace(draw(operands((batch, heads, window, width), dtype)), sharded=(None, None))
    tokens = replace(
        draw(operands(rarely_resized(draw, (1, heads, draw(SIZES), width)), dtype)), sharded=(None, None)
    )
    return Call("update_cache", (cache, tokens, draw(st.integers(0, window - 1))))


@register_op("arange")
def _arange(draw: Draw) -> Call:
    start, length, step = draw(st.integers(0, 40)), draw(SIZES), draw(st.integers(1, 3))
    arguments = draw(st.sampled_from([(length,), (start, start + length), (start, start + length, step)]))
    options = {"device": DEVICE, "dtype": Constant(draw(_DTYPES)), "layout": Constant(draw(_LAYOUTS))}
    return Call("arange", arguments, options)


@register_op("embedding")
def _embedding(draw: Draw) -> Call:
    vocabulary, width = draw(SIZES), draw(SIZES)
    ids = draw(
        operands(
            rarely_resized(draw, (draw(SMALL_SIZES), draw(SIZES))),
            draw(st.sampled_from(["uint32"] * 5 + ["int32"])),
            below=vocabulary,
        )
    )
    shape = draw(st.sampled_from([(vocabulary, width), (1, 1, vocabulary, width)]))
    table = draw(operands(rarely_resized(draw, shape)))
    options = {} if rarely(draw, 3) else {"layout": Constant(draw(_LAYOUTS))}
    return Call("embedding", (ids, table), options)


@register_op("embedding_bw")
def _embedding_bw(draw: Draw) -> Call:
    vocabulary, width = draw(SIZES), draw(SIZES)
    batch, length = draw(SMALL_SIZES), draw(st.sampled_from([32, 32, 64, 64, 96, 24, 33]))
    kind, layout = ("int32", "TILE") if rarely(draw, 6) else ("uint32", "ROW_MAJOR")
    ids = draw(operands((batch, length), kind, layout, below=vocabulary))
    table = draw(operands(draw(st.sampled_from([(vocabulary, width), (1, 1, vocabulary, width)])), FLOATS))
    gradient = draw(operands(rarely_resized(draw, (1, 1, batch * length, width)), FLOATS))
    return Call("embedding_bw", (ids, table, gradient))
