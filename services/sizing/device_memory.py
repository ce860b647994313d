"""Peak memory of a chip in a training step, by what it is for."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from services.config.job import JobConfig
from services.config.models import GPT2Config, LinearRegressionConfig, LlamaConfig, MLPConfig, OwnConfig
from services.config.parameters import ModelPart, model_parts
from services.sizing.allocation import Allocator
from services.sizing.blocks import SILU_BACKWARD_TENSORS, size_gpt2_block, size_llama_block
from services.sizing.ends import size_ends
from services.sizing.points import MemoryPoint
from services.sizing.portion import Portion
from services.sizing.share import FLOAT32_BYTES, ChipShare

ELEMENT_BYTES = {"bfloat16": 2, "float32": 4}
"""Bytes of a weight or activation by dtype."""
_BACKWARD_TENSORS = {"relu": 2, "silu": SILU_BACKWARD_TENSORS, "gelu": 1, "gelu_tanh": 1}
"""Tensors of the operand's size that an activation's gradient has at once in ttnn."""
TRACE_REGION_BYTES = 128 << 20
"""Memory that a chip reserves for the commands of traces."""


@dataclass(frozen=True)
class DeviceMemory:
    """Memory of one chip when most of it is allocated, in bytes. All chips of a mesh allocate the same.

    Attributes:
        weights_bytes: weights, with their padding.
        padding_bytes: padding of the weights, to whole tiles and over the banks.
        caches_bytes: values that stay: masks, positions, classes, and the region for traces.
        inputs_bytes: ids, targets and losses of a micro-batch, and activations on their way between stages.
        activations_bytes: values that are kept for the backward pass.
        gradients_bytes: gradients of parameters on the chip. Each leaves it as soon as it is complete.
        temporaries_bytes: everything else at the peak.
        peak: name of the point of the step at which the peak is.
    """

    weights_bytes: int
    padding_bytes: int
    caches_bytes: int
    inputs_bytes: int
    activations_bytes: int
    gradients_bytes: int
    temporaries_bytes: int
    peak: str

    @property
    def total_bytes(self) -> int:
        """All memory at the peak."""
        return (
            self.weights_bytes
            + self.caches_bytes
            + self.inputs_bytes
            + self.activations_bytes
            + self.gradients_bytes
            + self.temporaries_bytes
        )


def estimate_device_memory(
    config: JobConfig, vocabulary: int, *, dtype: str, banks: int, portion: Portion | None = None
) -> DeviceMemory | None:
    """Return the peak memory of each chip of a job's mesh; None for a user's own model, whose values nobody knows.

    Args:
        config: config of the job.
        vocabulary: number of tokens of a language model.
        dtype: dtype of weights and activations, `bfloat16` or `float32`.
        banks: number of DRAM banks of a chip.
        portion: the part of a language model that is on the mesh; None for the whole model.
    """
    model = config.model
    if isinstance(model, OwnConfig):
        return None
    tokens = 1 if isinstance(model, (LinearRegressionConfig, MLPConfig)) else model.max_sequence_length
    share, validation_share = (
        ChipShare.of(config.device, Allocator(banks), ELEMENT_BYTES[dtype], size, tokens)
        for size in (config.batch_size, config.validation_batch_size)
    )
    parts = model_parts(model, vocabulary)
    if isinstance(model, (GPT2Config, LlamaConfig)):
        portion = portion or Portion.whole(model.num_blocks)
        parts = portion.held_parts(parts)
        caches, inputs, points = _language_model(model, share, validation_share, parts, vocabulary, portion)
    else:
        caches, (inputs, points) = 0, _regression(model, share)
    weights = sum(share.weights(part) for part in parts)
    if config.device.trace:
        caches += TRACE_REGION_BYTES
        gradients = sum(
            part.copies * share.gathered_weight(each) for part in parts for each in part.shapes.values()
        )
        points = [*points, MemoryPoint("results of the trace", 0, gradients, 0)]
    peak = max(points, key=lambda point: point.total_bytes)
    return DeviceMemory(
        weights_bytes=weights,
        padding_bytes=weights - _logical_bytes(share, parts),
        caches_bytes=caches,
        inputs_bytes=inputs,
        activations_bytes=peak.activations_bytes,
        gradients_bytes=peak.gradients_bytes,
        temporaries_bytes=peak.temporaries_bytes,
        peak=peak.name,
    )


def _language_model(
    model: GPT2Config | LlamaConfig,
    share: ChipShare,
    validation_share: ChipShare,
    parts: tuple[ModelPart, ...],
    vocabulary: int,
    portion: Portion,
) -> tuple[int, int, list[MemoryPoint]]:
    """Return caches, inputs, and the points at which memory may be at its peak."""
    ends = size_ends(model, share, vocabulary)
    validation_ends = size_ends(model, validation_share, vocabulary)
    part = next(part for part in parts if part.name == "blocks")
    if isinstance(model, GPT2Config):
        block, validation_block = (size_gpt2_block(model, each, part) for each in (share, validation_share))
    else:
        block, validation_block = (size_llama_block(model, each, part) for each in (share, validation_share))
    each_kept = block.input_bytes if model.runner_type == "memory_efficient" else block.kept_bytes
    others = (portion.kept_blocks - 1) * each_kept
    if portion.has_last:
        # The model's last block is kept with the loss, as its backward pass would follow at once.
        others += (portion.kept_losses - 1) * (ends.kept_bytes + block.kept_bytes - each_kept)
    waiting = ends.waiting_bytes if portion.has_first else 0
    points = [
        *(point.plus(activations_bytes=others, gradients_bytes=waiting) for point in block.points),
        MemoryPoint("evaluation", 0, 0, validation_block.forward_bytes),
    ]
    if portion.has_first:
        points.append(ends.embedding.plus(activations_bytes=portion.kept_at_embedding * each_kept))
    if portion.has_last:
        points += (point.plus(activations_bytes=others + block.kept_bytes) for point in ends.points)
        points.append(MemoryPoint("evaluation", 0, 0, validation_ends.forward_bytes))
    tokens = model.max_sequence_length
    caches = share.constant(tokens, tokens)  # the causal mask
    if isinstance(model, LlamaConfig):
        caches += 3 * share.constant(tokens, model.head_width)
    elif model.positional_embedding_type == "fixed" and portion.has_first:
        caches += share.constant(tokens, model.embedding_dim)
    if portion.has_last:
        padded = share.tensor_size > 1 and vocabulary % (32 * share.tensor_size)
        columns = share.constant(1, share.split(vocabulary), element_bytes=FLOAT32_BYTES)
        caches += (2 if padded else 1) * columns
    neighbours = (not portion.has_first) + (not portion.has_last)
    under_way = neighbours * share.rows(model.embedding_dim)  # activations, or their gradients
    return caches, under_way + (ends.inputs_bytes if neighbours < 2 else 0), points


def _regression(model: LinearRegressionConfig | MLPConfig, share: ChipShare) -> tuple[int, list[MemoryPoint]]:
    """Return inputs, and the points at which memory may be at its peak."""
    if isinstance(model, LinearRegressionConfig):
        widths: tuple[int, ...] = (model.num_features, model.num_targets)
        backward_tensors = 0
    else:
        widths = (model.input_features, *model.hidden_features, model.output_features)
        backward_tensors = _BACKWARD_TENSORS[model.activation]
    (layers,) = model_parts(model, 0)
    weights = [each for each in layers.shapes.values() if len(each.shape) > 1]
    outputs32 = share.rows(widths[-1], FLOAT32_BYTES)
    inputs = share.rows(widths[0]) + outputs32 + share.rows(1, FLOAT32_BYTES)
    incoming, kept = share.rows(widths[0]), 0
    points = []
    for weight in weights:
        width = weight.shape[1]
        outgoing = share.rows(share.split(width) if weight.cut == 1 else width)
        points.append(MemoryPoint("layer", kept, share.gradient(weight), incoming + outgoing))
        incoming, kept = outgoing, kept + 2 * outgoing  # before and after the activation
        points.append(MemoryPoint("activation", kept - outgoing, 0, (1 + backward_tensors) * outgoing))
    points.pop()  # the last layer has no activation
    points.append(MemoryPoint("loss", kept - 2 * outgoing + outputs32, 0, outputs32 + outgoing))
    return inputs, points


def _logical_bytes(share: ChipShare, parts: tuple[ModelPart, ...]) -> int:
    """Return the bytes of the weights without any padding, if chips shared them evenly."""
    total = 0
    for part in parts:
        for each in part.shapes.values():
            sharing = share.tensor_size if each.cut is not None else 1
            if share.is_sharded(each):
                sharing *= share.data_size
            total += part.copies * prod(each.shape) * share.element_bytes // sharing
    return total
