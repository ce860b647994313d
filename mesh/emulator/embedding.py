"""Embedding lookup, and the gradient of the table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mesh.emulator.broadcast import Array, apply_per_chip
from mesh.emulator.float32_extensions import require_dtype
from mesh.emulator.tensor import Tensor, check, check_tiled, note_scratch, wrap, wrap_result
from mesh.emulator.types import DataType, Layout, Shape

_TILE = 32


def embedding(input_tensor: Tensor, weight: Tensor, *, layout: Layout | None = None) -> Tensor:
    """Return rows [B, T, E] of the table `weight`, [V, E] or [1, 1, V, E], for ids [B, T].

    Ids are uint32 in any layout. ttnn needs a bfloat16 table; float32 is accepted here too. `layout` defaults to that
    of the table. Raises RuntimeError for ids beyond the table, where the device reads out of bounds.
    """
    op = "embedding"
    check(op, input_tensor)
    check(op, weight)
    require_dtype(op, weight.dtype)
    table = _table(op, weight)
    ids = input_tensor.array
    if input_tensor.dtype is not DataType.UINT32 or ids.ndim != 4:
        raise RuntimeError(
            f"{op}: ids {input_tensor.shape} of {input_tensor.dtype}, expected [B, T] of UINT32"
        )
    _check_ids(op, ids, table.shape[2])

    def rows(one: Array, of: Array) -> Sequence[Array]:
        return (np.take(of, one, axis=0, mode="clip"),)

    (taken,) = apply_per_chip(rows, ids, table)
    result = wrap(taken, weight.dtype, weight.layout if layout is None else layout, weight.mesh)
    if result.layout is Layout.TILE:
        note_scratch(result, 1)  # rows, which are then made tiles
    return result


def embedding_bw(input_tensor: Tensor, weight_tensor: Tensor, output_gradient_tensor: Tensor) -> Tensor:
    """Return the table's gradient [1, 1, V, E] for the rows' gradient [1, 1, B * T, E].

    Rows of one id are added in order of position, in float32, and round once. Ids are uint32 in row-major layout, and
    T is a multiple of 32. Raises RuntimeError for other ids, for gradients of another shape, and for ids beyond the
    table, where the device reads out of bounds.
    """
    op = "embedding_bw"
    check(op, input_tensor)
    check(op, weight_tensor)
    check_tiled(op, output_gradient_tensor)
    require_dtype(op, output_gradient_tensor.dtype)
    table = _table(op, weight_tensor)
    ids, grad = input_tensor.array, output_gradient_tensor.array
    if input_tensor.dtype is not DataType.UINT32 or ids.ndim != 4:
        raise RuntimeError(
            f"{op}: ids {input_tensor.shape} of {input_tensor.dtype}, expected [B, T] of UINT32"
        )
    if input_tensor.layout is not Layout.ROW_MAJOR:
        raise RuntimeError(f"{op}: Index tensor layout must be ROW_MAJOR but got {input_tensor.layout}")
    if ids.shape[3] % _TILE:
        raise RuntimeError(f"{op}: Number of columns in the index tensor must be divisible by tile width")
    _check_ids(op, ids, table.shape[2])
    vocabulary, width = table.shape[2:]
    expected = (1, 1, ids.shape[2] * ids.shape[3], width)
    if grad.shape[2:] != expected:
        raise RuntimeError(
            f"{op}: gradient of shape {output_gradient_tensor.shape}, expected {Shape(expected)}"
        )

    def table_gradient(one: Array, rows: Array) -> Sequence[Array]:
        return (_scatter_add(one.reshape(-1), rows[0, 0], vocabulary)[np.newaxis, np.newaxis],)

    (summed,) = apply_per_chip(table_gradient, ids, grad)
    return wrap_result(output_gradient_tensor, summed)


def _table(op: str, weight: Tensor) -> Array:
    array = weight.array
    if array.ndim == 6 and array.shape[2:4] == (1, 1):
        return array.reshape(*array.shape[:2], *array.shape[4:])
    if array.ndim != 4:
        raise RuntimeError(f"{op}: table of shape {weight.shape}, expected [V, E] or [1, 1, V, E]")
    return array


def _check_ids(op: str, ids: Array, vocabulary: int) -> None:
    if ids.size and int(ids.max()) >= vocabulary:
        raise RuntimeError(f"{op}: id {int(ids.max())} beyond the table's {vocabulary} rows")


def _scatter_add(ids: Array, rows: Array, count: int) -> Array:
    """Return zeros [count, E] after `out[ids[i]] += rows[i]` for each i, in order."""
    order = np.argsort(ids, kind="stable")
    found, starts = np.unique(ids[order], return_index=True)
    out = np.zeros((count, rows.shape[1]), np.float32)
    out[found] = np.add.reduceat(rows[order], starts, axis=0)
    return out
