"""The settings of a job under the keys that users write, each with its origin."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from services.config.job import JobConfig
from services.config.models import CustomConfig, LlamaConfig, RegressionConfig
from services.config.origins import Origins
from services.config.refusals import format_value, yaml_keys
from services.config.resolve.optimizer import SCHEDULE_KEYS
from services.config.sections import AdamWSection, NoOpSection, Section, SGDSection

TT_TRAIN_DEFAULT = "tt-train's default"
DEFAULT = "Tiermesh's default"
"""Origin of a setting that only Tiermesh has and that was not given."""
DATA = "the job's data"
"""Origin of a vocabulary that follows from the corpus and its tokenizer."""


@dataclass(frozen=True)
class Setting:
    """One setting of a job.

    Attributes:
        key: dotted key, as users write it.
        value: resolved value, as JSON has it.
        origin: file that has it, `command line`, or the kind of default.
        written: what the origin says, for people, if that is another key or value; empty otherwise.
    """

    key: str
    value: Any
    origin: str
    written: str = ""


_PIPELINE = "multihost_config.pipeline_parallel_config"
_KEYS = {
    "name": ("training_config.project_name",),
    "steps": ("training_config.max_steps", "training_config.steps"),
    "batch_size": ("training_config.batch_size", "training_config.micro_batch_size"),
    "device.dtype": ("device_config.dtype", "training_config.mixed_precision"),
    "evaluate_every": ("training_config.eval_every",),
    "checkpoint_every": ("training_config.model_save_interval",),
    "num_workers": ("multihost_config.num_workers", "multihost_config.enabled"),
    "pipeline.blocks_per_stage": (f"{_PIPELINE}.blocks_per_rank", f"{_PIPELINE}.num_blocks"),
    "pipeline.ranges_per_stage": (f"{_PIPELINE}.ranges_per_rank",),
    "clip_grad_norm": ("training_config.clip_grad_norm_max_norm",),
    "pretrained": ("transformer_config.model_path",),
    "wire_dtype": ("training_config.wire_dtype",),
    "optimizer.type": ("training_config.optimizer.type", "training_config.use_no_op"),
    "optimizer.lr": (
        "training_config.optimizer.lr",
        "training_config.learning_rate",
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

_SPEEDRUN_KEYS = {
    "training_config.optimizer.lr": ("scheduler_config.max_lr",),
    "training_config.scheduler_type": ("training_config.scheduler_type", "scheduler_config"),
}
"""Keys that decide a setting before others do, if the schedule is speedrun."""

_SECTIONS = {
    "checkpoint": "training_config.checkpoint",
    "device": "device_config",
    "optimizer": "training_config.optimizer",
    "schedule": "scheduler_config",
    "data": "training_config",
    "sampling": "eval_config",
    "start_from": "training_config.start_from",
    "tracking": "training_config.tracking",
    "pipeline": _PIPELINE,
}
"""Section of the keys of a job's part."""

_FLAT_PARTS = ("optimizer",)
"""Parts whose settings old files have in `training_config` itself."""

_OWN = (
    f"{_PIPELINE}.ranges_per_rank",
    f"{_PIPELINE}.schedule",
    f"{_PIPELINE}.hide_transfers",
    "training_config.start_from",
    "training_config.vocabulary",
    "training_config.validation_batches",
    "training_config.checkpoint",
    "training_config.wire_dtype",
    "training_config.exact",
    "training_config.min_workers",
    "training_config.max_workers",
    "training_config.preemptible",
    "training_config.priority",
    "training_config.on_non_finite",
    "training_config.verify_fraction",
    "training_config.on_faulty",
    "training_config.tracking",
    "training_config.notify",
    "training_config.optimizer.weight_decay_on",
    "linear_regression_config",
    "transformer_config.bias",
    "transformer_config.activation",
    "scheduler_config.step_size",
    "scheduler_config.gamma",
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

_NO_SETTINGS = (
    "replacement",
    "evaluation_batches",
    "data.tokenizer_sha256",
    "data.vocab_size",
    "device.axis_order",
)
"""Fields that follow from the content of files, or from other settings."""


_OPTIMIZERS: dict[str, tuple[str, type[Section]]] = {
    "adamw": ("AdamW", AdamWSection),
    "sgd": ("SGD", SGDSection),
    "noop": ("NoOp", NoOpSection),
}
"""tt-train's name of each update rule, and the section with the keys that it reads."""


def optimizer_name(config: JobConfig) -> str:
    """Return tt-train's name of a job's update rule."""
    return _OPTIMIZERS[config.optimizer.type][0]


def list_settings(config: JobConfig, origins: Origins) -> list[Setting]:
    """Return the settings that a job reads, in the order of its fields.

    Args:
        config: the resolved job.
        origins: origins of the settings that were given.
    """
    return [
        _describe(keys, value, config, origins)
        for field, value in _fields(config)
        if (keys := _keys_of(field, config))
    ]


def _fields(config: JobConfig) -> Iterator[tuple[str, Any]]:
    """Yield name and value of each field that is read, with those of parts as `part.field`."""
    for name, value in config.model_dump(mode="json").items():
        if name in ("code", "pretrained", "clip_grad_norm") or (
            name in ("data", "pipeline") and value is None
        ):
            continue
        if isinstance(value, dict) and name not in _KEYS:
            for inner, part in value.items():
                if _is_read(name, inner, config):
                    yield f"{name}.{inner}", _effective(name, inner, part, config)
        else:
            yield name, value
    yield "use_clip_grad_norm", config.clip_grad_norm is not None
    if config.clip_grad_norm is not None:
        yield "clip_grad_norm", config.clip_grad_norm
    if config.data is not None:
        paths = [file.path for file in config.data.files]
        yield "data.files", paths[0] if len(paths) == 1 else paths
    if config.pretrained is not None:
        yield "pretrained", config.pretrained.path


def _is_read(part: str, name: str, config: JobConfig) -> bool:
    """Return whether a job reads a field of a part: update rules and schedules have fields of their own."""
    match part:
        case "optimizer":
            return name in yaml_keys(_OPTIMIZERS[config.optimizer.type][1])
        case "schedule" if name == "total_steps":
            return config.schedule.type not in ("identity", "step")
        case "schedule" if name.startswith("beta1"):
            return config.schedule.beta1_warmup_steps > 0
        case "schedule":
            return name == "type" or name in SCHEDULE_KEYS[config.schedule.type]
        case "pipeline" if name == "hide_transfers":
            return config.pipeline is not None and config.pipeline.schedule == "1f1b"
    return (part, name) != ("data", "files")


def _effective(part: str, name: str, value: Any, config: JobConfig) -> Any:
    """Return a field's value as users know it: by tt-train's name, or what stands for None."""
    match part, name:
        case "optimizer", "type":
            return optimizer_name(config)
        case "sampling", "top_k":
            return value or -1  # tt-train's way to say all tokens
        case "pipeline", "blocks_per_stage":
            return {str(stage): blocks for stage, blocks in enumerate(value)}
        case "model", "vocab_size":
            return config.vocabulary
        case "model", "intermediate_dim" if isinstance(config.model, LlamaConfig):
            return config.model.feed_forward_width
    return value


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


def _describe(keys: tuple[str, ...], value: Any, config: JobConfig, origins: Origins) -> Setting:
    """Return a setting with its origin: what was written, else what the value follows from."""
    name = keys[0]
    if config.schedule.type == "speedrun":
        keys = (*_SPEEDRUN_KEYS.get(name, ()), *keys)
    for key in keys:
        found = origins.find_written(key)
        if found is not None:
            origin, written = found
            text = (
                f"from {key}: {format_value(written)}" if key != name else f"written: {format_value(written)}"
            )
            return Setting(name, value, origin, "" if (key, written) == (name, value) else text)
    return Setting(name, value, _default_origin(name, config))


def _default_origin(key: str, config: JobConfig) -> str:
    section, _, name = key.partition(".")
    if section == "transformer_config" and config.pretrained is not None:
        return config.pretrained.path
    if name == "vocab_size":
        return DATA
    return DEFAULT if any(key == own or key.startswith(f"{own}.") for own in _OWN) else TT_TRAIN_DEFAULT
