"""The parts of a numerics test: drawn operands, the call, and a float64 reference for one chip."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

Array = npt.NDArray[Any]
Shape = tuple[int, ...]
Draw = Callable[[st.SearchStrategy[Any]], Any]


@dataclass(frozen=True)
class Operand:
    """A tensor operand of a call.

    Attributes:
        shape: shape on each chip.
        values: kind of values, see `draw_values`.
        below: upper bound of integers, exclusive.
        layout: name of the layout, without `_LAYOUT`.
        shards: whether the chips along each mesh axis may hold different values.
    """

    shape: Shape
    values: str = "numbers"
    below: int = 2
    layout: str = "TILE"
    shards: bool = True


@dataclass(frozen=True)
class Drawn:
    """Operands and options of a call."""

    operands: tuple[Operand, ...]
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """Comparison of an op with a reference.

    Attributes:
        op: attribute path of the op in the module.
        draw: function that draws operands and options.
        call: function (module, device, tensors, **options) that returns one or several tensors.
        reference: function (*arrays, **options) that returns the arrays of one chip in float64. With `over_mesh` it
            gets the arrays of all chips [rows, columns, ...], and the mesh axis as option `axis`.
        tolerance: bound of |actual - expected| relative to |expected| + magnitude; 0 requires equal bits.
        magnitude: function (*arrays, **options) that returns the size of the terms that cancel in the result.
        name: name that distinguishes cases of one op.
        over_mesh: whether the op combines values of several chips.
        rounds: whether bfloat16 results are float32 results, rounded once.
    """

    op: str
    draw: Callable[[Draw], Drawn]
    call: Callable[..., Any]
    reference: Callable[..., Any]
    tolerance: float = 0.0
    magnitude: Callable[..., Any] | None = None
    name: str = ""
    over_mesh: bool = False
    rounds: bool = True

    def __str__(self) -> str:
        return f"{self.op} {self.name}".strip()


def draw_values(operand: Operand, mesh: Shape, numbers: np.random.Generator) -> Array:
    """Return values [rows, columns, *shape] of the operand's kind: float32, or uint32 for `indices`."""
    shape = (*mesh, *operand.shape)
    if operand.values == "indices":
        return numbers.integers(0, operand.below, shape).astype(np.uint32)
    if operand.values == "unset":
        return np.zeros(shape, np.float32)
    normal = numbers.standard_normal(shape)
    if operand.values == "numbers":
        drawn = normal * numbers.choice([0.1, 1.0, 10.0])
    elif operand.values == "points":
        drawn = np.where(numbers.random(shape) < 0.2, numbers.choice(_POINTS, shape), 3 * normal)
    elif operand.values == "positive":
        drawn = np.exp(3 * normal)
    elif operand.values == "few":
        drawn = numbers.integers(-2, 3, shape).astype(np.float64)
    elif operand.values == "logits":
        drawn = _logits(normal, shape, numbers)
    elif operand.values == "probabilities":
        powers = np.exp(3 * normal)
        drawn = powers / powers.sum(-1, keepdims=True)
    else:
        raise ValueError(f"values: {operand.values!r} is no known kind")
    result: Array = drawn.astype(np.float32)
    return result


_POINTS = np.array([0.0, -0.0, np.inf, -np.inf, 1e30, -1e30, 1e-30, -1e-30, 80.0, -80.0, 1.0])


def _logits(normal: Array, shape: Shape, numbers: np.random.Generator) -> Array:
    """Return scores like those of models. Rows are small, large, equal, zero, with one spike, or mostly masked."""
    rows = (*shape[:-1], 1)
    kind = numbers.integers(0, 6, rows)
    spike = np.where(np.arange(shape[-1]) == numbers.integers(0, shape[-1], rows), 3e4, 0.0)
    masked = np.where(np.arange(shape[-1]) <= numbers.integers(0, shape[-1], rows), normal, -1e9)
    kinds = [normal, 30 * normal, 3e4 + 0 * normal, 0 * normal, normal + spike, masked]
    return np.choose(kind, kinds)


def as_tuple(results: Any) -> tuple[Any, ...]:
    """Return one or several results as a tuple."""
    return tuple(results) if isinstance(results, (tuple, list)) else (results,)


# Shapes ---------------------------------------------------------------------------------------------------------------

SIZES = st.sampled_from([1, 2, 3, 5, 8, 17, 31, 32, 33, 40])
"""Sizes of a dimension: whole tiles and others."""

FEW = st.integers(1, 3)
"""Sizes of a batch dimension, or numbers of heads."""


def draw_shape(draw: Draw, min_rank: int = 1, max_rank: int = 4) -> Shape:
    """Draw a shape with small leading dimensions."""
    rank = draw(st.integers(min_rank, max_rank))
    leading = tuple(draw(FEW) for _ in range(max(0, rank - 2)))
    return (*leading, *(draw(SIZES) for _ in range(min(rank, 2))))


def draw_broadcast(draw: Draw, shape: Shape) -> Shape:
    """Draw a shape that broadcasts to `shape`: possibly fewer dimensions, some of size 1."""
    kept = shape[draw(st.integers(0, len(shape) - 1)) :]
    return tuple(draw(st.sampled_from([size, size, 1])) for size in kept)


def one(values: str = "numbers", min_rank: int = 1, max_rank: int = 4) -> Callable[[Draw], Drawn]:
    """Return a function that draws one operand of any shape."""
    return lambda draw: Drawn((Operand(draw_shape(draw, min_rank, max_rank), values),))


def alike(count: int, values: Sequence[str]) -> Callable[[Draw], Drawn]:
    """Return a function that draws operands of equal shape."""

    def draw_operands(draw: Draw) -> Drawn:
        shape = draw_shape(draw)
        return Drawn(tuple(Operand(shape, values[index % len(values)]) for index in range(count)))

    return draw_operands


def broadcasting(values: str = "numbers") -> Callable[[Draw], Drawn]:
    """Return a function that draws two operands, of which one broadcasts to the other."""

    def draw_operands(draw: Draw) -> Drawn:
        shape = draw_shape(draw)
        pair = [shape, draw_broadcast(draw, shape)]
        if draw(st.booleans()):
            pair.reverse()
        return Drawn(tuple(Operand(one, values) for one in pair))

    return draw_operands
