"""Strategies for calls of element-wise ops, reductions and matrix products."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.support.contract.call_strategies import (
    ANY_DTYPE,
    FLOATS,
    SIZES,
    SMALL_SIZES,
    TILE,
    Draw,
    broadcast_shapes,
    dimension,
    operands,
    rarely,
    rarely_resized,
    register_op,
    shapes,
)
from tests.support.contract.calls import KERNEL, Call, Constant

DTYPES = st.sampled_from(["bfloat16", "float32", "uint32", "int32"])


def _binary(name: str) -> None:
    @register_op(name)
    def draw_call(draw: Draw) -> Call:
        shape = draw(shapes())
        first = draw(operands(shape))
        if rarely(draw, 4):
            second = draw(st.one_of(st.floats(-4, 4, width=16), st.integers(-3, 3), st.just("1")))
        elif rarely(draw, 2):
            second = draw(operands(draw(broadcast_shapes(shape)), first.dtype))
        else:
            second = draw(operands(draw(broadcast_shapes(shape))))
        return Call(name, (first, second))


def _unary(name: str) -> None:
    @register_op(name)
    def draw_call(draw: Draw) -> Call:
        return Call(name, (draw(operands(shapes())),))


for _name in ("add", "subtract", "multiply", "eq", "ge", "lt"):
    _binary(_name)
for _name in (
    "neg",
    "exp",
    "log",
    "square",
    "sqrt",
    "rsqrt",
    "reciprocal",
    "relu",
    "sigmoid",
    "silu",
    "tanh",
):
    _unary(_name)


def _backward(name: str) -> None:
    @register_op(name)
    def draw_call(draw: Draw) -> Call:
        shape = draw(shapes())
        first = draw(operands(shape))
        return Call(
            name,
            (
                first,
                draw(operands(rarely_resized(draw, shape), first.dtype if rarely(draw, 2) else ANY_DTYPE)),
            ),
        )


for _name in ("relu_bw", "sigmoid_bw", "silu_bw", "tanh_bw"):
    _backward(_name)


@register_op("where")
def _where(draw: Draw) -> Call:
    shape = draw(shapes())
    predicate = draw(operands(shape))
    values = [
        draw(st.floats(-4, 4, width=16))
        if rarely(draw, 3)
        else draw(operands(draw(broadcast_shapes(shape)), predicate.dtype if rarely(draw, 2) else ANY_DTYPE))
        for _ in range(2)
    ]
    return Call("where", (predicate, *values))


@register_op("typecast")
def _typecast(draw: Draw) -> Call:
    return Call("typecast", (draw(operands(shapes())), Constant(draw(DTYPES))))


_VARIANTS = st.sampled_from(["Accurate", "Tanh"])


@register_op("gelu")
def _gelu(draw: Draw) -> Call:
    options = {} if rarely(draw, 3) else {"variant": Constant(f"GeluVariant.{draw(_VARIANTS)}")}
    return Call("gelu", (draw(operands(shapes())),), options)


@register_op("gelu_bw")
def _gelu_bw(draw: Draw) -> Call:
    shape = draw(shapes())
    first = draw(operands(shape))
    second = draw(operands(rarely_resized(draw, shape), first.dtype if rarely(draw, 2) else ANY_DTYPE))
    options = {} if rarely(draw, 3) else {"variant": Constant(f"GeluVariant.{draw(_VARIANTS)}")}
    return Call("gelu_bw", (first, second), options)


def _reduction(name: str) -> None:
    @register_op(name)
    def draw_call(draw: Draw) -> Call:
        operand = draw(operands(shapes()))
        rank = len(operand.shape)
        dim: object = None
        if not rarely(draw, 4):
            dim = dimension(draw, rank)
            if rarely(draw, 3):
                dim = draw(st.lists(st.integers(0, rank - 1), min_size=1, max_size=rank, unique=True))
        if operand.layout == "ROW_MAJOR" and name in ("sum", "mean"):
            dim = draw(st.integers(-min(2, rank), -1))
        options = {"keepdim": draw(st.booleans())}
        if rarely(draw, 2):
            options["compute_kernel_config"] = KERNEL
        return Call(name, (operand,), {"dim": dim, **options})


for _name in ("sum", "mean", "max", "min"):
    _reduction(_name)


@register_op("argmax")
def _argmax(draw: Draw) -> Call:
    operand = draw(operands(shapes()))
    dim = None if rarely(draw, 4) else dimension(draw, len(operand.shape))
    return Call("argmax", (operand,), {"dim": dim, "keepdim": draw(st.booleans())})


def _products(name: str) -> None:
    @register_op(name)
    def draw_call(draw: Draw) -> Call:
        rows, inner, columns = draw(SIZES), draw(SIZES), draw(SIZES)
        batch = tuple(draw(SMALL_SIZES) for _ in range(draw(st.integers(0, 2))))
        flags = {flag: draw(st.booleans()) for flag in ("transpose_a", "transpose_b") if rarely(draw, 2)}
        left = (inner, rows) if flags.get("transpose_a") else (rows, inner)
        right = (columns, inner) if flags.get("transpose_b") else (inner, columns)
        kind = draw(st.sampled_from(["same", "one", "none"]))
        ones = (1,) * len(batch)
        right_batch = {"same": batch, "one": ones, "none": ()}[kind]
        left_batch = ones if kind == "same" and rarely(draw, 6) else batch
        dtype = draw(FLOATS)
        a = draw(operands(rarely_resized(draw, (*left_batch, *left)), dtype))
        b = draw(
            operands(rarely_resized(draw, (*right_batch, *right)), ANY_DTYPE if rarely(draw, 4) else dtype)
        )
        options: dict[str, object] = dict(flags)
        if rarely(draw, 2):
            options["compute_kernel_config"] = KERNEL
        if rarely(draw, 6):
            options["dtype"] = Constant(draw(FLOATS))
        if name == "linear" and not rarely(draw, 4):
            shape = draw(st.sampled_from([(columns,), (1, columns), (1, 1, 1, columns)]))
            options["bias"] = draw(operands(rarely_resized(draw, shape), dtype))
        return Call(name, (a, b), options)


_products("matmul")
_products("linear")


@register_op("gather")
def _gather(draw: Draw) -> Call:
    shape = draw(shapes(2))
    dim = dimension(draw, len(shape))
    axis = dim % len(shape)
    index = list(shape)
    index[axis] = draw(SIZES)
    values = draw(operands(shape, ANY_DTYPE, TILE))
    places = draw(
        operands(
            rarely_resized(draw, tuple(index)),
            draw(st.sampled_from(["uint32"] * 4 + ["int32", "bfloat16"])),
            TILE,
            below=shape[axis],
        )
    )
    return Call("gather", (values, dim, places))
