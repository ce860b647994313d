"""Rows of a table by token id; in tensor parallel each device looks up those that it has."""

from __future__ import annotations

import numpy as np

from mesh.collectives import all_reduce
from mesh.placement import REPLICATED, Placements, sharded
from training.autograd import Parameter, Tape, Tensor, Variable
from training.inputs import Array
from training.ops.placing import gathered, rows_of


def embedding(tape: Tape, ids: Array, table: Parameter) -> Variable:
    """The table's row for each id.

    Args:
        tape: of this pass.
        ids: uint32 [sequences, tokens], an array of the batch, tokens a multiple of 32 (the gradient's kernel wants
            that); sequences are shared out over the data axis.
        table: [vocabulary, width].

    Returns:
        [1, 1, sequences x tokens of one device, width].
    """
    mesh = tape.mesh
    tt = mesh.tt
    ids_value, own = _lookup(tape, ids, table)
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


def _lookup(tape: Tape, ids: Array, table: Parameter) -> tuple[Tensor, Tensor | None]:
    """Ids within each device's part of the table, and 1 for each row (else 0) that this device has; None if it has all.

    Made on the host, where the ids come from: the library's integer arithmetic is thin.
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
