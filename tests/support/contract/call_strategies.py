"""Hypothesis strategies for arguments of calls: sizes, dtypes, layouts, placements, valid and invalid operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from tests.support.contract.calls import Call, Operand, Shape

Draw = Callable[[st.SearchStrategy[Any]], Any]

SIZES = st.sampled_from([1, 2, 3, 4, 8, 16, 24, 31, 32, 33, 40, 64, 65, 96, 100])
"""Sizes of a dimension: whole tiles and others."""

SMALL_SIZES = st.sampled_from([1, 2, 3, 4])
"""Sizes of a batch dimension, or numbers of heads."""

FLOATS = st.sampled_from(["bfloat16"] * 5 + ["float32"] * 3)
ANY_DTYPE = st.sampled_from(["bfloat16"] * 5 + ["float32"] * 3 + ["uint32", "int32"])
ANY_LAYOUT = st.sampled_from(["TILE"] * 7 + ["ROW_MAJOR"])
TILE = st.just("TILE")


def rarely(draw: Draw, one_in: int = 10) -> bool:
    """Draw True once in `one_in`. Mostly decides whether an argument is invalid."""
    return bool(draw(st.integers(1, one_in)) == 1)


@st.composite
def shapes(draw: Draw, min_rank: int = 1, max_rank: int = 4) -> Shape:
    """Draw a shape with small leading dimensions."""
    rank = draw(st.integers(min_rank, max_rank))
    leading = tuple(draw(SMALL_SIZES) for _ in range(max(0, rank - 2)))
    return (*leading, *(draw(SIZES) for _ in range(min(rank, 2))))


@st.composite
def shardings(draw: Draw, rank: int) -> tuple[int | None, int | None]:
    """Draw the dimension sharded over each mesh axis: often none, never the same for both."""
    row = draw(st.one_of(st.none(), st.integers(0, rank - 1)))
    col = draw(st.one_of(st.none(), st.integers(0, rank - 1)))
    return (row, None if col == row else col)


@st.composite
def operands(
    draw: Draw,
    shape: Shape | st.SearchStrategy[Shape],
    dtype: str | st.SearchStrategy[str] = ANY_DTYPE,
    layout: str | st.SearchStrategy[str] = ANY_LAYOUT,
    *,
    below: int = 2,
) -> Operand:
    """Draw a tensor of this shape on each chip, with any placement."""
    chosen = draw(shape) if isinstance(shape, st.SearchStrategy) else shape
    return Operand(
        shape=chosen,
        dtype=draw(dtype) if isinstance(dtype, st.SearchStrategy) else dtype,
        layout=draw(layout) if isinstance(layout, st.SearchStrategy) else layout,
        sharded=draw(shardings(len(chosen))) if chosen else (None, None),
        below=below,
    )


@st.composite
def broadcast_shapes(draw: Draw, shape: Shape) -> Shape:
    """Draw a shape that mostly broadcasts with `shape`: fewer dimensions, some of size 1."""
    kept = shape[draw(st.integers(0, len(shape) - 1)) :] if rarely(draw, 3) else shape
    sizes = tuple(1 if rarely(draw, 4) else size for size in kept)
    return rarely_resized(draw, sizes)


def rarely_resized(draw: Draw, shape: Shape) -> Shape:
    """Draw `shape`, or rarely one with another size in one dimension."""
    if not rarely(draw):
        return shape
    place = draw(st.integers(0, len(shape) - 1))
    return (*shape[:place], draw(SIZES), *shape[place + 1 :])


def dimension(draw: Draw, rank: int, *, unsigned: bool = False) -> int:
    """Draw a dimension of a tensor of this rank, rarely one out of range."""
    beyond = 1 if rarely(draw) else 0
    return int(draw(st.integers(0 if unsigned and not beyond else -rank - beyond, rank - 1 + beyond)))


OPS: dict[str, st.SearchStrategy[Call]] = {}
"""Strategy for calls of each op, by its name."""


def register_op(name: str) -> Callable[[Callable[[Draw], Call]], Callable[[Draw], Call]]:
    """Register the decorated function, which draws a call of op `name`."""

    def register(function: Callable[[Draw], Call]) -> Callable[[Draw], Call]:
        assert name not in OPS, name
        OPS[name] = st.composite(function)()
        return function

    return register
