"""Hypothesis strategies of what calls are made with: sizes, dtypes, layouts, placements, operands right and wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from tests.support.contract.calls import Call, Operand, Shape

Draw = Callable[[st.SearchStrategy[Any]], Any]

SIZES = st.sampled_from([1, 2, 3, 4, 8, 16, 24, 31, 32, 33, 40, 64, 65, 96, 100])
"""Of a dimension: whole tiles and others."""

FEW = st.sampled_from([1, 2, 3, 4])
"""Of a batch dimension, or a number of heads."""

FLOATS = st.sampled_from(["bfloat16"] * 5 + ["float32"] * 3)
ANY_DTYPE = st.sampled_from(["bfloat16"] * 5 + ["float32"] * 3 + ["uint32", "int32"])
ANY_LAYOUT = st.sampled_from(["TILE"] * 7 + ["ROW_MAJOR"])
TILE = st.just("TILE")


def rarely(draw: Draw, one_in: int = 10) -> bool:
    """Whether to do what is rarely done: something wrong, mostly."""
    return bool(draw(st.integers(1, one_in)) == 1)


@st.composite
def shapes(draw: Draw, least: int = 1, most: int = 4) -> Shape:
    """Shapes of a rank; the leading dimensions are small."""
    rank = draw(st.integers(least, most))
    leading = tuple(draw(FEW) for _ in range(max(0, rank - 2)))
    return (*leading, *(draw(SIZES) for _ in range(min(rank, 2))))


@st.composite
def shardings(draw: Draw, rank: int) -> tuple[int | None, int | None]:
    """Which dimension is sharded over each axis of the mesh: none mostly, never the same twice."""
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
    """A tensor of that shape on each chip, placed in any way."""
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
    """A shape that mostly goes together with `shape` element by element: fewer dimensions, some of size 1."""
    kept = shape[draw(st.integers(0, len(shape) - 1)) :] if rarely(draw, 3) else shape
    sizes = tuple(1 if rarely(draw, 4) else size for size in kept)
    return spoilt(draw, sizes)


def spoilt(draw: Draw, shape: Shape) -> Shape:
    """`shape`, or rarely one with another size somewhere."""
    if not rarely(draw):
        return shape
    place = draw(st.integers(0, len(shape) - 1))
    return (*shape[:place], draw(SIZES), *shape[place + 1 :])


def dimension(draw: Draw, rank: int, *, unsigned: bool = False) -> int:
    """A dimension of a tensor of that rank, rarely one that it hasn't got."""
    beyond = 1 if rarely(draw) else 0
    return int(draw(st.integers(0 if unsigned and not beyond else -rank - beyond, rank - 1 + beyond)))


OPS: dict[str, st.SearchStrategy[Call]] = {}
"""For each op, calls of it to draw."""


def op(name: str) -> Callable[[Callable[[Draw], Call]], Callable[[Draw], Call]]:
    """Registers a function that draws a call of `name`."""

    def register(function: Callable[[Draw], Call]) -> Callable[[Draw], Call]:
        assert name not in OPS, name
        OPS[name] = st.composite(function)()
        return function

    return register
