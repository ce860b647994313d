"""The settings of a job under the keys that users write, each with its origin."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from services.config.job import JobConfig
from services.config.models import CustomConfig, RegressionConfig
from services.config.origins import Origins

TT_TRAIN_DEFAULT = "tt-train's default"
DEFAULT = "Tiermesh's default"
"""Origin of a setting that only Tiermesh has and that was not given."""


@dataclass(frozen=True)
class Setting:
    """One setting of a job.

    Attributes:
        key: dotted key, as users write it.
        value: resolved value, as JSON has it.
        origin: file that has it, `command line`, or the kind of default.
    """

    key: str
    value: Any
    origin: str


_KEYS = {
    "name": ("training_config.project_name",),
    "steps": ("training_config.max_steps", "training_config.steps"),
    "batch_size": ("training_config.batch_size", "training_config.micro_batch_size"),
    "device.dtype": ("device_config.dtype", "training_config.mixed_precision"),
    "evaluate_every": ("training_config.eval_every",),
    "checkpoint_every": ("training_config.model_save_interval",),
    "num_workers": ("multihost_config.num_workers", "multihost_config.enabled"),
    "clip_grad_norm": ("training_config.clip_grad_norm_max_norm", "training_config.use_clip_grad_norm"),
    "pretrained": ("transformer_config.model_path",),
    "wire_dtype": ("training_config.wire_dtype",),
    "optimizer.type": ("training_config.optimizer.type", "training_config.use_no_op"),
    "optimizer.lr": (
        "training_config.optimizer.lr",
        "training_config.learning_rate",
        "scheduler_config.max_lr",
    ),
    "optimizer.epsilon": ("training_config.optimizer.epsilon", "training_config.eps"),
    "schedule.type": ("training_config.scheduler_type",),
    "schedule.total_steps": (
        "training_config.total_steps",
        "training_config.max_steps",
        "training_config.steps",
    ),
    "data.files": ("training_config.data_path",),
}
"""Keys that decide a field of the job, where they differ from the field's name. The first one names the setting."""

_SECTIONS = {
    "checkpoint": "training_config.checkpoint",
    "device": "device_config",
    "optimizer": "training_config.optimizer",
    "schedule": "scheduler_config",
    "data": "training_config",
    "sampling": "eval_config",
    "start_from": "training_config.start_from",
}
"""Section of the keys of a job's part."""

_FLAT_PARTS = ("optimizer",)
"""Parts whose settings old files have in `training_config` itself."""

_OWN = (
    "training_config.start_from",
    "training_config.validation_batches",
    "training_config.checkpoint",
    "training_config.wire_dtype",
    "training_config.exact",
    "training_config.min_workers",
    "training_config.on_non_finite",
    "training_config.verify_fraction",
    "training_config.on_faulty",
    "training_config.optimizer.weight_decay_on",
    "linear_regression_config",
    "mlp_config.activation",
    "mlp_config.bias",
    "mlp_config.training_samples",
    "mlp_config.noise",
    "device_config.backend",
    "device_config.dtype",
    "device_config.threads",
    "device_config.trace",
)
"""Settings, or sections of them, that tt-train does not have."""

_NO_SETTINGS = ("replacement", "data.tokenizer_sha256", "data.vocab_size", "device.axis_order")
"""Fields that follow from the content of files, or from other settings."""


def list_settings(config: JobConfig, origins: Origins) -> list[Setting]:
    """Return all settings of a job in the order of its fields.

    Args:
        config: the resolved job.
        origins: origins of the settings that were given.
    """
    return [
        Setting(keys[0], value, _find_origin(keys, origins))
        for field, value in _fields(config)
        if (keys := _keys_of(field, config))
    ]


def _fields(config: JobConfig) -> Iterator[tuple[str, Any]]:
    """Yield name and value of each field, with those of parts as `part.field`."""
    for name, value in config.model_dump(mode="json").items():
        if name == "pretrained" or (name == "data" and value is None):
            continue
        if isinstance(value, dict) and name not in _KEYS:
            yield from ((f"{name}.{inner}", part) for inner, part in value.items() if inner != "files")
        else:
            yield name, value
    if config.data is not None:
        paths = [file.path for file in config.data.files]
        yield "data.files", paths[0] if len(paths) == 1 else paths
    if config.pretrained is not None:
        yield "pretrained", config.pretrained.path


def _keys_of(field: str, config: JobConfig) -> tuple[str, ...]:
    """Return the keys that decide a field; none for what is no setting."""
    part, _, name = field.rpartition(".")
    if field in _NO_SETTINGS:
        return ()
    if field in _KEYS:
        return _KEYS[field]
    if part == "model":
        model = config.model
        own = isinstance(model, RegressionConfig)
        section = f"{model.model_type}_config" if own else "transformer_config"
        if name == "model_type":
            return "training_config.model_type", f"{section}.model_type"
        if name == "options" and isinstance(model, CustomConfig):
            return (section,)
        return (f"{section}.{name}",)
    section = _SECTIONS.get(part, "training_config")
    flat = (f"training_config.{name}",) if part in _FLAT_PARTS else ()
    return (f"{section}.{name}", *flat)


def _find_origin(keys: tuple[str, ...], origins: Origins) -> str:
    for key in keys:
        origin = origins.find(key)
        if origin is not None:
            return origin
    return (
        DEFAULT if any(keys[0] == own or keys[0].startswith(f"{own}.") for own in _OWN) else TT_TRAIN_DEFAULT
    )
