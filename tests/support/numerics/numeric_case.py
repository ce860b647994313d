"""What a numerics test of an op is made of: drawn operands, the call, and a float64 reference of what a chip does."""

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
    """A tensor to make for a call.

    Attributes:
        shape: on each chip.
        values: how they are drawn: see `draw_values`.
        below: integers are below this.
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
    """Operands of a call, and what else it is told."""

    operands: tuple[Operand, ...]
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """How an op is held to a reference.

    Attributes:
        op: its path in the module.
        draw: draws operands and options.
        call: calls it: (module, device, tensors, **options) -> a tensor or several.
        reference: the same of one chip's arrays in float64: (*arrays, **options) -> an array or several. If
            `over_mesh`, of all chips' arrays [rows, cols, ...], then with `axis`, the mesh axis, among the options.
        tolerance: |actual - expected| is at most this times (|expected| + magnitude); 0 means the same bits.
        magnitude: how large the terms are that cancel in the result: (*arrays, **options) -> what broadcasts with it.
        name: tells the cases of one op apart.
        over_mesh: whether the op makes chips' values meet.
        rounds: whether bfloat16 results are the float32 ones rounded once.
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
    """Values [rows, cols, *shape] of the kind that the operand asks for: float32, or uint32 for `indices`."""
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
        raise ValueError(f"values: {operand.values!r}")
    result: Array = drawn.astype(np.float32)
    return result


_POINTS = np.array([0.0, -0.0, np.inf, -np.inf, 1e30, -1e30, 1e-30, -1e-30, 80.0, -80.0, 1.0])


def _logits(normal: Array, shape: Shape, numbers: np.random.Generator) -> Array:
    """Scores as models have them, row by row: small, large, all equal, zero, one far above, most of them masked."""
    rows = (*shape[:-1], 1)
    kind = numbers.integers(0, 6, rows)
    spike = np.where(np.arange(shape[-1]) == numbers.integers(0, shape[-1], rows), 3e4, 0.0)
    masked = np.where(np.arange(shape[-1]) <= numbers.integers(0, shape[-1], rows), normal, -1e9)
    kinds = [normal, 30 * normal, 3e4 + 0 * normal, 0 * normal, normal + spike, masked]
    return np.choose(kind, kinds)


def as_tuple(results: Any) -> tuple[Any, ...]:
    """One or several results as a tuple."""
    return tuple(results) if isinstance(results, (tuple, list)) else (results,)


# Shapes ---------------------------------------------------------------------------------------------------------------

SIZES = st.sampled_from([1, 2, 3, 5, 8, 17, 31, 32, 33, 40])
"""Of a dimension: whole tiles and others."""

FEW = st.integers(1, 3)
"""Of a batch dimension, or a number of heads."""


def draw_shape(draw: Draw, least: int = 1, most: int = 4) -> Shape:
    """A shape of a rank, its leading dimensions small."""
    rank = draw(st.integers(least, most))
    leading = tuple(draw(FEW) for _ in range(max(0, rank - 2)))
    return (*leading, *(draw(SIZES) for _ in range(min(rank, 2))))


def draw_broadcast(draw: Draw, shape: Shape) -> Shape:
    """A shape that broadcasts to `shape`: perhaps fewer dimensions, some of size 1."""
    kept = shape[draw(st.integers(0, len(shape) - 1)) :]
    return tuple(draw(st.sampled_from([size, size, 1])) for size in kept)


def one(values: str = "numbers", least: int = 1, most: int = 4) -> Callable[[Draw], Drawn]:
    """Draws one operand of any shape."""
    return lambda draw: Drawn((Operand(draw_shape(draw, least, most), values),))


def alike(count: int, values: Sequence[str]) -> Callable[[Draw], Drawn]:
    """Draws operands of one shape."""

    def drawing(draw: Draw) -> Drawn:
        shape = draw_shape(draw)
        return Drawn(tuple(Operand(shape, values[index % len(values)]) for index in range(count)))

    return drawing


def broadcasting(values: str = "numbers") -> Callable[[Draw], Drawn]:
    """Draws two operands that broadcast, either of them to the other."""

    def drawing(draw: Draw) -> Drawn:
        shape = draw_shape(draw)
        pair = [shape, draw_broadcast(draw, shape)]
        if draw(st.booleans()):
            pair.reverse()
        return Drawn(tuple(Operand(one, values) for one in pair))

    return drawing
