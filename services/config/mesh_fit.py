"""Checks that model, batch and mesh fit each other, before a device is opened."""

from __future__ import annotations

from services.config.device import DeviceConfig
from services.config.models import GPT2Config, LlamaConfig, MLPConfig, RegressionConfig, TransformerConfig

TILE = 32
"""Rows and columns of the tiles that a device computes in."""


def check_mesh_fit(
    model: TransformerConfig | RegressionConfig,
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
    if not isinstance(model, RegressionConfig) and model.max_sequence_length % TILE:
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


def _check_tensor_parallel(model: TransformerConfig | RegressionConfig, device: DeviceConfig) -> None:
    """Check that heads, and widths in whole tiles, divide over the tensor parallel devices."""
    devices = device.tensor_parallel_size
    heads: dict[str, int] = {}
    widths: dict[str, int] = {}
    if isinstance(model, (GPT2Config, LlamaConfig)):
        heads["transformer_config.num_heads"] = model.num_heads
        widths["transformer_config.embedding_dim"] = model.embedding_dim
    if isinstance(model, LlamaConfig):
        heads["transformer_config.num_groups"] = model.num_groups
        widths["transformer_config.intermediate_dim"] = model.feed_forward_width
    if isinstance(model, MLPConfig):
        # Layers are split by outputs and by inputs in turn, so every other hidden width is divided.
        for index in range(0, len(model.hidden_features), 2):
            widths[f"mlp_config.hidden_features[{index}]"] = model.hidden_features[index]
    for field, count in heads.items():
        if count % devices:
            raise ValueError(
                f"{field}: {count} given, expected a multiple of the {devices} devices of the tensor parallel axis "
                f"(device_config.mesh_shape {list(device.mesh_shape)}), as each computes whole heads; "
                f"{_heads_fix_hint(field, count, devices)}"
            )
    for field, width in widths.items():
        if width % (TILE * devices):
            raise ValueError(
                f"{field}: {width} given, expected a multiple of {TILE * devices}: whole tiles of {TILE} on each "
                f"of the {devices} devices of tensor parallel; write for example "
                f"{_round_up(width, TILE * devices)}, or a mesh_shape with smaller_axis"
            )


def _heads_fix_hint(field: str, count: int, devices: int) -> str:
    smaller_axis = max(size for size in range(1, devices) if count % size == 0)
    key = field.rpartition(".")[2]
    axis = (
        f"a tensor parallel axis of {smaller_axis} devices"
        if smaller_axis > 1
        else "enable_ddp instead of enable_tp"
    )
    return f"write for example {key}: {_round_up(count, devices)}, or use {axis}"


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
