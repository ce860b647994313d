"""The calls on which ttnn and the emulator are meant to differ, each with the reason.

The emulator accepts more than ttnn in one way only: float32 for the ops of `mesh.emulator.float32_extensions`.
It refuses calls that ttnn accepts but computes wrongly, and operands that training never uses. Each difference has
an example, and a test fails when the two modules no longer differ on it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mesh.emulator.float32_extensions import WIDENED
from tests.support.contract.call_traits import (
    beyond_rank,
    bias_of_other_size,
    cache_too_short,
    cuts_padding,
    fewer_rows_than_batch,
    fills_nothing,
    goes_over_both_axes,
    gradient_of_other_rows,
    has_float32,
    has_integers,
    has_rows,
    heads_fill_no_tiles,
    index_is_longer,
    looks_up_beyond_table,
    mixes_integers_and_floats,
    pieces_within_tiles,
    rotates_odd_tokens,
    rotates_odd_widths,
    scale_of_other_width,
    shapes_differ,
    tables_that_differ,
    uneven_pieces,
    weight_of_many_rows,
)
from tests.support.contract.calls import Call, Operand


@dataclass(frozen=True)
class Difference:
    """Calls of `ops` of which `applies` is true may be taken by one module alone.

    Attributes:
        reason: what ttnn does with them.
        examples: one of each op, on which the modules differ.
        wider: whether it is the emulator that takes them.
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

_WIDENED_EXAMPLES = {
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
            (op,), f"bfloat16 only; float32 here for {what}", has_float32, (_WIDENED_EXAMPLES[op],), True
        )
        for op, what in WIDENED.items()
    ),
    Difference(
        ("multiply", "where"),
        "mixes integers with floats, in the first operand's dtype",
        mixes_integers_and_floats,
        (
            Call("multiply", (Operand((32, 32), "int32"), Operand((32, 32)))),
            Call("where", (Operand((33, 2)), Operand((33, 2), "uint32"), Operand((33, 1)))),
        ),
    ),
    Difference(
        ("relu_bw", "silu_bw", "experimental.rotary_embedding", "experimental.rotary_embedding_hf"),
        "takes integers, of which it has no gradients or rotations",
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
        "takes row-major operands of some ranks and dimensions, and refuses them of others",
        has_rows,
        (Call("softmax", (Operand((2, 2, 33, 40), layout="ROW_MAJOR"),), {"dim": -1}),),
    ),
    Difference(
        ("where",),
        "takes row-major operands of some kinds, and refuses them of others",
        has_rows,
        (Call("where", (Operand((32, 32), layout="ROW_MAJOR"), Operand((1, 32), layout="ROW_MAJOR"), 0.0)),),
    ),
    Difference(
        ("linear",),
        "adds biases of other sizes, where they broadcast",
        bias_of_other_size,
        (Call("linear", (Operand((1, 64, 64)), Operand((64, 64))), {"bias": Operand((64, 64))}),),
    ),
    Difference(
        ("gather",),
        "reads beyond the other dimensions if they are shorter than the index's",
        index_is_longer,
        (Call("gather", (Operand((1, 4, 4)), 0, Operand((8, 24, 4), "uint32"))),),
    ),
    Difference(
        ("slice",),
        "cuts into the padding of tiles",
        cuts_padding,
        (Call("slice", (Operand((2, 32, 33)), (0, 0, 0), (2, 16, 53))),),
    ),
    Difference(
        ("all_reduce",),
        "sums uint32 if a dimension's tiles divide over the chips, and refuses it otherwise",
        has_integers,
        (Call("all_reduce", (Operand((128, 128), "uint32"),), {"cluster_axis": 1}),),
    ),
    Difference(
        ("all_gather",),
        "gathers over both axes of a mesh what fills no whole tiles, and refuses other tensors",
        goes_over_both_axes,
        (Call("all_gather", (Operand((1, 24, 31)), 1), {"cluster_axis": None}),),
    ),
    Difference(
        ("reduce_scatter",),
        "drops the elements that chips don't divide",
        uneven_pieces,
        (Call("reduce_scatter", (Operand((64, 33)), 1), {"cluster_axis": 0}),),
    ),
    Difference(
        ("mesh_partition",),
        "cuts the padding too if pieces don't begin at whole tiles",
        pieces_within_tiles,
        (Call("mesh_partition", (Operand((1, 40, 40)), 1), {"cluster_axis": 0}),),
    ),
    Difference(
        ("embedding", "embedding_bw"),
        "reads rows beyond the table from wherever that is",
        looks_up_beyond_table,
        (
            Call("embedding", (_IDS, Operand((32, 64)))),
            Call("embedding_bw", (_IDS, Operand((32, 64)), Operand((1, 1, 64, 64)))),
        ),
    ),
    Difference(
        ("embedding_bw",),
        "takes gradients of other rows if they fill as many tiles",
        gradient_of_other_rows,
        (Call("embedding_bw", (_IDS, Operand((64, 64)), Operand((1, 1, 63, 64)))),),
    ),
    Difference(
        ("moreh_layer_norm",),
        "doesn't look at the widths of gamma and beta",
        scale_of_other_width,
        (Call("moreh_layer_norm", (_X, 1, 1e-5, Operand((100,)), None)),),
    ),
    Difference(
        ("moreh_layer_norm_backward",),
        "computes nothing, and looks at nothing, unless an output is pre-allocated",
        fills_nothing,
        (Call("moreh_layer_norm_backward", (_X, _X, Operand((2, 1, 32)), Operand((2, 1, 32)), 1)),),
    ),
    Difference(
        ("moreh_softmax_backward", "moreh_logsoftmax_backward"),
        "doesn't look at the shape of the gradient",
        shapes_differ,
        (
            Call("moreh_softmax_backward", (_X, Operand((2, 1, 32, 32)), 3)),
            Call("moreh_logsoftmax_backward", (_X, Operand((2, 1, 32, 32)), 3)),
        ),
    ),
    Difference(
        ("rms_norm",),
        "takes a weight of many rows if the first has the width",
        weight_of_many_rows,
        (Call("rms_norm", (Operand((3, 3, 24)),), {"epsilon": 1e-5, "weight": Operand((24, 1, 1, 24))}),),
    ),
    Difference(
        ("experimental.nlp_create_qkv_heads",),
        "gives heads that fill no whole tiles a wrong shape",
        heads_fill_no_tiles,
        (Call("experimental.nlp_create_qkv_heads", (Operand((2, 1, 32, 192)),), {"num_heads": 4}),),
    ),
    Difference(
        ("experimental.nlp_concat_heads",),
        "puts the padding of heads that fill no whole tiles between them",
        heads_fill_no_tiles,
        (Call("experimental.nlp_concat_heads", (Operand((2, 3, 32, 48)),)),),
    ),
    Difference(
        ("experimental.rotary_embedding",),
        "pads tokens that fill no tile, also in the result's shape",
        rotates_odd_tokens,
        (Call("experimental.rotary_embedding", (Operand((1, 1, 1, 32)), *(Operand((1, 1, 1, 32)),) * 2)),),
    ),
    Difference(
        ("experimental.rotary_embedding",),
        "takes row-major operands, whose tiles it has to make",
        has_rows,
        (
            Call(
                "experimental.rotary_embedding",
                (Operand((1, 4, 64, 64), layout="ROW_MAJOR"), *(_ROWS_TABLE,) * 2),
            ),
        ),
    ),
    Difference(
        ("experimental.rotary_embedding_hf", "experimental.rotary_embedding"),
        "turns wrong elements if half a head is no tile",
        rotates_odd_widths,
        (
            Call(
                "experimental.rotary_embedding_hf", (Operand((4, 1, 32, 16)), *(Operand((1, 1, 32, 16)),) * 2)
            ),
            Call("experimental.rotary_embedding", (Operand((4, 1, 32, 16)), *(Operand((1, 1, 32, 16)),) * 2)),
        ),
    ),
    Difference(
        ("experimental.rotary_embedding_hf", "experimental.rotary_embedding"),
        "takes tables of other widths, and two that differ, if they fill as many tiles",
        tables_that_differ,
        (
            Call(
                "experimental.rotary_embedding_hf", (Operand((3, 1, 31, 32)), *(Operand((1, 1, 31, 31)),) * 2)
            ),
            Call("experimental.rotary_embedding", (Operand((3, 1, 32, 32)), *(Operand((1, 1, 32, 31)),) * 2)),
        ),
    ),
    Difference(
        ("repeat_interleave", "chunk"),
        "takes dimensions that the tensor hasn't got",
        beyond_rank,
        (
            Call("repeat_interleave", (Operand((32,)), 2, -2)),
            Call("chunk", (Operand((31,)), 3, -2)),
        ),
    ),
    Difference(
        ("fill_cache",),
        "takes more tokens than the window has if they fit its padding",
        cache_too_short,
        (Call("fill_cache", (Operand((4, 3, 24, 96)), Operand((1, 3, 31, 96)), 1)),),
    ),
    Difference(
        ("update_cache",),
        "reads rows that aren't there",
        fewer_rows_than_batch,
        (Call("update_cache", (Operand((4, 1, 32, 32)), Operand((1, 1, 1, 32)), 0)),),
    ),
)


def allowed(call: Call, *, wider: bool) -> bool:
    """Whether the modules may differ on `call`: the emulator alone takes it (`wider`), or ttnn alone does."""
    return any(
        call.op in difference.ops and difference.wider == wider and difference.applies(call)
        for difference in DIFFERENCES
    )


def table() -> list[str]:
    """The differences as lines of a Markdown table."""
    lines = ["| op | what ttnn does | the emulator |", "| --- | --- | --- |"]
    for difference in DIFFERENCES:
        ops = ", ".join(f"`{op}`" for op in difference.ops)
        lines.append(f"| {ops} | {difference.reason} | {'takes it' if difference.wider else 'refuses'} |")
    return lines
