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
"""The old spelling, and what each key is called in the `optimizer` block."""

_FLAT_LEARNING_RATE = 3e-4
"""tt-train's default where there is no `optimizer` block; inside one it is that of the block's schema."""


def resolve_optimizer(training: TrainingSection) -> OptimizerConfig:
    """The update rule that `training_config` asks for.

    Raises:
        Refused: for a bad `optimizer` block, or a setting that is given in both spellings.
    """
    flat = {
        new: getattr(training, old) for old, new in _FLAT_KEYS.items() if getattr(training, old) is not None
    }
    if training.optimizer is None:
        return OptimizerConfig(**{"lr": _FLAT_LEARNING_RATE, **flat})
    for old, new in _FLAT_KEYS.items():
        if new in flat:
            raise Refused(
                f"training_config.{old}: {flat[new]} given beside training_config.optimizer, expected one spelling; "
                f"write it as training_config.optimizer.{new} alone"
            )
    where = dotted_name("training_config", "optimizer")
    if str(training.optimizer.get("type", "AdamW")).startswith("SGD"):
        sgd = parse_section(training.optimizer, where, SGDSection)
        return OptimizerConfig(type="sgd", **sgd.model_dump(exclude={"type"}))
    adamw = parse_section(training.optimizer, where, AdamWSection)
    variants = {"type", "amsgrad", "stochastic_rounding", "kahan_summation"}
    return OptimizerConfig(type="adamw", **adamw.model_dump(exclude=variants))


def resolve_schedule(training: TrainingSection, scheduler: SchedulerSection, steps: int) -> ScheduleConfig:
    """The schedule; without `warmup_steps` the warm-up is tt-train's tenth of the steps."""
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
    """A line for each setting of the schedule that the chosen type does not read."""
    read = {"identity": (), "warmup_linear": ("warmup_steps",), "warmup_cosine": ("warmup_steps", "min_lr")}
    return [
        f"scheduler_config.{key}: {getattr(scheduler, key)} is without effect with "
        f"training_config.scheduler_type {training.scheduler_type}"
        for key in ("warmup_steps", "min_lr")
        if getattr(scheduler, key) is not None and key not in read[training.scheduler_type]
    ]
