"""The numerics cases in PyTorch. Runs in any Python with PyTorch, with a file of operands and one for results.

It needs nothing of Tiermesh. Inputs are arrays `<case>/<operand>`, with op names and options in `calls`; outputs are
`<case>/<result>`. Everything is float64 on the CPU, with gradients from autograd.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional

EPSILON = 1e-5


def gradient(function: Callable[..., Any], dy: Any, *operands: Any) -> tuple[Any, ...]:
    """Return the gradients of the operands by autograd."""
    leaves = [operand.clone().requires_grad_() for operand in operands]
    returned: tuple[Any, ...] = torch.autograd.grad(function(*leaves), leaves, dy)
    return returned


def layer_norm(x: Any, gamma: Any, beta: Any) -> Any:
    return functional.layer_norm(x, x.shape[-1:], gamma.reshape(-1), beta.reshape(-1), EPSILON)


def layer_norm_gradients(dy: Any, x: Any, gamma: Any, beta: Any, *outputs: Any) -> tuple[Any, ...]:
    dx, dgamma, dbeta = gradient(layer_norm, dy, x, gamma, beta)
    return dx, dgamma, dbeta.reshape(-1)


def gelu(approximation: str) -> Callable[..., Any]:
    return lambda x: functional.gelu(x, approximate=approximation)


def product(a: Any, b: Any, bias: Any = 0.0, *, transpose_a: bool, transpose_b: bool) -> Any:
    return torch.matmul(a.mT if transpose_a else a, b.mT if transpose_b else b) + bias


def reduction(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, dim, keepdim: function(
        x, dim=tuple(range(x.ndim)) if dim is None else dim, keepdim=keepdim
    )


def embedding_gradient(ids: Any, table: Any, rows: Any) -> Any:
    dy = rows.reshape(*ids.shape, -1)
    return gradient(lambda at: functional.embedding(ids, at), dy, table)[0][None, None]


def scalar_or(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda a, b=None, scalar=None: function(a, a.new_tensor(scalar) if b is None else b)


def softmax(x: Any) -> Any:
    return functional.softmax(x, dim=-1)


def log_softmax(x: Any) -> Any:
    return functional.log_softmax(x, dim=-1)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": scalar_or(torch.add),
    "add with a number": scalar_or(torch.add),
    "subtract": scalar_or(torch.subtract),
    "multiply": scalar_or(torch.multiply),
    "eq": scalar_or(torch.eq),
    "ge": scalar_or(torch.ge),
    "lt": scalar_or(torch.lt),
    "where": lambda p, a, b: torch.where(p != 0, a, b),
    "neg": torch.neg,
    "exp": torch.exp,
    "log": torch.log,
    "reciprocal": torch.reciprocal,
    "relu": torch.relu,
    "rsqrt": torch.rsqrt,
    "sigmoid": torch.sigmoid,
    "silu": functional.silu,
    "sqrt": torch.sqrt,
    "square": torch.square,
    "tanh": torch.tanh,
    "gelu Accurate": gelu("none"),
    "gelu Tanh": gelu("tanh"),
    "relu_bw by finite differences": lambda dy, x: gradient(functional.relu, dy, x),
    "sigmoid_bw by finite differences": lambda dy, x: gradient(torch.sigmoid, dy, x),
    "silu_bw by finite differences": lambda dy, x: gradient(functional.silu, dy, x),
    "tanh_bw by finite differences": lambda dy, x: gradient(torch.tanh, dy, x),
    "gelu_bw Accurate": lambda dy, x: gradient(gelu("none"), dy, x),
    "gelu_bw Tanh": lambda dy, x: gradient(gelu("tanh"), dy, x),
    "moreh_softmax_backward by finite differences": lambda dy, x: gradient(softmax, dy, x),
    "moreh_logsoftmax_backward by finite differences": lambda dy, x: gradient(log_softmax, dy, x),
    "moreh_layer_norm_backward by finite differences": layer_norm_gradients,
    "embedding_bw": embedding_gradient,
    "transpose": lambda x, dim1, dim2: torch.transpose(x, dim1, dim2),
    "permute": lambda x, dims: torch.permute(x, dims),
    "reshape": lambda x, shape: torch.reshape(x, shape),
    "concat": lambda *parts, dim: torch.cat(parts, dim),
    "gather": lambda x, index, dim: torch.gather(x, dim, index),
    "repeat": lambda x, times: x.repeat(times),
    "repeat_interleave": lambda x, repeats, dim: torch.repeat_interleave(x, repeats, dim),
    "split": lambda x, size, dim: torch.split(x, size, dim),
    "chunk": lambda x, size, dim: torch.chunk(x, size, dim),
    "matmul": product,
    "linear": product,
    "sum": reduction(torch.sum),
    "mean": reduction(torch.mean),
    "max": reduction(torch.amax),
    "min": reduction(torch.amin),
    "softmax": softmax,
    "softmax unstable": softmax,
    "moreh_logsoftmax": log_softmax,
    "moreh_layer_norm": lambda x, gamma, beta, *outputs: layer_norm(x, gamma, beta),
    "rms_norm": lambda x, weight=None: functional.rms_norm(
        x, x.shape[-1:], None if weight is None else weight.reshape(-1), EPSILON
    ),
    "embedding": lambda ids, table: functional.embedding(ids, table),
}
"""Functions by the name of their case."""


def work_through(functions: dict[str, Callable[..., Any]], operands_path: str, results_path: str) -> None:
    """Call the functions with the operands in one file and write their results to another."""
    torch.set_num_threads(1)
    operands = np.load(operands_path)
    results = {}
    for case, (name, count, options) in json.loads(str(operands["calls"])).items():
        arrays = [operands[f"{case}/{index}"] for index in range(count)]
        kinds = [np.int64 if array.dtype == np.uint32 else np.float64 for array in arrays]
        tensors = [torch.from_numpy(array.astype(kind)) for array, kind in zip(arrays, kinds, strict=True)]
        made = functions[name](*tensors, **options)
        for index, one in enumerate(made if isinstance(made, (tuple, list)) else (made,)):
            results[f"{case}/{index}"] = one.detach().double().numpy()
    np.savez(results_path, **results)


if __name__ == "__main__":
    work_through(FUNCTIONS, *sys.argv[1:])
