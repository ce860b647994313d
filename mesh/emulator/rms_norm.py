"""Root-mean-square normalisation over the last dimension. ttnn has no gradient op for it; training composes one."""

from __future__ import annotations

import numpy as np

from mesh.emulator.broadcast import Array
from mesh.emulator.parallel import apply_elementwise, run_over_rows
from mesh.emulator.tensor import Tensor, check_floating, check_tiled, wrap_result
from mesh.emulator.types import Layout, WormholeComputeKernelConfig

_TILE = 32


def rms_norm(
    input_tensor: Tensor,
    *,
    epsilon: float = 1e-12,
    weight: Tensor | None = None,
    compute_kernel_config: WormholeComputeKernelConfig | None = None,
) -> Tensor:
    """Return `a / sqrt(mean(a * a) + epsilon) * weight` over the last dimension E, rounded once.

    The operand is tiled, of a float dtype. `weight` has E elements: tiled [..., 1, E], or row-major
    [1, 1, E / 32, 32]. Raises RuntimeError for others: ttnn silently uses the first row of a larger weight.
    """
    op = "rms_norm"
    check_tiled(op, input_tensor)
    check_floating(op, input_tensor)
    x = input_tensor.array
    width = x.shape[-1]
    gain = None if weight is None else _row(op, weight, x.ndim, width)
    rows = x.reshape(-1, width)
    normal = np.empty(rows.shape, np.float32)
    averaging = np.full((width, 1), 1.0 / width, np.float32)

    def compute(block: slice) -> None:
        out = normal[block]
        np.square(rows[block], out=out)
        scale = np.matmul(out, averaging)
        scale += np.float32(epsilon)
        np.sqrt(scale, out=scale)
        np.reciprocal(scale, out=scale)
        np.multiply(rows[block], scale, out=out)

    run_over_rows(compute, *rows.shape)
    out = normal.reshape(x.shape)
    if gain is None:
        return wrap_result(input_tensor, out)
    return wrap_result(input_tensor, apply_elementwise(np.multiply, out, gain, dtype=np.float32))


def _row(op: str, weight: Tensor, rank: int, width: int) -> Array:
    """Return the weight with the operand's rank, with size 1 in all dimensions but the last."""
    check_floating(op, weight)
    array = weight.array
    last = width if weight.layout is Layout.TILE else _TILE
    if array[0, 0].size != width or array.shape[-1] != last:
        raise RuntimeError(
            f"{op}: weight of shape {weight.shape} in {weight.layout}, expected [1, {width}] in Layout.TILE"
        )
    return array.reshape(*array.shape[:2], *(1,) * (rank - 3), width)
