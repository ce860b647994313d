"""Memory of a transformer block on a chip. The figures follow the operations of `training/ops` in their order.

Each half of a block, attention and feed-forward, ends in a projection to the width of the residual stream. The backward
pass has two points of much memory in each half: that projection, and what comes before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from services.config.models import GPT2Config, LlamaConfig
from services.config.parameters import ModelPart, ParameterShape
from services.sizing.allocation import TILE
from services.sizing.points import MemoryPoint
from services.sizing.share import ChipShare

SILU_BACKWARD_TENSORS = 6
"""Tensors of the operand's size that `ttnn.silu_bw` has at once; the last one is its result."""


@dataclass(frozen=True)
class BlockMemory:
    """Memory of one block on a chip, in bytes.

    Attributes:
        input_bytes: the block's input, which is all that `runner_type: memory_efficient` keeps.
        kept_bytes: everything that is kept for the backward pass.
        points: points of the block's passes; their activations are its own.
        forward_bytes: most that is allocated at once in a pass that keeps nothing, as in evaluation.
    """

    input_bytes: int
    kept_bytes: int
    points: tuple[MemoryPoint, ...]
    forward_bytes: int


@dataclass(frozen=True)
class _Half:
    """One half of a block, in bytes.

    Attributes:
        name: name of the half, for people.
        kept_bytes: values kept for the backward pass, without the operand of its last projection.
        operand_bytes: that operand.
        weight: weight of that projection.
        backward_bytes: gradients of values before the projection, all at once.
        forward_bytes: values that the forward pass has at once.
    """

    name: str
    kept_bytes: int
    operand_bytes: int
    weight: ParameterShape
    backward_bytes: int
    forward_bytes: int


def size_gpt2_block(model: GPT2Config, share: ChipShare, part: ModelPart) -> BlockMemory:
    """Return the memory of a block of GPT-2.

    Args:
        model: config of the model.
        share: the chip's share of a batch.
        part: parameters of the block.
    """
    own_width = share.split(model.embedding_dim)
    width, inner, qkv = (
        share.rows(each)
        for each in (model.embedding_dim, share.split(4 * model.embedding_dim), 3 * own_width)
    )
    heads = share.heads(model.num_heads, model.head_width)
    scores = share.heads(model.num_heads, model.max_sequence_length)
    drops = bool(model.dropout_prob)
    norm = 2 * width + 2 * share.row_statistics()  # operand, result, means and deviations
    merged = share.rows(own_width)
    # Queries, keys and values have their gradients, which are joined and become rows again.
    joining = 6 * heads + qkv + _transposed_heads(share, 3 * model.num_heads, model.head_width)
    attention = _Half(
        name="attention",
        kept_bytes=norm + 3 * heads + (1 + drops) * scores,
        operand_bytes=merged,
        weight=part.shapes["attn.c_proj.weight"],
        backward_bytes=merged + max(4 * heads + (2 + drops) * scores, joining),
        forward_bytes=norm + qkv + 4 * heads + 3 * scores,
    )
    feed_forward = _Half(
        name="feed-forward",
        kept_bytes=norm + inner,
        operand_bytes=inner,
        weight=part.shapes["mlp.c_proj.weight"],
        backward_bytes=2 * inner,
        forward_bytes=norm + 2 * inner,
    )
    return _join(share, width, attention, feed_forward, drops)


def size_llama_block(model: LlamaConfig, share: ChipShare, part: ModelPart) -> BlockMemory:
    """Return the memory of a block of Llama; see `size_gpt2_block` for the arguments."""
    own_width = share.split(model.embedding_dim)
    width, inner, merged = (
        share.rows(each) for each in (model.embedding_dim, share.split(model.feed_forward_width), own_width)
    )
    queries, keys = (share.heads(count, model.head_width) for count in (model.num_heads, model.num_groups))
    scores = share.heads(model.num_heads, model.max_sequence_length)
    norm = 2 * width
    attention = _Half(
        name="attention",
        kept_bytes=norm + queries + 2 * keys + scores,
        operand_bytes=merged,
        weight=part.shapes["self_attn.o_proj.weight"],
        backward_bytes=merged + 3 * queries + keys + 2 * scores,
        forward_bytes=norm + merged + 3 * queries + 4 * keys + 3 * scores,
    )
    feed_forward = _Half(
        name="feed-forward",
        kept_bytes=norm + 3 * inner,  # gate, up, and silu(gate)
        operand_bytes=inner,
        weight=part.shapes["mlp.down_proj.weight"],
        backward_bytes=(2 + SILU_BACKWARD_TENSORS) * inner,
        forward_bytes=norm + 4 * inner,
    )
    return _join(share, width, attention, feed_forward, bool(model.dropout_prob))


def _join(share: ChipShare, width: int, attention: _Half, feed_forward: _Half, drops: bool) -> BlockMemory:
    """Return a block's memory.

    Args:
        share: the chip's share of a batch.
        width: bytes of a value of the residual stream.
        attention: first half.
        feed_forward: second half.
        drops: whether dropout follows each projection.
    """
    earlier = attention.kept_bytes + attention.operand_bytes
    return BlockMemory(
        input_bytes=width,
        kept_bytes=earlier + feed_forward.kept_bytes + feed_forward.operand_bytes,
        points=(
            *_points(share, width, attention, 0, drops),
            *_points(share, width, feed_forward, earlier, drops),
        ),
        forward_bytes=width + max(attention.forward_bytes, feed_forward.forward_bytes),
    )


def _points(share: ChipShare, width: int, half: _Half, earlier: int, drops: bool) -> Iterator[MemoryPoint]:
    """Yield the points of a half, after `earlier` bytes that the block keeps before it."""
    kept = earlier + half.kept_bytes
    # The residual stream's gradient is there all the time, and a masked copy of it behind a dropout.
    gradients = width * (1 + drops) + half.operand_bytes
    yield MemoryPoint(half.name, kept + half.operand_bytes, share.gradient(half.weight), gradients)
    yield MemoryPoint(half.name, kept, 0, width + half.backward_bytes)
    if share.tensor_size > 1:
        # In the forward pass, chips add up the projection's results.
        yield MemoryPoint(half.name, kept + half.operand_bytes, 0, share.with_sum(width, share.tensor_size))


def _transposed_heads(share: ChipShare, heads: int, width: int) -> int:
    """Return the bytes of heads on their way to rows, if heads of partial tiles need that step; else 0."""
    if width % TILE == 0:
        return 0
    shape = (share.batch, share.tokens, share.split(heads), width)
    return share.allocator.tiled_bytes(shape, share.element_bytes)
