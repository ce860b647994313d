"""Caches of keys and values, [B, H, window, D], written in place at a token of the window."""

from __future__ import annotations

import sys

import numpy as np

from mesh.emulator.broadcast import Array
from mesh.emulator.rounding import round_to_bfloat16
from mesh.emulator.tensor import Tensor, check_floating, check_tiled, is_sole_owner, wrap_view
from mesh.emulator.types import DataType, Shape

_TILE = 32


def fill_cache(cache_tensor: Tensor, input_tensor: Tensor, batch_idx: int, *, update_idx: int = 0) -> Tensor:
    """Write `input_tensor` [1, H, T, D] at token `update_idx` of sequence `batch_idx`; return a view of the cache.

    Both tensors are tiled and of one float dtype. The device copies whole tiles, so the rest of the last token's tile
    is lost; here it becomes zero. Raises RuntimeError for tokens beyond the window, which ttnn accepts if they fit
    its padding.
    """
    op = "fill_cache"
    _check(op, cache_tensor, input_tensor)
    if cache_tensor.dtype is not input_tensor.dtype:
        raise RuntimeError(f"{op}: Input and cache tensors must have same dtype")
    batch, _, window, _ = cache_tensor.array.shape[2:]
    tokens = input_tensor.array.shape[4]
    if not 0 <= batch_idx < batch:
        raise RuntimeError(
            f"{op}: Batch index ({batch_idx}) must be less than cache tensor batch size ({batch})"
        )
    if update_idx < 0 or update_idx % _TILE:
        raise RuntimeError(
            f"{op}: Fill update_idx ({update_idx}) must be a multiple of TILE_HEIGHT ({_TILE})"
        )
    end = update_idx + tokens
    if end > window:
        raise RuntimeError(
            f"{op}: Fill update_idx ({update_idx}) + input tensor height ({tokens}) must be <= cache tensor height "
            f"({window})"
        )
    sequence = _writable(op, cache_tensor, input_tensor)[:, :, batch_idx]
    sequence[:, :, :, update_idx:end] = input_tensor.array[:, :, 0]
    sequence[:, :, :, end : -(-end // _TILE) * _TILE] = 0
    return wrap_view(cache_tensor, cache_tensor.array)


def update_cache(cache: Tensor, input: Tensor, update_idx: int, *, batch_offset: int = 0) -> Tensor:
    """Write row `batch_offset` + b of `input` [1, H, rows, D] at token `update_idx` of sequence b.

    Both tensors are tiled and of float dtypes; values are rounded to the cache's. Returns a view of the cache. Raises
    RuntimeError for a token beyond the window or missing rows, which ttnn silently accepts.
    """
    op = "update_cache"
    _check(op, cache, input)
    batch, _, window, _ = cache.array.shape[2:]
    if not 0 <= update_idx < window:
        raise RuntimeError(f"{op}: update_idx {update_idx}, expected a token within the window of {window}")
    if -(-input.array.shape[4] // _TILE) != -(-batch // _TILE):
        raise RuntimeError(
            f"{op}: Input batch height ({input.array.shape[4]}) must equal cache batch ({batch}) rounded up to a tile"
        )
    rows = input.array[:, :, 0, :, batch_offset : batch_offset + batch]
    if batch_offset < 0 or rows.shape[3] != batch:
        raise RuntimeError(
            f"{op}: Batch offset ({batch_offset}) + cache tensor batch size ({batch}) must be <= the "
            f"{input.array.shape[4]} rows"
        )
    if cache.dtype is DataType.BFLOAT16 and input.dtype is not cache.dtype:
        rows = round_to_bfloat16(rows.copy())
    _writable(op, cache, input)[:, :, :, :, update_idx] = rows.swapaxes(2, 3)
    return wrap_view(cache, cache.array)


def _check(op: str, cache: Tensor, tokens: Tensor) -> None:
    check_tiled(op, cache, tokens)
    check_floating(op, cache, tokens)
    if cache.array.ndim != 6 or tokens.array.ndim != 6:
        raise RuntimeError(f"{op}: {tokens.shape} for a cache of {cache.shape}, expected rank 4")
    _, heads, _, width = cache.array.shape[2:]
    if tokens.array.shape[2] != 1:
        raise RuntimeError(f"{op}: Input tensor batch size must be 1 but got {tokens.shape}")
    if (tokens.array.shape[3], tokens.array.shape[5]) != (heads, width):
        raise RuntimeError(
            f"{op}: {tokens.shape} for a cache of {cache.shape}, expected {Shape((1, heads, tokens.shape[2], width))}"
        )


def _writable(op: str, cache: Tensor, tokens: Tensor) -> Array:
    """Return the cache's own elements for writing, with one copy per chip where the chips' tokens differ."""
    if not is_sole_owner(cache):
        raise RuntimeError(
            f"{op}: another tensor shares the buffer of the cache and would miss the new tokens; delete it"
        )
    array = cache.array
    mesh = np.broadcast_shapes(array.shape[:2], tokens.array.shape[:2])
    del array
    # A numpy view belongs to a tensor that has its own copy on the device, so it must not change.
    exclusive = (
        sys.getrefcount(cache.array) <= 2 and cache.array.flags.owndata and cache.array.flags.writeable
    )
    if not exclusive or cache.array.shape[:2] != mesh:
        cache.array = np.broadcast_to(cache.array, (*mesh, *cache.array.shape[2:])).copy()
    return cache.array
