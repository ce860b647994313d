"""The calls on which ttnn and the emulator are meant to differ, each with the reason.

The emulator accepts more than ttnn in one way only: float32 for the ops of `mesh.emulator.float32_extensions`.
It refuses calls that ttnn accepts but computes wrongly, and operands that training never uses. Each difference has
an example, and a test fails when the two modules no longer differ on it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mesh.emulator.float32_extensions import FLOAT32_OPS
from tests.support.contract.call_traits import (
    has_bias_of_other_size,
    has_dimension_beyond_rank,
    has_fewer_rows_than_batch,
    has_float32,
    has_gradient_of_other_rows,
    has_ids_beyond_table,
    has_integers,
    has_longer_index,
    has_mismatched_tables,
    has_no_output,
    has_partial_tile_heads,
    has_partial_tile_shards,
    has_row_major,
    has_scale_of_other_width,
    has_uneven_shards,
    has_weight_of_many_rows,
    mixes_integers_and_floats,
    overflows_cache,
    rotates_partial_tile_halves,
    rotates_partial_tile_of_tokens,
    shapes_differ,
    slices_padding,
    uses_both_axes,
)
from tests.support.contract.calls import Call, Operand


@dataclass(frozen=True)
class Difference:
    """Calls that one module may accept alone.

    Attributes:
        ops: names of the ops.
        reason: what ttnn does with such calls.
        applies: predicate that selects the calls.
        examples: one call per op on which the modules differ.
        wider: whether the emulator is the one that accepts them.
    """

    ops: tuple[str, ...]
    reason: str
    applies: Callable[[Call], bool]
    examples: tuple[Call, ...]
    wider: bool = False


_X = Operand((2, 1, 32, 64))
_FLOAT32 = Operand((2, 1, 32, 64), "float32")
_IDS = Operand((2, 32), "uint32", "ROW_MAJOR", below=64)

_ROWS_TABLE = Operand((1, 1, 64, 64), layout="ROW_MAJOR")

_FLOAT32_EXAMPLES = {
    "embedding": Call("embedding", (_IDS, Operand((64, 64), "float32"))),
    "embedding_bw": Call(
        "embedding_bw", (_IDS, Operand((64, 64), "float32"), Operand((1, 1, 64, 64), "float32"))
    ),
    "moreh_layer_norm": Call("moreh_layer_norm", (_FLOAT32, 1, 1e-5, None, None)),
    "moreh_layer_norm_backward": Call(
        "moreh_layer_norm_backward",
        (_FLOAT32, _FLOAT32, Operand((2, 1, 32), "float32"), Operand((2, 1, 32), "float32"), 1),
        {"input_grad": Operand((2, 1, 32, 64), "float32", empty=True)},
    ),
    "moreh_softmax_backward": Call("moreh_softmax_backward", (_FLOAT32, _FLOAT32, 3)),
    "moreh_logsoftmax_backward": Call("moreh_logsoftmax_backward", (_FLOAT32, _FLOAT32, 3)),
    "experimental.dropout": Call(
        "experimental.dropout", (_FLOAT32,), {"probability": 0.5, "scale": 2.0, "seed": 1}
    ),
}

DIFFERENCES: tuple[Difference, ...] = (
    *(
        Difference(
            (op,),
            f"accepts bfloat16 only; the emulator also float32 for {what}",
            has_float32,
            (_FLOAT32_EXAMPLES[op],),
            True,
        )
        for op, what in FLOAT32_OPS.items()
    ),
    Difference(
        ("multiply", "where"),
        "mixes integers and floats, in the first operand's dtype",
        mixes_integers_and_floats,
        (
            Call("multiply", (Operand((32, 32), "int32"), Operand((32, 32)))),
            Call("where", (Operand((33, 2)), Operand((33, 2), "uint32"), Operand((33, 1)))),
        ),
    ),
    Difference(
        ("relu_bw", "silu_bw", "experimental.rotary_embedding", "experimental.rotary_embedding_hf"),
        "accepts integers, for which it has no gradient or rotation",
        has_integers,
        (
            Call("relu_bw", (Operand((32, 32), "int32"), Operand((32, 32), "int32"))),
            Call("silu_bw", (Operand((96, 96), "int32"), Operand((96, 96)))),
            Call(
                "experimental.rotary_embedding",
                (Operand((1, 1, 32, 32), "int32"), *(Operand((1, 1, 32, 32)),) * 2),
            ),
            Call(
                "experimental.rotary_embedding_hf",
                (Operand((1, 1, 32, 32), "int32"), *(Operand((1, 1, 32, 32)),) * 2),
            ),
        ),
    ),
    Difference(
        ("softmax",),
        "accepts row-major operands for some ranks and dimensions only",
        has_row_major,
        (Call("softmax", (Operand((2, 2, 33, 40), layout="ROW_MAJOR"),), {"dim": -1}),),
    ),
    Difference(
        ("where",),
        "accepts some combinations of row-major operands only",
        has_row_major,
        (Call("where", (Operand((32, 32), layout="ROW_MAJOR"), Operand((1, 32), layout="ROW_MAJOR"), 0.0)),),
    ),
    Difference(
        ("linear",),
        "adds biases of other sizes if they broadcast",
        has_bias_of_other_size,
        (Call("linear", (Operand((1, 64, 64)), Operand((64, 64))), {"bias": Operand((64, 64))}),),
    ),
    Difference(
        ("gather",),
        "reads out of bounds if the index is longer in another dimension",
        has_longer_index,
        (Call("gather", (Operand((1, 4, 4)), 0, Operand((8, 24, 4), "uint32"))),),
    ),
    Difference(
        ("slice",),
        "slices into the padding of tiles",
        slices_padding,
        (Call("slice", (Operand((2, 32, 33)), (0, 0, 0), (2, 16, 53))),),
    ),
    Difference(
        ("all_reduce",),
        "sums uint32 only if a dimension's tiles divide evenly over the chips",
        has_integers,
        (Call("all_reduce", (Operand((128, 128), "uint32"),), {"cluster_axis": 1}),),
    ),
    Difference(
        ("all_gather",),
        "gathers over both axes only tensors with partial tiles",
        uses_both_axes,
        (Call("all_gather", (Operand((1, 24, 31)), 1), {"cluster_axis": None}),),
    ),
    Difference(
        ("reduce_scatter",),
        "drops the elements that don't divide evenly over the chips",
        has_uneven_shards,
        (Call("reduce_scatter", (Operand((64, 33)), 1), {"cluster_axis": 0}),),
    ),
    Difference(
        ("mesh_partition",),
        "includes padding if shards don't start at whole tiles",
        has_partial_tile_shards,
        (Call("mesh_partition", (Operand((1, 40, 40)), 1), {"cluster_axis": 0}),),
    ),
    Difference(
        ("embedding", "embedding_bw"),
        "reads out of bounds for ids beyond the table",
        has_ids_beyond_table,
        (
            Call("embedding", (_IDS, Operand((32, 64)))),
            Call("embedding_bw", (_IDS, Operand((32, 64)), Operand((1, 1, 64, 64)))),
        ),
    ),
    Difference(
        ("embedding_bw",),
        "accepts gradients with another number of rows in as many tiles",
        has_gradient_of_other_rows,
        (Call("embedding_bw", (_IDS, Operand((64, 64)), Operand((1, 1, 63, 64)))),),
    ),
    Difference(
        ("moreh_layer_norm",),
        "doesn't check the widths of gamma and beta",
        has_scale_of_other_width,
        (Call("moreh_layer_norm", (_X, 1, 1e-5, Operand((100,)), None)),),
    ),
    Difference(
        ("moreh_layer_norm_backward",),
        "computes and checks nothing without a pre-allocated output",
        has_no_output,
        (Call("moreh_layer_norm_backward", (_X, _X, Operand((2, 1, 32)), Operand((2, 1, 32)), 1)),),
    ),
    Difference(
        ("moreh_softmax_backward", "moreh_logsoftmax_backward"),
        "doesn't check the shape of the gradient",
        shapes_differ,
        (
            Call("moreh_softmax_backward", (_X, Operand((2, 1, 32, 32)), 3)),
            Call("moreh_logsoftmax_backward", (_X, Operand((2, 1, 32, 32)), 3)),
        ),
    ),
    Difference(
        ("rms_norm",),
        "accepts a weight of several rows and uses the first",
        has_weight_of_many_rows,
        (Call("rms_norm", (Operand((3, 3, 24)),), {"epsilon": 1e-5, "weight": Operand((24, 1, 1, 24))}),),
    ),
    Difference(
        ("experimental.nlp_create_qkv_heads",),
        "returns a wrong shape for heads of partial tiles",
        has_partial_tile_heads,
        (Call("experimental.nlp_create_qkv_heads", (Operand((2, 1, 32, 192)),), {"num_heads": 4}),),
    ),
    Difference(
        ("experimental.nlp_concat_heads",),
        "leaves the padding of partial tiles between heads",
        has_partial_tile_heads,
        (Call("experimental.nlp_concat_heads", (Operand((2, 3, 32, 48)),)),),
    ),
    Difference(
        ("experimental.rotary_embedding",),
        "pads partial tiles of tokens in the result's shape too",
        rotates_partial_tile_of_tokens,
        (Call("experimental.rotary_embedding", (Operand((1, 1, 1, 32)), *(Operand((1, 1, 1, 32)),) * 2)),),
    ),
    Difference(
        ("experimental.rotary_embedding",),
        "accepts row-major operands and tilizes them",
        has_row_major,
        (
            Call(
                "experimental.rotary_embedding",
                (Operand((1, 4, 64, 64), layout="ROW_MAJOR"), *(_ROWS_TABLE,) * 2),
            ),
        ),
    ),
    Difference(
        ("experimental.rotary_embedding_hf", "experimental.rotary_embedding"),
        "rotates wrong elements if half a head is no whole tile",
        rotates_partial_tile_halves,
        (
            Call(
                "experimental.rotary_embedding_hf", (Operand((4, 1, 32, 16)), *(Operand((1, 1, 32, 16)),) * 2)
            ),
            Call("experimental.rotary_embedding", (Operand((4, 1, 32, 16)), *(Operand((1, 1, 32, 16)),) * 2)),
        ),
    ),
    Difference(
        ("experimental.rotary_embedding_hf", "experimental.rotary_embedding"),
        "accepts tables of other or different widths in as many tiles",
        has_mismatched_tables,
        (
            Call(
                "experimental.rotary_embedding_hf", (Operand((3, 1, 31, 32)), *(Operand((1, 1, 31, 31)),) * 2)
            ),
            Call("experimental.rotary_embedding", (Operand((3, 1, 32, 32)), *(Operand((1, 1, 32, 31)),) * 2)),
        ),
    ),
    Difference(
        ("repeat_interleave", "chunk"),
        "accepts dimensions that are out of range",
        has_dimension_beyond_rank,
        (
            Call("repeat_interleave", (Operand((32,)), 2, -2)),
            Call("chunk", (Operand((31,)), 3, -2)),
        ),
    ),
    Difference(
        ("fill_cache",),
        "accepts more tokens than the window has if they fit its padding",
        overflows_cache,
        (Call("fill_cache", (Operand((4, 3, 24, 96)), Operand((1, 3, 31, 96)), 1)),),
    ),
    Difference(
        ("update_cache",),
        "reads rows out of bounds",
        has_fewer_rows_than_batch,
        (Call("update_cache", (Operand((4, 1, 32, 32)), Operand((1, 1, 1, 32)), 0)),),
    ),
)


def is_allowed(call: Call, *, wider: bool) -> bool:
    """Return whether only one module may accept `call`: the emulator if `wider`, else ttnn."""
    return any(
        call.op in difference.ops and difference.wider == wider and difference.applies(call)
        for difference in DIFFERENCES
    )


def format_table() -> list[str]:
    """Return the differences as lines of a Markdown table."""
    lines = ["| op | what ttnn does | the emulator |", "| --- | --- | --- |"]
    for difference in DIFFERENCES:
        ops = ", ".join(f"`{op}`" for op in difference.ops)
        lines.append(f"| {ops} | {difference.reason} | {'accepts' if difference.wider else 'refuses'} |")
    return lines
