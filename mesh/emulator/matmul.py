"""Matrix products with float32 sums: one 2-D product if the right operand is one matrix, else one per batch."""

from __future__ import annotations

import math

import numpy as np

from mesh.emulator import parallel
from mesh.emulator.broadcast import Array, align
from mesh.emulator.tensor import Tensor, check, check_tiled, wrap_result
from mesh.emulator.types import FLOATING, DataType, WormholeComputeKernelConfig


def matmul(
    input_tensor_a: Tensor,
    input_tensor_b: Tensor,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    dtype: DataType | None = None,
    compute_kernel_config: WormholeComputeKernelConfig | None = None,
) -> Tensor:
    """Return `a @ b`; the flags transpose the last two dimensions of an operand first.

    Operands are tiled, of rank 2 or more and of float dtypes, which may differ. `dtype` defaults to that of `a`.
    Batch dimensions must be equal, or all 1 on one side. RuntimeError is raised for anything else.
    """
    product = _product("matmul", input_tensor_a, input_tensor_b, transpose_a, transpose_b)
    return wrap_result(input_tensor_a, product, dtype)


def linear(
    input_tensor_a: Tensor,
    input_tensor_b: Tensor,
    *,
    bias: Tensor | None = None,
    transpose_a: bool = False,
    transpose_b: bool = False,
    dtype: DataType | None = None,
    compute_kernel_config: WormholeComputeKernelConfig | None = None,
) -> Tensor:
    """Return `a @ b + bias`, rounded once. Operands as for `matmul`; `bias` has F elements, [F] or [..., 1, F].

    Raises RuntimeError for biases of other sizes, which ttnn adds if they broadcast.
    """
    product = _product("linear", input_tensor_a, input_tensor_b, transpose_a, transpose_b)
    if bias is not None:
        check("linear", bias)  # Any layout is accepted.
        if bias.array.shape[-1] != product.shape[-1] or math.prod(bias.array.shape[2:]) != product.shape[-1]:
            raise RuntimeError(f"linear: bias of shape {bias.shape}, expected [1, {product.shape[-1]}]")
        product, offset = align(product, bias.array)
        whole = np.broadcast_shapes(product.shape, offset.shape) == product.shape
        out = product if whole else None
        product = parallel.apply_elementwise(np.add, product, offset, dtype=np.float32, out=out)
    return wrap_result(input_tensor_a, product, dtype)


def _product(op: str, a: Tensor, b: Tensor, transpose_a: bool, transpose_b: bool) -> Array:
    check_tiled(op, a, b)
    if a.dtype not in FLOATING or b.dtype not in FLOATING:
        raise RuntimeError(f"{op}: {a.dtype} and {b.dtype} operands, expected bfloat16 or float32")
    left, right = a.array, b.array
    if left.ndim < 4 or right.ndim < 4:
        raise RuntimeError(f"{op}: operands of shape {a.shape} and {b.shape}, expected rank 2 or more")
    rank = max(left.ndim, right.ndim)
    if transpose_a:
        left = left.swapaxes(-1, -2)
    if transpose_b:
        right = right.swapaxes(-1, -2)
    inner = left.shape[-1]
    if inner != right.shape[-2]:
        raise RuntimeError(
            f"{op}: The width of the first tensor must be equal to the height of the second tensor: "
            f"{left.shape[2:]} and {right.shape[2:]}"
        )
    if math.prod(right.shape[:-2]) == 1:
        # All batches and chips multiply by one matrix, so one product computes them all.
        product = parallel.multiply(left.reshape(-1, inner), right.reshape(right.shape[-2:]))
        shape = (*left.shape[:2], *(1,) * (rank - left.ndim), *left.shape[2:-1], right.shape[-1])
        return product.reshape(shape)
    left, right = align(left, right)
    batch_left, batch_right = left.shape[2:-2], right.shape[2:-2]
    if batch_left != batch_right and math.prod(batch_left) != 1 and math.prod(batch_right) != 1:
        raise RuntimeError(
            f"{op}: batch dimensions {list(batch_left)} and {list(batch_right)} can't be combined; expected equal "
            "ones, or all 1"
        )
    return parallel.multiply_batches(left, right)
