"""Optimizer and learning rate schedule, from either spelling of tt-train's settings."""

from __future__ import annotations

from typing import Any

from services.config.job_parts import OptimizerConfig, ScheduleConfig, ScheduleType
from services.config.refusals import dotted_name
from services.config.sections import (
    AdamWSection,
    NoOpSection,
    SchedulerSection,
    SGDSection,
    TrainingSection,
    parse_section,
)
from services.errors import Refused

_FLAT_KEYS = {
    "learning_rate": "lr",
    "beta1": "beta1",
    "beta2": "beta2",
    "eps": "epsilon",
    "momentum": "momentum",
    "weight_decay": "weight_decay",
    "weight_decay_on": "weight_decay_on",
}
"""Key in the `optimizer` block by its old spelling in `training_config`."""

_FLAT_LEARNING_RATE = 3e-4
"""tt-train's default without an `optimizer` block; the block has a default of its own."""
_NO_OP = OptimizerConfig(type="noop", lr=0.0, weight_decay=0.0)

_BETA1_KEYS = ("beta1_start", "beta1_end", "beta1_warmup_steps")
_SPEEDRUN_KEYS = ("max_lr", "hold_steps", *_BETA1_KEYS)
"""Keys of `scheduler_config` that only speedrun reads."""
_READ_KEYS: dict[ScheduleType, tuple[str, ...]] = {
    "identity": (),
    "warmup_linear": ("warmup_steps",),
    "warmup_cosine": ("warmup_steps", "min_lr"),
    "speedrun": ("warmup_steps", "min_lr", *_SPEEDRUN_KEYS),
    "step": ("step_size", "gamma"),
}
"""Keys of `scheduler_config` that a type of schedule reads."""
_SPEEDRUN_DEFAULTS = {"warmup_steps": 100, "beta1_start": 0.85, "beta1_end": 0.95}
"""tt-train's defaults where they differ from zero."""


def resolve_optimizer(
    training: TrainingSection, scheduler: SchedulerSection, notices: list[str]
) -> OptimizerConfig:
    """Return the update rule that a config describes; its `lr` is the peak of the schedule.

    Args:
        training: `training_config`.
        scheduler: `scheduler_config`.
        notices: list to which a line is added for each setting without effect.

    Raises:
        Refused: the `optimizer` block is bad, or a setting is given in both spellings.
    """
    optimizer, given = _optimizer(training)
    if optimizer.type == "noop":
        notices.extend(
            f"training_config.{key}: {value} is without effect: NoOp changes no weights"
            for key, value in given
        )
        return optimizer
    peak = scheduler.max_lr if schedule_type(training, scheduler) == "speedrun" else None
    if peak is None or peak == optimizer.lr:
        return optimizer
    notices.extend(
        f"training_config.{key}: {value} is without effect: the peak is scheduler_config.max_lr, {peak}"
        for key, value in given
        if key in ("learning_rate", "optimizer.lr")
    )
    return optimizer.model_copy(update={"lr": peak})


def _optimizer(training: TrainingSection) -> tuple[OptimizerConfig, list[tuple[str, Any]]]:
    """Return the update rule, and the settings that were given for it, by their names in `training_config`."""
    flat = {old: getattr(training, old) for old in _FLAT_KEYS if getattr(training, old) is not None}
    if training.optimizer is None:
        if training.use_no_op:
            return _NO_OP, list(flat.items())
        renamed = {_FLAT_KEYS[old]: value for old, value in flat.items()}
        defaults = {"type": "sgd", "weight_decay": 0.0} if "momentum" in flat else {}
        return OptimizerConfig(**{"lr": _FLAT_LEARNING_RATE, **defaults, **renamed}), list(flat.items())
    for old, value in flat.items():
        raise Refused(
            f"training_config.{old}: {value} given together with training_config.optimizer, expected one "
            f"spelling; write it as training_config.optimizer.{_FLAT_KEYS[old]} alone"
        )
    given = [(f"optimizer.{key}", value) for key, value in training.optimizer.items() if key != "type"]
    where = dotted_name("training_config", "optimizer")
    kind = str(training.optimizer.get("type", "AdamW"))
    if kind == "NoOp" or training.use_no_op:
        parse_section(training.optimizer, where, NoOpSection)
        return _NO_OP, given
    if kind.startswith("SGD"):
        sgd = parse_section(training.optimizer, where, SGDSection)
        return OptimizerConfig(type="sgd", **sgd.model_dump(exclude={"type"})), given
    adamw = parse_section(training.optimizer, where, AdamWSection)
    variants = {"type", "stochastic_rounding", "kahan_summation"}
    return OptimizerConfig(type="adamw", **adamw.model_dump(exclude=variants)), given


def schedule_type(training: TrainingSection, scheduler: SchedulerSection) -> ScheduleType:
    """Return the type of schedule. A `scheduler_config` that only tt-train's SpeedrunScheduler reads chooses that."""
    if training.scheduler_type is not None:
        return training.scheduler_type
    return "speedrun" if any(getattr(scheduler, key) is not None for key in _SPEEDRUN_KEYS) else "identity"


def resolve_schedule(
    training: TrainingSection, scheduler: SchedulerSection, optimizer: OptimizerConfig, steps: int
) -> ScheduleConfig:
    """Return the schedule. The warm-up of warmup_linear and warmup_cosine is tt-train's tenth of the steps by default.

    Args:
        training: `training_config`.
        scheduler: `scheduler_config`.
        optimizer: the update rule; only AdamW has a beta1.
        steps: number of steps of the job.
    """
    kind = schedule_type(training, scheduler)
    total = training.total_steps or steps
    defaults = _SPEEDRUN_DEFAULTS if kind == "speedrun" else {"warmup_steps": int(0.1 * total)}
    settings: dict[str, Any] = {}
    for key in _READ_KEYS[kind]:
        value = getattr(scheduler, key)
        settings[key] = defaults.get(key) if value is None else value
    settings.pop("max_lr", None)  # the optimizer's lr is the peak
    if kind == "speedrun" and (optimizer.type != "adamw" or not settings["beta1_warmup_steps"]):
        for key in _BETA1_KEYS:
            del settings[key]
    given = {key: value for key, value in settings.items() if value is not None}
    return ScheduleConfig(type=kind, total_steps=total, **given)


def schedule_notices(
    training: TrainingSection, scheduler: SchedulerSection, optimizer: OptimizerConfig
) -> list[str]:
    """Return a line for each setting that the schedule does not read, and one if its keys alone chose its type."""
    kind = schedule_type(training, scheduler)
    lines = []
    if kind == "speedrun" and training.scheduler_type is None:
        lines.append(
            "scheduler_config: given without training_config.scheduler_type, so the schedule is speedrun, as in "
            "tt-train's fine-tuning example"
        )
    for key in SchedulerSection.model_fields:
        value = getattr(scheduler, key)
        if value is None:
            continue
        if key not in _READ_KEYS[kind]:
            lines.append(
                f"scheduler_config.{key}: {value} is without effect with training_config.scheduler_type {kind}"
            )
        elif key in _BETA1_KEYS and optimizer.type != "adamw":
            lines.append(f"scheduler_config.{key}: {value} is without effect: only AdamW has a beta1")
        elif key in _BETA1_KEYS and not scheduler.beta1_warmup_steps:
            lines.append(f"scheduler_config.{key}: {value} is without effect with beta1_warmup_steps 0")
    return lines
