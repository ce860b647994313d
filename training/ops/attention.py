"""Causal self-attention, composed of simpler kernels: the library's fused one has no backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from mesh.device import Mesh
from mesh.placement import Placements
from training.autograd.tape import Tape
from training.autograd.variable import Tensor, Variable
from training.ops.cache import Past
from training.ops.dropout import masked
from training.ops.heads import fold_groups, merge, merge_qkv, split, split_qkv, unfold_groups
from training.ops.precision import accurate
from training.ops.rotary import Rotation, rotate, rotate_back

_Drop: TypeAlias = Callable[[Tensor], Tensor]


def causal_attention(
    tape: Tape,
    qkv: Variable,
    mask: Variable,
    head_width: int,
    probability: float,
    site: str,
    past: Past | None = None,
) -> Variable:
    """Return softmax(q k' / sqrt(head width) + mask) v for each head in this device's part of qkv.

    Gradients, with y the result and p the softmax (dropout applies to p in dv, and to dp): dv = p' dy, dp = dy v', ds
    = p * (dp - the row sums of dp * p), dq = ds k / sqrt(head width), dk = ds' q / sqrt(head width).

    Args:
        tape: the tape of this pass.
        qkv: queries, keys and values next to each other, [1, 1, sequences x tokens, 3 x width], mesh dtype, tiles.
        mask: [1, 1, tokens, keys], 0 where a query (row) may see a key, otherwise very negative. Without a past, the
            keys are the tokens.
        head_width: width of one head; divides width.
        probability: probability of dropout on the attention weights.
        site: name of that dropout.
        past: cache of earlier tokens of a single sequence, to which this pass adds its own; needs a tape that does not
            record.

    Returns:
        [1, 1, sequences x tokens, width].
    """
    mesh = tape.mesh
    q, k, v = split_qkv(mesh, qkv.value, head_width, mask.value.shape[2])
    if past is not None:
        k, v = past.cache.extend(k, v, past.position)
    drop = _dropout(tape, qkv.placements, probability, site)
    value, core_backward = _attend(mesh, q, k, v, mask.value, drop)

    def backward(gradient: Tensor) -> tuple[Tensor | None, ...]:
        return (merge_qkv(mesh, *core_backward(gradient)),)

    return tape.record(merge(mesh, value), (qkv,), backward)


def grouped_attention(
    tape: Tape,
    q: Variable,
    k: Variable,
    v: Variable,
    rotation: Rotation,
    mask: Variable,
    head_width: int,
    past: Past | None = None,
) -> Variable:
    """Return attention with rotated queries and keys, where several query heads share a head of keys and values.

    The formulas are those of `causal_attention`; the gradients of a shared head are added up over its queries. See
    grouped-query attention, arXiv:2305.13245.

    Args:
        tape: the tape of this pass.
        q: [1, 1, sequences x tokens, heads x head width], mesh dtype, tiles.
        k: [1, 1, sequences x tokens, groups x head width]; groups divides heads.
        v: same shape as `k`.
        rotation: angles of the tokens' positions.
        mask: see `causal_attention`.
        head_width: width of one head.
        past: see `causal_attention`.

    Returns:
        Same shape as `q`.
    """
    mesh = tape.mesh
    tokens = mask.value.shape[2]
    queries, keys, values = (split(mesh, x.value, head_width, tokens) for x in (q, k, v))
    queries, keys = rotate(mesh, queries, rotation), rotate(mesh, keys, rotation)
    if past is not None:
        keys, values = past.cache.extend(keys, values, past.position)
    value, core_backward = _attend(mesh, queries, keys, values, mask.value, None)

    def backward(gradient: Tensor) -> tuple[Tensor | None, ...]:
        dq, dk, dv = core_backward(gradient)
        dq, dk = rotate_back(mesh, dq, rotation), rotate_back(mesh, dk, rotation)
        return merge(mesh, dq), merge(mesh, dk), merge(mesh, dv)

    return tape.record(merge(mesh, value), (q, k, v), backward)


def _dropout(tape: Tape, placements: Placements, probability: float, site: str) -> _Drop | None:
    """Return the function that drops attention weights and their gradients alike; None without dropout."""
    if probability == 0 or tape.dropout_seed is None:
        return None
    seed = tape.dropout_seed(site)
    return lambda weights: masked(tape.mesh, weights, placements, probability, seed)


def _attend(
    mesh: Mesh, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, drop: _Drop | None
) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]]:
    """Return attention of heads, and a function from its gradient (rows) to those of q, k and v (heads).

    Heads have the shape [sequences, heads, tokens, head width]. The query heads of a group lie one after the other, as
    if they were tokens of one head. So their keys and values are never copied, and the products of the backward pass
    add up the gradients of a group.
    """
    tt = mesh.tt
    kernel = accurate(mesh)
    heads, tokens, head_width = q.shape[1], q.shape[2], q.shape[3]
    groups = k.shape[1]
    scale = head_width**-0.5

    # Scaling the queries costs less than scaling the scores, of which there are more.
    q = fold_groups(mesh, tt.multiply(q, scale), groups)
    scores = unfold_groups(mesh, tt.matmul(q, k, transpose_b=True, compute_kernel_config=kernel), heads)
    weights = tt.softmax(tt.add(scores, mask), dim=-1, numeric_stable=True, compute_kernel_config=kernel)
    del scores
    kept = fold_groups(mesh, weights if drop is None else drop(weights), groups)
    value = unfold_groups(mesh, tt.matmul(kept, v, compute_kernel_config=kernel), heads)

    def backward(gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        dy = fold_groups(mesh, split(mesh, gradient, head_width, tokens), groups)
        dkept = tt.matmul(dy, v, transpose_b=True, compute_kernel_config=kernel)
        dv = tt.matmul(kept, dy, transpose_a=True, compute_kernel_config=kernel)
        dweights = unfold_groups(mesh, dkept, heads)
        if drop is not None:
            dweights = drop(dweights)
        dscores = tt.moreh_softmax_backward(weights, dweights, 3, compute_kernel_config=kernel)
        dscores = fold_groups(mesh, dscores, groups)
        dq = tt.multiply(tt.matmul(dscores, k, compute_kernel_config=kernel), scale)
        dk = tt.matmul(dscores, q, transpose_a=True, compute_kernel_config=kernel)
        return unfold_groups(mesh, dq, heads), dk, dv

    return value, backward
