"""Memory of a language model's ends on a chip: embedding, last norm, projection to the vocabulary, and loss."""

from __future__ import annotations

from dataclasses import dataclass

from services.config.models import GPT2Config, LlamaConfig
from services.config.parameters import ParameterShape
from services.sizing.allocation import TILE
from services.sizing.points import MemoryPoint
from services.sizing.share import FLOAT32_BYTES, ChipShare


@dataclass(frozen=True)
class EndsMemory:
    """Memory of the ends of a language model on a chip, in bytes.

    Attributes:
        points: loss and projection, when all blocks' values are kept.
        kept_bytes: values of norm and loss that are kept for the backward pass.
        embedding: end of the backward pass, when none is kept.
        waiting_bytes: gradient of a table that is both embedding and projection, which waits for its second part.
        inputs_bytes: ids, targets and losses.
        forward_bytes: most that is allocated at once in a pass that keeps nothing.
    """

    points: tuple[MemoryPoint, ...]
    kept_bytes: int
    embedding: MemoryPoint
    waiting_bytes: int
    inputs_bytes: int
    forward_bytes: int


def size_ends(model: GPT2Config | LlamaConfig, share: ChipShare, vocabulary: int) -> EndsMemory:
    """Return the memory of a language model's ends.

    Args:
        model: config of the model.
        share: the chip's share of a batch.
        vocabulary: number of tokens.
    """
    table = ParameterShape((vocabulary, model.embedding_dim), cut=0)
    width, logits = share.rows(model.embedding_dim), share.rows(share.split(vocabulary))
    norm = 2 * width + (2 * share.row_statistics() if isinstance(model, GPT2Config) else 0)
    size_loss = _size_loss if share.tensor_size == 1 else _size_loss_of_columns
    forward, backward = (loss.plus(activations_bytes=norm) for loss in size_loss(share, vocabulary))
    whole = share.gathered_weight(table)
    waiting = whole if model.weight_tying else 0
    column = share.rows(1) if share.tensor_size > 1 else 0  # marks the rows whose token a chip has
    return EndsMemory(
        points=(forward, backward, MemoryPoint("projection", norm, share.gradient(table), logits + width)),
        kept_bytes=backward.activations_bytes,
        embedding=MemoryPoint(
            "embedding", 0, waiting + max(share.gradient(table), 2 * waiting), width * (2 if column else 1)
        ),
        waiting_bytes=waiting,
        inputs_bytes=(
            share.allocator.row_major_bytes((share.batch, share.tokens), FLOAT32_BYTES)
            + 2 * share.rows(1, FLOAT32_BYTES)
            + column
        ),
        forward_bytes=forward.total_bytes,
    )


def _size_loss(share: ChipShare, vocabulary: int) -> tuple[MemoryPoint, MemoryPoint]:
    """Return the loss of whole rows, forward and backward: log-probabilities are kept."""
    logits, logits32 = share.rows(vocabulary), share.rows(vocabulary, FLOAT32_BYTES)
    return (
        MemoryPoint("loss", logits32, 0, logits + logits32),
        # One-hot targets, the difference of both, and the weighted difference in float32 and in the model's dtype.
        MemoryPoint("loss", logits32, 0, max(3 * logits32, 2 * logits32 + logits)),
    )


def _size_loss_of_columns(share: ChipShare, vocabulary: int) -> tuple[MemoryPoint, MemoryPoint]:
    """Return the loss where each chip has columns, forward and backward: likelihoods and one-hot targets are kept."""
    columns = share.split(vocabulary)
    logits, logits32 = share.rows(columns), share.rows(columns, FLOAT32_BYTES)
    row = share.rows(1, FLOAT32_BYTES)
    # The largest logits of each chip are gathered and transposed, with one tile for each row, twice.
    rows = share.batch * share.tokens
    gathered = share.allocator.tiled_bytes((share.tensor_size, rows, 1), FLOAT32_BYTES)
    tiles = share.allocator.tiled_bytes((rows, TILE, TILE), FLOAT32_BYTES)
    gathering = logits + logits32 + gathered + 2 * tiles
    adding = logits + logits32 + 6 * row
    return (
        MemoryPoint("loss", 2 * logits32, 0, max(gathering - 2 * logits32, adding)),
        MemoryPoint("loss", 2 * logits32, 0, 3 * logits32 + 2 * row),
    )
