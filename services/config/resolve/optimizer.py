"""Optimizer and learning rate schedule, from either spelling of tt-train's settings."""

from __future__ import annotations

from services.config.job_parts import OptimizerConfig, ScheduleConfig
from services.config.refusals import dotted_name
from services.config.sections import (
    AdamWSection,
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
    "weight_decay": "weight_decay",
    "weight_decay_on": "weight_decay_on",
}
"""Key in the `optimizer` block by its old spelling in `training_config`."""

_FLAT_LEARNING_RATE = 3e-4
"""tt-train's default without an `optimizer` block; the block has a default of its own."""


def resolve_optimizer(training: TrainingSection) -> OptimizerConfig:
    """Return the update rule that `training_config` describes.

    Raises:
        Refused: the `optimizer` block is bad, or a setting is given in both spellings.
    """
    flat = {
        new: getattr(training, old) for old, new in _FLAT_KEYS.items() if getattr(training, old) is not None
    }
    if training.optimizer is None:
        return OptimizerConfig(**{"lr": _FLAT_LEARNING_RATE, **flat})
    for old, new in _FLAT_KEYS.items():
        if new in flat:
            raise Refused(
                f"training_config.{old}: {flat[new]} given together with training_config.optimizer, expected one "
                f"spelling; write it as training_config.optimizer.{new} alone"
            )
    where = dotted_name("training_config", "optimizer")
    if str(training.optimizer.get("type", "AdamW")).startswith("SGD"):
        sgd = parse_section(training.optimizer, where, SGDSection)
        return OptimizerConfig(type="sgd", **sgd.model_dump(exclude={"type"}))
    adamw = parse_section(training.optimizer, where, AdamWSection)
    variants = {"type", "amsgrad", "stochastic_rounding", "kahan_summation"}
    return OptimizerConfig(type="adamw", **adamw.model_dump(exclude=variants))


def resolve_schedule(training: TrainingSection, scheduler: SchedulerSection, steps: int) -> ScheduleConfig:
    """Return the schedule. Without `warmup_steps` the warm-up is tt-train's tenth of the steps."""
    total = training.total_steps or steps
    if training.scheduler_type == "identity":
        return ScheduleConfig(total_steps=total)
    warmup = int(0.1 * total) if scheduler.warmup_steps is None else scheduler.warmup_steps
    cosine = training.scheduler_type == "warmup_cosine"
    return ScheduleConfig(
        type=training.scheduler_type,
        total_steps=total,
        warmup_steps=warmup,
        min_lr=(scheduler.min_lr or 0.0) if cosine else 0.0,
    )


def schedule_notices(training: TrainingSection, scheduler: SchedulerSection) -> list[str]:
    """Return a line for each setting that the chosen type of schedule does not read."""
    read = {"identity": (), "warmup_linear": ("warmup_steps",), "warmup_cosine": ("warmup_steps", "min_lr")}
    return [
        f"scheduler_config.{key}: {getattr(scheduler, key)} is without effect with "
        f"training_config.scheduler_type {training.scheduler_type}"
        for key in ("warmup_steps", "min_lr")
        if getattr(scheduler, key) is not None and key not in read[training.scheduler_type]
    ]
