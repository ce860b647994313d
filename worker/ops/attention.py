"""Causal self-attention, composed so that it has a backward pass (the library's fused kernel has none)."""

from __future__ import annotations

from worker.autograd import Tape, Tensor, Variable
from worker.ops.dropout import masked
from worker.ops.heads import merge, merge_qkv, split, split_qkv
from worker.ops.precision import accurate


def causal_attention(
    tape: Tape, qkv: Variable, mask: Variable, heads: int, probability: float, site: str
) -> Variable:
    """softmax(q k' / sqrt(head width) + mask) v, head by head.

    Args:
        tape: of this pass.
        qkv: queries, keys and values side by side, [1, 1, sequences x tokens, 3 x width].
        mask: [1, 1, tokens, tokens], 0 where a query (row) may see a key, else very negative.
        heads: number of heads; divides width.
        probability: of dropout on the attention weights.
        site: of that dropout.

    Returns:
        [1, 1, sequences x tokens, width].
    """
    mesh = tape.mesh
    tt = mesh.tt
    kernel = accurate(mesh)
    tokens = mask.value.shape[2]
    scale = (qkv.value.shape[3] // (3 * heads)) ** -0.5
    seed = None if probability == 0 or tape.dropout_seed is None else tape.dropout_seed(site)

    q, k, v = split_qkv(mesh, qkv.value, heads, tokens)
    # Scaling the queries costs less than scaling the scores, of which there are more.
    q = tt.multiply(q, scale)
    scores = tt.add(tt.matmul(q, k, transpose_b=True, compute_kernel_config=kernel), mask.value)
    weights = tt.softmax(scores, dim=-1, numeric_stable=True, compute_kernel_config=kernel)
    del scores
    kept = weights if seed is None else masked(mesh, weights, probability, seed)
    value = merge(mesh, tt.matmul(kept, v, compute_kernel_config=kernel))

    def backward(gradient: Tensor) -> tuple[Tensor | None, ...]:
        dy = split(mesh, gradient, heads, tokens)
        dkept = tt.matmul(dy, v, transpose_b=True, compute_kernel_config=kernel)
        dv = tt.matmul(kept, dy, transpose_a=True, compute_kernel_config=kernel)
        dweights = dkept if seed is None else masked(mesh, dkept, probability, seed)
        dscores = tt.moreh_softmax_backward(weights, dweights, 3, compute_kernel_config=kernel)
        dq = tt.multiply(tt.matmul(dscores, k, compute_kernel_config=kernel), scale)
        dk = tt.matmul(dscores, q, transpose_a=True, compute_kernel_config=kernel)
        return merge_qkv(mesh, dq, dk, dv), None

    return tape.record(value, (qkv, mask), backward)
