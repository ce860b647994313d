"""Splits rows into attention heads and concatenates them again. Results are numpy views where possible."""

from __future__ import annotations

from mesh.emulator.tensor import Tensor, check_floating, check_tiled, wrap

_TILE = 32


def nlp_create_qkv_heads(
    input: Tensor,
    *,
    num_heads: int,
    num_kv_heads: int | None = None,
    transpose_k_heads: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """Split rows [B, 1, T, (H + 2 KV) D] into queries, keys and values.

    Results are q [B, H, T, D], k [B, KV, D, T] and v [B, KV, T, D]. Without `transpose_k_heads`, k is [B, KV, T, D].
    The operand is tiled, of a float dtype. Raises RuntimeError unless D is a multiple of 32, because ttnn silently
    returns wrong shapes.
    """
    op = "experimental.nlp_create_qkv_heads"
    check_tiled(op, input)
    check_floating(op, input)
    array = input.array
    if array.ndim != 6 or array.shape[3] != 1:
        raise RuntimeError(f"{op}: operand of shape {input.shape}, expected [B, 1, T, heads * D]")
    kv_heads = num_heads if num_kv_heads is None else num_kv_heads
    heads = num_heads + 2 * kv_heads
    rows, cols, batch, _, length, width = array.shape
    if width % heads or (width // heads) % _TILE:
        raise RuntimeError(
            f"{op}: {width} elements for {heads} heads: the head dimension must be a multiple of {_TILE} "
            "(ttnn returns wrong shapes otherwise); split heads by slice, reshape and transpose"
        )
    split = array.reshape(rows, cols, batch, length, heads, width // heads).swapaxes(3, 4)
    parts = (
        split[:, :, :, :num_heads],
        split[:, :, :, num_heads : num_heads + kv_heads],
        split[:, :, :, num_heads + kv_heads :],
    )
    if transpose_k_heads:
        parts = (parts[0], parts[1].swapaxes(-1, -2), parts[2])
    q, k, v = (wrap(part, input.dtype, input.layout, input.mesh) for part in parts)
    return q, k, v


def nlp_concat_heads(input_tensor: Tensor) -> Tensor:
    """Concatenate heads [B, H, T, D] to rows [B, 1, T, H D].

    The operand is tiled, of a float dtype. Raises RuntimeError unless D is a multiple of 32, because ttnn leaves the
    padding between heads.
    """
    op = "experimental.nlp_concat_heads"
    check_tiled(op, input_tensor)
    check_floating(op, input_tensor)
    array = input_tensor.array
    if array.ndim != 6 or array.shape[-1] % _TILE:
        raise RuntimeError(
            f"{op}: operand of shape {input_tensor.shape}, expected [B, H, T, D], D a multiple of 32"
        )
    rows, cols, batch, heads, length, size = array.shape
    joined = array.swapaxes(3, 4).reshape(rows, cols, batch, 1, length, heads * size)
    return wrap(joined, input_tensor.dtype, input_tensor.layout, input_tensor.mesh)
