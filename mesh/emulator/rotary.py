"""Rotary position embedding in Hugging Face's order: element i of a head rotates with element i + D / 2."""

from __future__ import annotations

import numpy as np

from mesh.emulator import parallel
from mesh.emulator.broadcast import Array
from mesh.emulator.tensor import Tensor, check_floating, check_tiled, wrap_result
from mesh.emulator.types import Shape, WormholeComputeKernelConfig

_TILE = 32


def rotary_embedding(
    input_tensor: Tensor,
    cos_cache: Tensor,
    sin_cache: Tensor,
    *,
    compute_kernel_config: WormholeComputeKernelConfig | None = None,
) -> Tensor:
    """Compute `rotary_embedding_hf` for T that is a multiple of 32.

    Raises RuntimeError for other T, because ttnn pads the result's shape.
    """
    op = "experimental.rotary_embedding"
    if input_tensor.array.shape[-2] % _TILE:
        raise RuntimeError(
            f"{op}: {input_tensor.shape[-2]} tokens: must be a multiple of {_TILE} (ttnn pads the result's shape); "
            "use rotary_embedding_hf"
        )
    return _rotate(op, input_tensor, cos_cache, sin_cache)


def rotary_embedding_hf(
    input_tensor: Tensor,
    cos_cache: Tensor,
    sin_cache: Tensor,
    *,
    is_decode_mode: bool = False,
    compute_kernel_config: WormholeComputeKernelConfig | None = None,
) -> Tensor:
    """Return `x * cos + rotate_half(x) * sin` for heads [B, H, T, D], rounded once.

    `cos_cache` and `sin_cache` are [1, 1, T or more, D]; their first T rows are used. All operands are tiled, of float
    dtypes. RuntimeError is raised for tables of another shape, and unless D is 32 or a multiple of 64: ttnn silently
    rotates wrong elements if half a head is no whole tile. Decode mode is refused, because it needs tensors sharded
    over cores.
    """
    op = "experimental.rotary_embedding_hf"
    if is_decode_mode:
        raise RuntimeError(
            f"{op}: is_decode_mode needs height-sharded tensors, which the emulator lacks; expected False"
        )
    return _rotate(op, input_tensor, cos_cache, sin_cache)


def _rotate(op: str, heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    check_tiled(op, heads, cos, sin)
    check_floating(op, heads, cos, sin)
    x = heads.array
    if x.ndim < 5:
        raise RuntimeError(f"{op}: operand of shape {heads.shape}, expected [B, H, T, D]")
    length, width = x.shape[-2:]
    if width != _TILE and width % (2 * _TILE):
        raise RuntimeError(
            f"{op}: Input X dimension ({width}) must be either {_TILE} (single tile) or divisible by {2 * _TILE}; "
            "use slice, neg and concat"
        )
    if cos.array.shape[2:] != sin.array.shape[2:]:
        raise RuntimeError(f"{op}: Cos and Sin shapes must match: {cos.shape} and {sin.shape}")
    rows = cos.array.shape[-2]
    if cos.array.shape[2:] != (1, 1, rows, width):
        raise RuntimeError(f"{op}: table of shape {cos.shape}, expected {Shape((1, 1, length, width))}")
    if rows < length:
        raise RuntimeError(f"{op}: Cos seq_len must be >= input seq_len: {rows} and {length}")
    rotated = parallel.apply_elementwise(
        _rotate_elements, x, _table(cos, x, length), _table(sin, x, length), dtype=np.float32
    )
    return wrap_result(heads, rotated)


def _table(table: Tensor, x: Array, length: int) -> Array:
    array = table.array[..., :length, :]
    return array if x.ndim == array.ndim else array[:, :, 0]


def _rotate_elements(x: Array, cos: Array, sin: Array, out: Array) -> None:
    half = x.shape[-1] // 2
    np.negative(x[..., half:], out=out[..., :half])
    out[..., half:] = x[..., :half]
    out *= sin
    out += x * cos
