"""Rows of a table by token id; with tensor parallelism each device looks up the rows that it has."""

from __future__ import annotations

import numpy as np

from mesh.collectives import all_reduce
from mesh.placement import REPLICATED, Placements, sharded
from training.autograd.tape import Tape
from training.autograd.variable import Parameter, Tensor, Variable
from training.inputs import Array
from training.ops.placing import gathered, rows_of


def embedding(tape: Tape, ids: Array, table: Parameter) -> Variable:
    """Return the table's row for each id.

    Gradient: row r of dtable is the sum of the result's gradient over the positions whose id is r.

    Args:
        tape: the tape of this pass.
        ids: uint32 [sequences, tokens], an array of the batch. The gradient's kernel needs a multiple of 32 tokens.
            Sequences are shared out over the data axis.
        table: [vocabulary, width].

    Returns:
        [1, 1, sequences x tokens of one device, width], tiles.
    """
    mesh = tape.mesh
    tt = mesh.tt
    ids_value, own = _look_up(tape, ids, table)
    width = table.shape[1]
    rows = tt.embedding(ids_value, gathered(mesh, table), layout=tt.TILE_LAYOUT)
    value = tt.reshape(rows, [1, 1, ids_value.shape[0] * ids_value.shape[1], width])
    if own is not None:
        value = all_reduce(mesh, tt.multiply(value, own), mesh.axes.tensor)

    def backward(gradient: Tensor) -> tuple[Tensor | None, ...]:
        if own is not None:
            gradient = tt.multiply(gradient, own)
        return (tt.embedding_bw(ids_value, gathered(mesh, table), gradient),)

    return tape.record(value, (table,), backward, rows_of(mesh))


def _look_up(tape: Tape, ids: Array, table: Parameter) -> tuple[Tensor, Tensor | None]:
    """Return ids within each device's part of the table, and a mask with 1 for each row that this device has.

    The mask is None if each device has the whole table. Both are made on the host, because the library's integer
    arithmetic is incomplete.
    """
    mesh = tape.mesh
    tt = mesh.tt
    data = rows_of(mesh).data
    batch = REPLICATED if data == REPLICATED else sharded(0)
    if table.placements.tensor == REPLICATED:
        whole = Placements(batch, REPLICATED)
        return tape.input(ids, dtype=tt.uint32, layout=tt.ROW_MAJOR_LAYOUT, placements=whole).value, None
    devices, rows = range(mesh.tensor_size), table.value.shape[2]

    def local(array: Array) -> Array:
        parts = [np.where(array // rows == device, array - device * rows, 0) for device in devices]
        joined: Array = np.concatenate(parts, axis=1).astype(np.uint32)
        return joined

    def own(array: Array) -> Array:
        parts = [(array // rows == device).reshape(1, 1, -1, 1) for device in devices]
        joined: Array = np.concatenate(parts, axis=0).astype(np.float32)
        return joined

    local_ids = tape.input(
        ids,
        dtype=tt.uint32,
        layout=tt.ROW_MAJOR_LAYOUT,
        placements=Placements(batch, sharded(1)),
        prepare=local,
    )
    mask = tape.input(
        ids,
        dtype=mesh.dtype,
        layout=tt.TILE_LAYOUT,
        placements=Placements(data, sharded(0)),
        prepare=own,
    )
    return local_ids.value, mask.value
