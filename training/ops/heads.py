"""Conversions between rows of tokens and attention heads. The library's own kernels take only heads of whole tiles."""

from __future__ import annotations

from mesh.device import Mesh
from training.autograd.variable import Tensor

TILE = 32
"""Side of a tile. The library's kernels return a wrong shape, without an error, for heads of no multiple of it."""


def split_qkv(mesh: Mesh, qkv: Tensor, head_width: int, tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    """Split `qkv` [1, 1, N, 3 x width] into queries, keys and values [sequences, heads, tokens, head width]."""
    tt = mesh.tt
    rows, triple = qkv.shape[2], qkv.shape[3]
    sequences, width = rows // tokens, triple // 3
    heads = _count_heads(width, head_width)
    folded = tt.reshape(qkv, [sequences, 1, tokens, triple])
    if head_width % TILE == 0:
        q, k, v = tt.experimental.nlp_create_qkv_heads(
            folded, num_heads=heads, num_kv_heads=heads, transpose_k_heads=False
        )
        return q, k, v
    q, k, v = (
        split(
            mesh,
            tt.slice(folded, [0, 0, 0, start], [sequences, 1, tokens, start + width]),
            head_width,
            tokens,
        )
        for start in (0, width, 2 * width)
    )
    return q, k, v


def split(mesh: Mesh, x: Tensor, head_width: int, tokens: int) -> Tensor:
    """Return x, [1, 1, sequences x tokens, heads x head width], as [sequences, heads, tokens, head width]."""
    tt = mesh.tt
    shape = x.shape
    sequences, heads = shape[0] * shape[1] * shape[2] // tokens, _count_heads(shape[3], head_width)
    if head_width % TILE == 0:
        folded = tt.reshape(x, [sequences, 1, tokens, shape[3]])
        return tt.experimental.nlp_create_qkv_heads(
            folded, num_heads=heads, num_kv_heads=0, transpose_k_heads=False
        )[0]
    return tt.transpose(tt.reshape(x, [sequences, tokens, heads, head_width]), 1, 2)


def merge(mesh: Mesh, x: Tensor) -> Tensor:
    """Return x [sequences, heads, tokens, head width] as [1, 1, sequences x tokens, heads x head width]."""
    tt = mesh.tt
    sequences, heads, tokens, head_width = x.shape
    if head_width % TILE == 0:
        merged = tt.experimental.nlp_concat_heads(x)
    else:
        merged = tt.transpose(x, 1, 2)
    return tt.reshape(merged, [1, 1, sequences * tokens, heads * head_width])


def merge_qkv(mesh: Mesh, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return q, k and v as [1, 1, N, 3 x width], the reverse of `split_qkv`; joined as heads, they need one merge."""
    return merge(mesh, mesh.tt.concat([q, k, v], dim=1))


def fold_groups(mesh: Mesh, x: Tensor, groups: int) -> Tensor:
    """Return x [sequences, heads, tokens, width] as [sequences, groups, heads of a group x tokens, width]."""
    sequences, heads, tokens, width = x.shape
    if heads == groups:
        return x
    return mesh.tt.reshape(x, [sequences, groups, heads // groups * tokens, width])


def unfold_groups(mesh: Mesh, x: Tensor, heads: int) -> Tensor:
    """Reverse `fold_groups`."""
    sequences, groups, folded, width = x.shape
    if heads == groups:
        return x
    return mesh.tt.reshape(x, [sequences, heads, groups * folded // heads, width])


def _count_heads(width: int, head_width: int) -> int:
    if width % head_width:
        raise ValueError(
            f"heads: a row of {width} elements on this device, expected a multiple of the head width {head_width}"
        )
    return width // head_width
