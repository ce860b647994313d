"""The numerics cases in ttnn's golden functions. Runs in a Python with ttnn and PyTorch; opens no device."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import ttnn

from tests.support.numerics.torch_peer import EPSILON, work_through


def golden(op: str) -> Callable[..., Any]:
    """Return the golden function of an op."""
    found: Any = ttnn
    for name in op.split("."):
        found = getattr(found, name)
    function: Callable[..., Any] = ttnn.get_golden_function(found)
    return function


def plain(op: str) -> Callable[..., Any]:
    """Pass operands first, then options by name."""
    return lambda *tensors, **options: golden(op)(*tensors, **options)


def gradient(op: str, **options: Any) -> Callable[..., Any]:
    """Return the gradient of an operand that requires one."""
    return lambda dy, x: golden(op)(dy, x.clone().requires_grad_(), **options)


def reduction(op: str) -> Callable[..., Any]:
    return lambda x, dim, keepdim: golden(op)(
        x, dim=tuple(dim) if isinstance(dim, list) else dim, keepdim=keepdim
    )


def sliced(x: Any, cuts: list[list[int]]) -> Any:
    starts, ends, steps = zip(*cuts, strict=True)
    return golden("slice")(x, starts, ends, steps)


def product(op: str) -> Callable[..., Any]:
    return lambda a, b, bias=None, **options: golden(op)(a, b, bias=bias, **options)


def layer_norm(x: Any, gamma: Any, beta: Any, *outputs: Any) -> Any:
    return golden("moreh_layer_norm")(x, 1, EPSILON, gamma.reshape(-1), beta.reshape(-1))[0]


def rotary(x: Any, cos: Any, sin: Any) -> Any:
    """Call the golden function token by token, because it accepts one token."""
    turn = golden("experimental.rotary_embedding")
    return torch.cat([turn(x[:, :, [token]], cos, sin, token) for token in range(x.shape[2])], dim=2)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": plain("add"),
    "subtract": plain("subtract"),
    "multiply": plain("multiply"),
    "eq": plain("eq"),
    "ge": plain("ge"),
    "lt": plain("lt"),
    "where": lambda p, a, b: golden("where")(p != 0, a, b),
    "neg": plain("neg"),
    "exp": plain("exp"),
    "log": plain("log"),
    "reciprocal": plain("reciprocal"),
    "relu": plain("relu"),
    "rsqrt": plain("rsqrt"),
    "sigmoid": plain("sigmoid"),
    "silu": plain("silu"),
    "sqrt": plain("sqrt"),
    "square": plain("square"),
    "tanh": plain("tanh"),
    "gelu Accurate": lambda x: golden("gelu")(x, variant=ttnn.GeluVariant.Accurate),
    "gelu Tanh": lambda x: golden("gelu")(x, variant=ttnn.GeluVariant.Tanh),
    "relu_bw by finite differences": gradient("relu_bw"),
    "sigmoid_bw by finite differences": gradient("sigmoid_bw"),
    "silu_bw by finite differences": gradient("silu_bw"),
    "tanh_bw by finite differences": gradient("tanh_bw"),
    "gelu_bw Accurate": gradient("gelu_bw", variant=ttnn.GeluVariant.Accurate),
    "gelu_bw Tanh": gradient("gelu_bw", variant=ttnn.GeluVariant.Tanh),
    "moreh_softmax_backward": lambda y, dy: golden("moreh_softmax_backward")(y, dy, y.ndim - 1),
    "moreh_logsoftmax_backward": lambda y, dy: golden("moreh_logsoftmax_backward")(y, dy, y.ndim - 1),
    "embedding": plain("embedding"),
    "embedding_bw": lambda ids, table, rows: golden("embedding_bw")(
        ids, table.clone().requires_grad_(), rows.reshape(*ids.shape, -1)
    )[None, None],
    "transpose": lambda x, dim1, dim2: golden("transpose")(x, dim1, dim2),
    "permute": plain("permute"),
    "reshape": plain("reshape"),
    "slice": sliced,
    "concat": lambda *parts, dim: golden("concat")(list(parts), dim=dim),
    "gather": lambda x, index, dim: golden("gather")(x, dim, index),
    "repeat": lambda x, times: golden("repeat")(x, times),
    "repeat_interleave": plain("repeat_interleave"),
    "pad": lambda x, padding, value: golden("pad")(x, padding, value=value),
    "split": lambda x, size, dim: golden("split")(x, size, dim),
    "chunk": lambda x, size, dim: golden("chunk")(x, size, dim),
    "matmul": product("matmul"),
    "linear": product("linear"),
    "sum": reduction("sum"),
    "mean": reduction("mean"),
    "max": reduction("max"),
    "min": reduction("min"),
    "argmax": reduction("argmax"),
    "softmax": lambda x: golden("softmax")(x, dim=-1),
    "moreh_logsoftmax": lambda x: golden("moreh_logsoftmax")(x, x.ndim - 1),
    "moreh_layer_norm": layer_norm,
    "rms_norm": lambda x, weight=None: golden("rms_norm")(
        x, torch.ones(x.shape[-1], dtype=x.dtype) if weight is None else weight.reshape(-1), epsilon=EPSILON
    ),
    "experimental.rotary_embedding": rotary,
    "full_like": lambda x: golden("full_like")(x, torch.tensor(1e-3, dtype=torch.float32).item()),
    "zeros_like": plain("zeros_like"),
    "ones_like": plain("ones_like"),
}
"""Functions by the name of their case."""


if __name__ == "__main__":
    work_through(FUNCTIONS, *sys.argv[1:])
