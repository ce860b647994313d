"""Bounds of products of a job's numbers, which decide how large its messages, tables and models are.

The bounds of single numbers are in `field_types.py`.
"""

from __future__ import annotations

from services.config.device import DeviceConfig
from services.config.field_types import MOST_MICRO_BATCHES
from services.config.models import (
    AnyModelConfig,
    GPT2Config,
    RegressionConfig,
)
from services.config.parameters import count_parameters
from services.protocol.plan import MOST_EVALUATION_BATCHES
from services.tensors.layout import MAX_ELEMENTS

MOST_TOKENS = 1 << 24
"""Maximum number of tokens of a batch."""
MOST_CHECKS = 1 << 12
"""Maximum average number of micro-batches of a step that `verify_fraction` selects."""
MOST_CHIPS = 1 << 10
"""Maximum number of chips of a mesh."""
MOST_DATA_ELEMENTS = 1 << 31
"""Maximum number of elements of a regression's data, which each worker makes in memory: 8 GiB."""


def check_step_size(
    num_workers: int, stages: int, gradient_accumulation_steps: int, verify_fraction: float
) -> None:
    """Check the number of micro-batches of a step, and how many of them are computed twice.

    Args:
        num_workers: number of ranks of all pipelines.
        stages: number of stages of a pipeline, which divides `num_workers`; 1 for none.
        gradient_accumulation_steps: micro-batches of each pipeline.
        verify_fraction: share of the micro-batches that are computed twice.

    Raises:
        ValueError: there are too many; one line with the field, its value, the bound and how to fix it.
    """
    pipelines = num_workers // stages
    micro_batches = pipelines * gradient_accumulation_steps
    if micro_batches > MOST_MICRO_BATCHES:
        most = MOST_MICRO_BATCHES // pipelines
        split = f" in {pipelines} pipelines" if stages > 1 else ""
        raise ValueError(
            f"training_config.gradient_accumulation_steps: {gradient_accumulation_steps} given with "
            f"multihost_config.num_workers {num_workers}{split}, expected a product of at most "
            f"{MOST_MICRO_BATCHES} micro-batches; write for example gradient_accumulation_steps: {most} and raise "
            "batch_size"
        )
    if micro_batches * verify_fraction > MOST_CHECKS:
        raise ValueError(
            f"training_config.verify_fraction: {verify_fraction} given for {micro_batches} micro-batches of a step, "
            f"expected at most {MOST_CHECKS} checked ones; write for example verify_fraction: "
            f"{MOST_CHECKS / micro_batches:.3g}"
        )


def check_batches(model: AnyModelConfig, batch_size: int, validation_batch_size: int) -> None:
    """Check the size of a micro-batch and of a validation batch, and the size of data that workers make.

    Raises:
        ValueError: it is too large; one line with the field, its value, the bound and how to fix it.
    """
    if isinstance(model, RegressionConfig):
        _check_regression_data(model, validation_batch_size)
        return
    length = model.max_sequence_length
    for key, size in (("batch_size", batch_size), ("validation_batch_size", validation_batch_size)):
        if size * length > MOST_TOKENS:
            raise ValueError(
                f"training_config.{key}: {size} given with max_sequence_length {length}, expected a product of at "
                f"most {MOST_TOKENS} tokens; write for example {key}: {max(1, MOST_TOKENS // length)}"
            )


def _check_regression_data(model: RegressionConfig, validation_batch_size: int) -> None:
    section = f"{model.model_type}_config"
    samples, width = model.training_samples, model.num_features + model.num_targets
    if samples * width > MOST_DATA_ELEMENTS:
        raise ValueError(
            f"{section}.training_samples: {samples} given with {width} features and targets, expected a product of "
            f"at most {MOST_DATA_ELEMENTS}, as workers hold the data in memory; write for example "
            f"training_samples: {max(10, MOST_DATA_ELEMENTS // width)}"
        )
    batches = -(-samples // 10 // validation_batch_size)
    if batches > MOST_EVALUATION_BATCHES:
        raise ValueError(
            f"training_config.validation_batch_size: {validation_batch_size} given with {samples} samples, expected "
            f"at most {MOST_EVALUATION_BATCHES} batches of the held-out tenth; write for example "
            f"validation_batch_size: {-(-samples // 10 // MOST_EVALUATION_BATCHES)}"
        )


def check_model_size(model: AnyModelConfig, vocabulary: int) -> None:
    """Check the number of parameters.

    Args:
        model: config of the model.
        vocabulary: number of tokens; 0 if it is unknown.

    Raises:
        ValueError: there are too many; one line with the field, its value, the bound and how to fix it.
    """
    elements = count_parameters(model, vocabulary) or 0
    if isinstance(model, GPT2Config) and model.positional_embedding_type == "fixed":
        elements += model.max_sequence_length * model.embedding_dim  # no parameters, but a table of this size
    if elements > MAX_ELEMENTS:
        section = (
            f"{model.model_type}_config" if isinstance(model, RegressionConfig) else "transformer_config"
        )
        raise ValueError(
            f"{section}: a {model.model_type} with {elements} parameters given, expected at most {MAX_ELEMENTS}, "
            "which is what one aggregator and optimizer hold; lower its widths or its number of layers"
        )


def check_mesh_size(device: DeviceConfig) -> None:
    """Check the number of chips of a mesh.

    Raises:
        ValueError: there are too many; one line with the field, its value, the bound and how to fix it.
    """
    rows, columns = device.mesh_shape
    if rows * columns > MOST_CHIPS:
        raise ValueError(
            f"device_config.mesh_shape: {[rows, columns]} given, expected at most {MOST_CHIPS} chips; write for "
            "example mesh_shape: [1, 8], and use more workers for more chips"
        )
