"""Rotary position embedding as Hugging Face has it: element i of a head turns together with element i + D / 2."""

from __future__ import annotations

import numpy as np

from mesh.emulator import parallel
from mesh.emulator.broadcast import Array
from mesh.emulator.tensor import Tensor, check_floating, check_tiled, result
from mesh.emulator.types import Shape, WormholeComputeKernelConfig

_TILE = 32


def rotary_embedding(
    input_tensor: Tensor,
    cos_cache: Tensor,
    sin_cache: Tensor,
    *,
    compute_kernel_config: WormholeComputeKernelConfig | None = None,
) -> Tensor:
    """As `rotary_embedding_hf`. Raises RuntimeError if T is no multiple of 32: ttnn's result is longer then."""
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
    """`x * cos + rotate_half(x) * sin` of heads [B, H, T, D], by the first T rows of cos and sin [1, 1, T or more, D].

    Raises RuntimeError for tables of another width or with fewer than T rows, and if D is neither 32 nor a multiple of
    64: the halves must be whole tiles (ttnn turns the wrong elements for some, without a word). Decode mode needs
    tensors sharded over cores, which the emulator hasn't: refused.
    """
    op = "experimental.rotary_embedding_hf"
    if is_decode_mode:
        raise RuntimeError(f"{op}: decode mode needs height-sharded tensors")
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
            "compose it of slice, neg and concat"
        )
    if cos.array.shape[2:] != sin.array.shape[2:]:
        raise RuntimeError(f"{op}: Cos and Sin shapes must match: {cos.shape} and {sin.shape}")
    rows = cos.array.shape[-2]
    if cos.array.shape[2:] != (1, 1, rows, width):
        raise RuntimeError(f"{op}: table of shape {cos.shape}, expected {Shape((1, 1, length, width))}")
    if rows < length:
        raise RuntimeError(f"{op}: Cos seq_len must be >= input seq_len: {rows} and {length}")
    turned = parallel.elementwise(
        _turned, x, _table(cos, x, length), _table(sin, x, length), dtype=np.float32
    )
    return result(heads, turned)


def _table(table: Tensor, x: Array, length: int) -> Array:
    array = table.array[..., :length, :]
    return array if x.ndim == array.ndim else array[:, :, 0]


def _turned(x: Array, cos: Array, sin: Array, out: Array) -> None:
    half = x.shape[-1] // 2
    np.negative(x[..., half:], out=out[..., :half])
    out[..., half:] = x[..., :half]
    out *= sin
    out += x * cos
