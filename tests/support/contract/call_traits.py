"""What can be said of a drawn call: traits by which differences.py tells the calls on which the modules may differ."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from tests.support.contract.calls import Call, Operand

_TILE = 32


def tensors(call: Call) -> list[Operand]:
    """The operands of a call, pre-allocated outputs among them."""
    return list(_operands([*call.arguments, *call.options.values()]))


def _operands(values: Any) -> Iterator[Operand]:
    for value in values:
        if isinstance(value, Operand):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _operands(value)


def has_float32(call: Call) -> bool:
    return any(tensor.dtype == "float32" for tensor in tensors(call))


def _is_integer(tensor: Operand) -> bool:
    return tensor.dtype in ("uint32", "int32")


def has_integers(call: Call) -> bool:
    return any(_is_integer(tensor) for tensor in tensors(call))


def has_rows(call: Call) -> bool:
    return any(tensor.layout == "ROW_MAJOR" for tensor in tensors(call))


def mixes_integers_and_floats(call: Call) -> bool:
    return len({_is_integer(tensor) for tensor in tensors(call)}) == 2


def shapes_differ(call: Call) -> bool:
    first, *others = tensors(call)
    return any(other.shape != first.shape for other in others)


def scale_of_other_width(call: Call) -> bool:
    x, _, _, *scales = call.arguments
    return any(
        scale is not None and scale.shape not in ((x.shape[-1],), (1, x.shape[-1])) for scale in scales
    )


def fills_nothing(call: Call) -> bool:
    return not any(name.endswith("_grad") for name in call.options)


def _head_width(call: Call) -> int:
    width = int(call.arguments[0].shape[-1])
    heads = call.options.get("num_heads")
    if heads is None:
        return width
    return width // (heads + 2 * call.options.get("num_kv_heads", heads))


def heads_fill_no_tiles(call: Call) -> bool:
    return _head_width(call) % _TILE != 0


def looks_up_beyond_table(call: Call) -> bool:
    ids, table, *_ = call.arguments
    return bool(ids.below > table.shape[-2])


def gradient_of_other_rows(call: Call) -> bool:
    ids, table, gradient = call.arguments
    return bool(gradient.shape != (1, 1, math.prod(ids.shape), table.shape[-1]))


def bias_of_other_size(call: Call) -> bool:
    bias = call.options.get("bias")
    columns = call.arguments[1].shape[-2 if call.options.get("transpose_b") else -1]
    return bias is not None and (bias.shape[-1], math.prod(bias.shape)) != (columns, columns)


def goes_over_both_axes(call: Call) -> bool:
    return call.options["cluster_axis"] is None


def index_is_longer(call: Call) -> bool:
    values, dim, index = call.arguments
    rank = len(values.shape)
    return len(index.shape) == rank and any(
        place > size
        for axis, (size, place) in enumerate(zip(values.shape, index.shape, strict=True))
        if axis != dim % rank
    )


def cuts_padding(call: Call) -> bool:
    tensor, _, ends, *_ = call.arguments
    return tensor.layout == "TILE" and any(end > size for end, size in zip(ends, tensor.shape, strict=True))


def _dimension(call: Call) -> int:
    return int(call.arguments[-1])


def beyond_rank(call: Call) -> bool:
    rank = len(call.arguments[0].shape)
    return not -rank <= _dimension(call) < rank


def _chips(call: Call) -> int:
    """Chips of the mesh of 2x4 that a call goes along."""
    return {0: 2, 1: 4, None: 8}[call.options["cluster_axis"]]


def uneven_pieces(call: Call) -> bool:
    tensor, dim = call.arguments
    rank = len(tensor.shape)
    return -rank <= dim < rank and bool(tensor.shape[dim] % _chips(call))


def pieces_within_tiles(call: Call) -> bool:
    tensor, dim = call.arguments
    rank = len(tensor.shape)
    return (
        tensor.layout == "TILE"
        and dim % rank >= rank - 2
        and tensor.shape[dim % rank] % (_TILE * _chips(call)) != 0
    )


def cache_too_short(call: Call) -> bool:
    cache, given, *_ = call.arguments
    return bool(given.shape[2] > cache.shape[2])


def fewer_rows_than_batch(call: Call) -> bool:
    cache, given, *_ = call.arguments
    return bool(given.shape[2] < cache.shape[0])


def rotates_odd_tokens(call: Call) -> bool:
    return call.arguments[0].shape[-2] % _TILE != 0


def rotates_odd_widths(call: Call) -> bool:
    width = call.arguments[0].shape[-1]
    return width != _TILE and width % (2 * _TILE) != 0


def tables_that_differ(call: Call) -> bool:
    heads, cosines, sines = call.arguments
    return cosines.shape != sines.shape or cosines.shape[-1] != heads.shape[-1]


def weight_of_many_rows(call: Call) -> bool:
    weight = call.options.get("weight")
    return weight is not None and any(size != 1 for size in weight.shape[:-1])
