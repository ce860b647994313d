"""Causal self-attention, composed so that it has a backward pass (the library's fused kernel has none)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from mesh.device import Mesh
from mesh.placement import Placements
from training.autograd import Tape, Tensor, Variable
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
    """softmax(q k' / sqrt(head width) + mask) v, head by head; as many heads as this device's part of qkv has.

    Args:
        tape: of this pass.
        qkv: queries, keys and values side by side, [1, 1, sequences x tokens, 3 x width].
        mask: [1, 1, tokens, keys], 0 where a query (row) may see a key, else very negative; keys are the tokens
            unless there is a past.
        head_width: of one head; divides width.
        probability: of dropout on the attention weights.
        site: of that dropout.
        past: earlier tokens of the one sequence, which this pass adds its own to; on a tape that does not record.

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
    """As `causal_attention`, of rotated queries and keys, with a head of keys and values for each group of queries.

    Args:
        tape: of this pass.
        q: [1, 1, sequences x tokens, heads x head width].
        k: [1, 1, sequences x tokens, groups x head width]; groups divides heads.
        v: as `k`.
        rotation: of the tokens' positions.
        mask: as `causal_attention` has it.
        head_width: of one head.
        past: as `causal_attention` has it.

    Returns:
        As `q`.
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
    """What drops attention weights, and in the backward pass their gradients; None if nothing does."""
    if probability == 0 or tape.dropout_seed is None:
        return None
    seed = tape.dropout_seed(site)
    return lambda weights: masked(tape.mesh, weights, placements, probability, seed)


def _attend(
    mesh: Mesh, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, drop: _Drop | None
) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]]:
    """Attention of heads, [sequences, heads, tokens, head width], and the gradients of q, k and v as heads from that
    of its result as rows.

    The heads of a group lie one behind the other as if they were tokens of one head: their keys and values are never
    copied, and the products of the backward pass add up the gradients of a group.
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
