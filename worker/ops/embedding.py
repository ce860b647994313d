"""Rows of a table by token id."""

from __future__ import annotations

from worker.autograd import Parameter, Tape, Tensor, Variable


def embedding(tape: Tape, ids: Variable, table: Parameter) -> Variable:
    """The table's row for each id.

    Args:
        tape: of this pass.
        ids: uint32 row-major [sequences, tokens], tokens a multiple of 32 (the gradient's kernel wants that).
        table: [vocabulary, width].

    Returns:
        [1, 1, sequences x tokens, width].
    """
    tt = tape.mesh.tt
    ids_value, table_value = ids.value, table.value
    width = table.shape[1]
    rows = tt.embedding(ids_value, table_value, layout=tt.TILE_LAYOUT)
    value = tt.reshape(rows, [1, 1, ids_value.shape[0] * ids_value.shape[1], width])

    def backward(gradient: Tensor) -> tuple[Tensor | None, ...]:
        return None, tt.embedding_bw(ids_value, table_value, gradient)

    return tape.record(value, (ids, table), backward)
