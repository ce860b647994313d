"""Checks that model, batch and mesh fit each other, before a device is opened."""

from __future__ import annotations

from math import gcd

from services.config.device import DeviceConfig
from services.config.models import (
    AnyModelConfig,
    ExternalConfig,
    GPT2Config,
    LlamaConfig,
    RegressionConfig,
)

TILE = 32
"""Rows and columns of the tiles that a device computes in."""


def check_mesh_fit(
    model: AnyModelConfig,
    device: DeviceConfig,
    batch_size: int,
    validation_batch_size: int,
) -> None:
    """Check that the mesh can train the model in batches of these sizes.

    Raises:
        ValueError: they don't fit; one line with the field, its value, what was expected and how to fix it.
    """
    devices = device.data_parallel_size
    for key, size in (("batch_size", batch_size), ("validation_batch_size", validation_batch_size)):
        if size % devices:
            raise ValueError(
                f"training_config.{key}: {size} given, expected a multiple of the {devices} devices that "
                f"share a batch; write for example {key}: {_round_up(size, devices)}"
            )
    if not isinstance(model, RegressionConfig | ExternalConfig) and model.max_sequence_length % TILE:
        raise ValueError(
            f"transformer_config.max_sequence_length: {model.max_sequence_length} given, expected a multiple of "
            f"{TILE}, as the device computes in tiles of {TILE} x {TILE}; write for example max_sequence_length: "
            f"{_round_up(model.max_sequence_length, TILE)}"
        )
    if device.tensor_axis is not None:
        _check_tensor_parallel(model, device)
    dropout = getattr(model, "dropout_prob", 0.0)
    if device.trace and dropout:
        raise ValueError(
            f"device_config.trace: true given with transformer_config.dropout_prob {dropout}, expected no dropout, "
            "as a recorded step repeats its random seeds; set dropout_prob: 0.0 or trace: false"
        )


def _check_tensor_parallel(model: AnyModelConfig, device: DeviceConfig) -> None:
    """Check that heads, and the width that they make up in whole tiles, divide over the tensor parallel devices.

    Vocabulary and hidden widths are padded on the mesh, so any size fits.
    """
    if not isinstance(model, (GPT2Config, LlamaConfig)):
        return
    devices = device.tensor_parallel_size
    heads = {"transformer_config.num_heads": model.num_heads}
    if isinstance(model, LlamaConfig):
        heads["transformer_config.num_groups"] = model.num_groups
    for field, count in heads.items():
        if count % devices:
            raise ValueError(
                f"{field}: {count} given, expected a multiple of the {devices} devices of the tensor parallel axis "
                f"(device_config.mesh_shape {list(device.mesh_shape)}), as each computes whole heads; "
                f"{_heads_fix_hint(field, count, devices)}"
            )
    if model.embedding_dim % (TILE * devices):
        raise ValueError(
            f"transformer_config.embedding_dim: {model.embedding_dim} given, expected a multiple of {TILE * devices}: "
            f"heads that make up whole tiles of {TILE} on each of the {devices} devices of tensor parallel; write for "
            f"example {_round_up(model.embedding_dim, TILE * devices)}, or use a shorter tensor parallel axis"
        )


def _heads_fix_hint(field: str, count: int, devices: int) -> str:
    smaller_axis = gcd(count, devices)  # of the same chips, so that the other axis has whole rows of them
    key = field.rpartition(".")[2]
    axis = (
        f"a tensor parallel axis of {smaller_axis} devices"
        if smaller_axis > 1
        else "enable_ddp instead of enable_tp"
    )
    return f"write for example {key}: {_round_up(count, devices)}, or use {axis}"


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
