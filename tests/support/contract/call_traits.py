"""Predicates on calls, by which differences.py selects those on which the modules may differ."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from tests.support.contract.calls import Call, Operand

_TILE = 32


def tensors(call: Call) -> list[Operand]:
    """Return the operands of a call, including pre-allocated outputs."""
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


def has_row_major(call: Call) -> bool:
    return any(tensor.layout == "ROW_MAJOR" for tensor in tensors(call))


def mixes_integers_and_floats(call: Call) -> bool:
    return len({_is_integer(tensor) for tensor in tensors(call)}) == 2


def shapes_differ(call: Call) -> bool:
    first, *others = tensors(call)
    return any(other.shape != first.shape for other in others)


def has_scale_of_other_width(call: Call) -> bool:
    x, _, _, *scales = call.arguments
    return any(
        scale is not None and scale.shape not in ((x.shape[-1],), (1, x.shape[-1])) for scale in scales
    )


def has_no_output(call: Call) -> bool:
    return not any(name.endswith("_grad") for name in call.options)


def _head_width(call: Call) -> int:
    width = int(call.arguments[0].shape[-1])
    heads = call.options.get("num_heads")
    if heads is None:
        return width
    return int(width // (heads + 2 * call.options.get("num_kv_heads", heads)))


def has_partial_tile_heads(call: Call) -> bool:
    return _head_width(call) % _TILE != 0


def has_ids_beyond_table(call: Call) -> bool:
    ids, table, *_ = call.arguments
    return bool(ids.below > table.shape[-2])


def has_gradient_of_other_rows(call: Call) -> bool:
    ids, table, gradient = call.arguments
    return bool(gradient.shape != (1, 1, math.prod(ids.shape), table.shape[-1]))


def has_bias_of_other_size(call: Call) -> bool:
    bias = call.options.get("bias")
    columns = call.arguments[1].shape[-2 if call.options.get("transpose_b") else -1]
    return bias is not None and (bias.shape[-1], math.prod(bias.shape)) != (columns, columns)


def uses_both_axes(call: Call) -> bool:
    return call.options["cluster_axis"] is None


def has_longer_index(call: Call) -> bool:
    values, dim, index = call.arguments
    rank = len(values.shape)
    return len(index.shape) == rank and any(
        place > size
        for axis, (size, place) in enumerate(zip(values.shape, index.shape, strict=True))
        if axis != dim % rank
    )


def slices_padding(call: Call) -> bool:
    tensor, _, ends, *_ = call.arguments
    return tensor.layout == "TILE" and any(end > size for end, size in zip(ends, tensor.shape, strict=True))


def _dimension(call: Call) -> int:
    return int(call.arguments[-1])


def has_dimension_beyond_rank(call: Call) -> bool:
    rank = len(call.arguments[0].shape)
    return not -rank <= _dimension(call) < rank


def _chips(call: Call) -> int:
    """Return the number of chips along the call's axis of the 2x4 mesh."""
    return {0: 2, 1: 4, None: 8}[call.options["cluster_axis"]]


def has_uneven_shards(call: Call) -> bool:
    tensor, dim = call.arguments
    rank = len(tensor.shape)
    return -rank <= dim < rank and bool(tensor.shape[dim] % _chips(call))


def has_partial_tile_shards(call: Call) -> bool:
    tensor, dim = call.arguments
    rank = len(tensor.shape)
    return bool(
        tensor.layout == "TILE"
        and dim % rank >= rank - 2
        and tensor.shape[dim % rank] % (_TILE * _chips(call)) != 0
    )


def overflows_cache(call: Call) -> bool:
    cache, tokens, *_ = call.arguments
    return bool(tokens.shape[2] > cache.shape[2])


def has_fewer_rows_than_batch(call: Call) -> bool:
    cache, tokens, *_ = call.arguments
    return bool(tokens.shape[2] < cache.shape[0])


def rotates_partial_tile_of_tokens(call: Call) -> bool:
    return bool(call.arguments[0].shape[-2] % _TILE != 0)


def rotates_partial_tile_halves(call: Call) -> bool:
    width = call.arguments[0].shape[-1]
    return bool(width != _TILE and width % (2 * _TILE) != 0)


def has_mismatched_tables(call: Call) -> bool:
    heads, cosines, sines = call.arguments
    return bool(cosines.shape != sines.shape or cosines.shape[-1] != heads.shape[-1])


def has_weight_of_many_rows(call: Call) -> bool:
    weight = call.options.get("weight")
    return weight is not None and any(size != 1 for size in weight.shape[:-1])
