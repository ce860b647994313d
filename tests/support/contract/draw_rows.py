"""Strategies for calls of normalisation, softmax, heads, rotary embedding, dropout and collectives."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from tests.support.contract.call_strategies import (
    ANY_DTYPE,
    ANY_LAYOUT,
    FLOATS,
    SIZES,
    SMALL_SIZES,
    Draw,
    dimension,
    operands,
    rarely,
    rarely_resized,
    register_op,
    shapes,
)
from tests.support.contract.calls import KERNEL, Call, Operand


def _output(draw: Draw, shape: tuple[int, ...], dtype: str) -> Operand:
    return Operand(rarely_resized(draw, shape) if rarely(draw, 4) else shape, dtype, empty=True)


@register_op("moreh_layer_norm")
def _layer_norm(draw: Draw) -> Call:
    shape = draw(shapes(2))
    dtype = draw(FLOATS)
    x = draw(operands(shape, dtype))
    scales = [
        None
        if rarely(draw, 4)
        else draw(
            operands(rarely_resized(draw, draw(st.sampled_from([(shape[-1],), (1, shape[-1])]))), dtype)
        )
        for _ in range(2)
    ]
    options: dict[str, object] = {}
    if not rarely(draw, 4):
        options = {name: _output(draw, shape[:-1], dtype) for name in ("mean", "rstd")}
    if rarely(draw, 2):
        options["compute_kernel_config"] = KERNEL
    return Call("moreh_layer_norm", (x, 1, 1e-5, *scales), options)


@register_op("moreh_layer_norm_backward")
def _layer_norm_backward(draw: Draw) -> Call:
    shape = draw(shapes(2))
    dtype = draw(FLOATS)
    layout = ANY_LAYOUT if rarely(draw) else "TILE"
    dy, x = (draw(operands(rarely_resized(draw, shape), dtype, layout)) for _ in range(2))
    mean, rstd = (draw(operands(rarely_resized(draw, shape[:-1]), dtype, "TILE")) for _ in range(2))
    scale = draw(st.sampled_from([(shape[-1],), (1, shape[-1])]))
    options: dict[str, object] = {}
    if not rarely(draw, 6):
        options["input_grad"] = _output(draw, shape, dtype)
    if not rarely(draw, 4):
        options["gamma"] = draw(operands(rarely_resized(draw, scale), dtype, layout))
    for name in ("gamma_grad", "beta_grad"):
        if not rarely(draw, 4):
            options[name] = _output(draw, scale, dtype)
    if rarely(draw, 2):
        options["compute_kernel_config"] = KERNEL
    return Call("moreh_layer_norm_backward", (dy, x, mean, rstd, 1), options)


@register_op("softmax")
def _softmax(draw: Draw) -> Call:
    x = draw(operands(shapes()))
    options: dict[str, object] = {"dim": dimension(draw, len(x.shape)) if rarely(draw, 2) else -1}
    if rarely(draw, 2):
        options["numeric_stable"] = draw(st.booleans())
    if rarely(draw, 2):
        options["compute_kernel_config"] = KERNEL
    return Call("softmax", (x,), options)


@register_op("moreh_logsoftmax")
def _logsoftmax(draw: Draw) -> Call:
    x = draw(operands(shapes()))
    rank = len(x.shape)
    dim = dimension(draw, rank, unsigned=True) if rarely(draw, 3) else rank - 1
    return Call("moreh_logsoftmax", (x, dim), {"compute_kernel_config": KERNEL} if rarely(draw, 2) else {})


def _softmax_backward(name: str) -> None:
    @register_op(name)
    def draw_call(draw: Draw) -> Call:
        dtype = draw(FLOATS)
        y = draw(operands(shapes(), dtype))
        rank = len(y.shape)
        dy = draw(operands(rarely_resized(draw, y.shape), ANY_DTYPE if rarely(draw) else dtype))
        dim = dimension(draw, rank, unsigned=True) if rarely(draw, 3) else rank - 1
        return Call(name, (y, dy, dim))


_softmax_backward("moreh_softmax_backward")
_softmax_backward("moreh_logsoftmax_backward")


@register_op("experimental.dropout")
def _dropout(draw: Draw) -> Call:
    probability = draw(st.sampled_from([0.0, 0.1, 0.5]))
    options: dict[str, object] = {"probability": probability, "scale": 1 / (1 - probability)}
    options["seed"] = draw(st.sampled_from([0, 1, 2**31, 2**32 - 1])) if not rarely(draw) else -1
    if rarely(draw, 2):
        options["use_per_device_seed"] = draw(st.booleans())
    return Call("experimental.dropout", (draw(operands(shapes())),), options)


@register_op("experimental.nlp_create_qkv_heads")
def _split_heads(draw: Draw) -> Call:
    heads, groups = draw(SMALL_SIZES), draw(SMALL_SIZES)
    width = draw(st.sampled_from([32, 32, 64, 16, 48]))
    options: dict[str, object] = {"num_heads": heads}
    if rarely(draw, 3):
        groups = heads
    else:
        options["num_kv_heads"] = groups
    if not rarely(draw, 3):
        options["transpose_k_heads"] = draw(st.booleans())
    shape = (draw(SMALL_SIZES), 1, draw(SIZES), (heads + 2 * groups) * width)
    return Call("experimental.nlp_create_qkv_heads", (draw(operands(rarely_resized(draw, shape))),), options)


@register_op("experimental.nlp_concat_heads")
def _join_heads(draw: Draw) -> Call:
    shape = (draw(SMALL_SIZES), draw(SMALL_SIZES), draw(SIZES), draw(st.sampled_from([32, 32, 64, 16, 48])))
    return Call("experimental.nlp_concat_heads", (draw(operands(rarely_resized(draw, shape))),))


def _rotation(name: str, tokens_of: st.SearchStrategy[int]) -> None:
    @register_op(name)
    def draw_call(draw: Draw) -> Call:
        tokens = draw(SIZES if rarely(draw, 4) else tokens_of)
        width = draw(st.sampled_from([32, 32, 64, 64, 16, 96]))
        dtype = draw(FLOATS)
        x = draw(
            operands(
                (draw(SMALL_SIZES), draw(SMALL_SIZES), tokens, width), ANY_DTYPE if rarely(draw) else dtype
            )
        )
        shape = (1, 1, draw(SIZES) if rarely(draw, 4) else tokens, width)
        table = draw(operands(rarely_resized(draw, shape), dtype))
        other = replace(table, shape=rarely_resized(draw, table.shape))
        return Call(name, (x, table, other), {"compute_kernel_config": KERNEL} if rarely(draw, 2) else {})


# ttnn refuses tokens that fill no tile.
_rotation("experimental.rotary_embedding", st.sampled_from([32, 64, 96]))
_rotation("experimental.rotary_embedding_hf", SIZES)


@register_op("rms_norm")
def _rms_norm(draw: Draw) -> Call:
    x = draw(operands(shapes()))
    options: dict[str, object] = {"epsilon": 1e-5}
    if not rarely(draw, 4):
        width = x.shape[-1]
        shape = draw(st.sampled_from([(width,), (1, width), (1, 1, 1, width)]))
        options["weight"] = draw(operands(rarely_resized(draw, shape), x.dtype))
    if rarely(draw, 2):
        options["compute_kernel_config"] = KERNEL
    return Call("rms_norm", (x,), options)


@register_op("mesh_partition")
def _mesh_partition(draw: Draw) -> Call:
    shape = draw(shapes())
    dim = dimension(draw, len(shape))
    axis = draw(st.sampled_from([0, 1, None]))
    if not rarely(draw, 3):
        place = dim % len(shape)
        whole = draw(st.sampled_from([8, 256, 512]))
        shape = (*shape[:place], whole, *shape[place + 1 :])
    return Call("mesh_partition", (draw(operands(shape)), dim), {"cluster_axis": axis})


def _collective(name: str) -> None:
    @register_op(name)
    def draw_call(draw: Draw) -> Call:
        x = draw(operands(shapes()))
        dims = () if name == "all_reduce" else (dimension(draw, len(x.shape)),)
        return Call(name, (x, *dims), {"cluster_axis": draw(st.sampled_from([0, 1, 0, 1, None]))})


for _name in ("all_reduce", "all_gather", "reduce_scatter"):
    _collective(_name)
