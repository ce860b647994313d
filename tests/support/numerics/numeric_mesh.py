"""Runs numerics cases on an emulated mesh: places operands on chips and compares results chip by chip."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from hypothesis import strategies as st

from mesh.device import Mesh
from mesh.emulator.rounding import round_to_bfloat16
from tests.support.numerics.numeric_case import Array, Case, Draw, Drawn, Operand, as_tuple, draw_values


def draw_operands(draw: Draw, case: Case, mesh: Mesh, dtype: str) -> tuple[Drawn, list[Array]]:
    """Draw a call and the values of its operands, each [rows or 1, columns or 1, *shape]."""
    drawn = case.draw(draw)
    numbers = np.random.Generator(np.random.Philox(draw(st.integers(0, 2**32 - 1))))
    values = []
    for operand in drawn.operands:
        over = tuple(
            size if operand.shards and operand.shape and draw(st.booleans()) else 1 for size in mesh.shape
        )
        if len(operand.shape) < sum(size > 1 for size in over):
            over = (1, mesh.shape[1])
        chosen = draw_values(operand, over, numbers)
        values.append(
            round_to_bfloat16(chosen) if dtype == "bfloat16" and chosen.dtype == np.float32 else chosen
        )
    return drawn, values


def run(case: Case, mesh: Mesh, drawn: Drawn, values: list[Array], dtype: str) -> list[Array]:
    """Run the call and return its results, each [rows, columns, *shape on a chip]."""
    tensors = [
        place(mesh, operand, value, dtype) for operand, value in zip(drawn.operands, values, strict=True)
    ]
    results = case.call(mesh.tt, mesh.handle, *tensors, **drawn.options)
    return [read_chips(mesh, result) for result in as_tuple(results) if result is not None]


def place(mesh: Mesh, operand: Operand, values: Array, dtype: str) -> Any:
    """Upload values [rows or 1, columns or 1, *shape] with the mapper that a model would use."""
    tt = mesh.tt
    kind = tt.uint32 if values.dtype == np.uint32 else getattr(tt, dtype)
    if operand.values == "unset":
        return tt.empty(list(operand.shape), dtype=kind, layout=tt.TILE_LAYOUT, device=mesh.handle)
    wide = [axis for axis in (0, 1) if values.shape[axis] > 1]
    placements: list[Any] = [tt.PlacementReplicate(), tt.PlacementReplicate()]
    whole = values
    for dim, axis in enumerate(wide):
        placements[axis] = tt.PlacementShard(dim)
        whole = np.concatenate(np.split(whole, whole.shape[axis], axis=axis), axis=dim + 2)
    mapper = tt.create_mesh_mapper(mesh.handle, tt.MeshMapperConfig(placements))
    layout = getattr(tt, f"{operand.layout}_LAYOUT")
    return tt.Tensor(whole[0, 0].copy(), kind, device=mesh.handle, layout=layout, mesh_mapper=mapper)


def read_chips(mesh: Mesh, tensor: Any) -> Array:
    """Return a result's values on each chip, [rows, columns, *shape]."""
    tt = mesh.tt
    host = tensor.cpu()
    if tensor.dtype is tt.bfloat16:
        host = tt.to_dtype(host, tt.float32)
    chips = [chip.to_numpy() for chip in tt.get_device_tensors(host)]
    returned: Array = np.stack(chips).reshape(*mesh.shape, *chips[0].shape)
    return returned


def compute_expected(
    case: Case, mesh: Mesh, drawn: Drawn, values: list[Array]
) -> Iterator[tuple[Array, Any]]:
    """Yield the reference's value and the magnitude of its terms for each result, [rows, columns, *shape]."""
    spread = [np.broadcast_to(value, (*mesh.shape, *value.shape[2:])) for value in values]
    exact = [to_float64(value) for value in spread]
    with np.errstate(all="ignore"):
        if case.over_mesh:
            whole = as_tuple(case.reference(*exact, **drawn.options))
            magnitudes = as_tuple(0.0 if case.magnitude is None else case.magnitude(*exact, **drawn.options))
            yield from zip(whole, magnitudes, strict=True)
            return
        chips = [(row, col) for row in range(mesh.shape[0]) for col in range(mesh.shape[1])]
        of_chips = [[array[chip] for array in exact] for chip in chips]
        results = [as_tuple(case.reference(*arrays, **drawn.options)) for arrays in of_chips]
        for index in range(len(results[0])):
            expected = np.stack([result[index] for result in results])
            magnitude: Any = 0.0
            if case.magnitude is not None:
                terms = [as_tuple(case.magnitude(*arrays, **drawn.options)) for arrays in of_chips]
                magnitude = np.stack([np.broadcast_to(term[index], expected.shape[1:]) for term in terms])
                magnitude = magnitude.reshape(*mesh.shape, *expected.shape[1:])
            yield expected.reshape(*mesh.shape, *expected.shape[1:]), magnitude


def to_float64(values: Array) -> Array:
    """Convert floats to float64 for the reference; indices stay the same."""
    return values.astype(np.float64) if values.dtype == np.float32 else values


def assert_within(actual: Array, expected: Array, tolerance: float, magnitude: Any) -> None:
    """Check |actual - expected| <= tolerance * (|expected| + magnitude), and equal infinities and NaN."""
    assert actual.shape == expected.shape
    with np.errstate(over="ignore", invalid="ignore"):
        expected = expected.astype(actual.dtype)
    if tolerance == 0:
        assert np.array_equal(actual, expected, equal_nan=actual.dtype == np.float32)
        assert (np.signbit(actual) == np.signbit(expected))[expected == 0].all()
        return
    assert (np.isnan(actual) == np.isnan(expected)).all()
    infinite = np.isinf(expected)
    assert (actual[infinite] == expected[infinite]).all()
    finite = np.isfinite(expected)
    assert np.isfinite(actual[finite]).all()
    # float32 can't distinguish results below its smallest normal number from 0.
    bound = tolerance * (np.abs(expected.astype(np.float64)) + magnitude) + np.finfo(np.float32).tiny
    with np.errstate(invalid="ignore"):
        wrong = (
            np.abs(actual.astype(np.float64) - expected)[finite]
            / np.broadcast_to(bound, expected.shape)[finite]
        )
    assert wrong.max(initial=0.0) <= 1, f"{wrong.max():.3g} times the bound"
