"""Rows of a table by token id; in tensor parallel each device looks up those that it has."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mesh.collectives import all_reduce
from mesh.placement import REPLICATED, Placements, sharded
from mesh.transfer import upload
from worker.autograd import Parameter, Tape, Tensor, Variable
from worker.ops.placing import gathered, rows_of


def embedding(tape: Tape, ids: npt.NDArray[np.uint32], table: Parameter) -> Variable:
    """The table's row for each id.

    Args:
        tape: of this pass.
        ids: [sequences, tokens] on the host, tokens a multiple of 32 (the gradient's kernel wants that); sequences are
            shared out over the data axis.
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


def _lookup(tape: Tape, ids: npt.NDArray[np.uint32], table: Parameter) -> tuple[Tensor, Tensor | None]:
    """Ids within each device's part of the table, and 1 for each row (else 0) that this device has; None if it has all.

    Made on the host, where the ids come from: the library's integer arithmetic is thin.
    """
    mesh = tape.mesh
    tt = mesh.tt
    data = rows_of(mesh).data
    batch = REPLICATED if data == REPLICATED else sharded(0)
    if table.placements.tensor == REPLICATED:
        placed: Placements = Placements(batch, REPLICATED)
        return upload(mesh, ids, dtype=tt.uint32, layout=tt.ROW_MAJOR_LAYOUT, placements=placed), None
    devices, rows = mesh.tensor_size, table.value.shape[2]
    device_of = ids // rows
    local: list[npt.NDArray[Any]] = []
    own: list[npt.NDArray[Any]] = []
    for device in range(devices):
        here = device_of == device
        local.append(np.where(here, ids - device * rows, 0).astype(np.uint32))
        own.append(here.astype(np.float32).reshape(1, 1, -1, 1))
    return (
        upload(
            mesh,
            np.concatenate(local, axis=1),
            dtype=tt.uint32,
            layout=tt.ROW_MAJOR_LAYOUT,
            placements=Placements(batch, sharded(1)),
        ),
        upload(
            mesh,
            np.concatenate(own, axis=0),
            dtype=mesh.dtype,
            layout=tt.TILE_LAYOUT,
            placements=Placements(data, sharded(0)),
        ),
    )
