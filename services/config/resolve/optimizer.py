"""Optimizer and learning rate schedule, from either spelling of tt-train's settings."""

from __future__ import annotations

from typing import Any

from services.config.job_parts import OptimizerConfig, ScheduleConfig, ScheduleType
from services.config.refusals import format_value, yaml_keys
from services.config.sections import (
    FLAT_OPTIMIZER_KEYS,
    OPTIMIZERS,
    SchedulerSection,
    SGDSection,
    TrainingSection,
    optimizer_keys,
    parse_section,
)
from services.config.spelling import nearest_name
from services.errors import Refused

_FIELD = "training_config.optimizer"
_FLAT_LEARNING_RATE = 3e-4
"""tt-train's default without an `optimizer` block; the block has a default of its own."""
_NO_OP = OptimizerConfig(type="noop", lr=0.0, weight_decay=0.0)
_VARIANTS = {"MorehAdamW": "AdamW", "AdamWComposite": "AdamW", "SGDComposite": "SGD"}
"""Types that tt-train has for their rounding of bfloat16, and the type that they are here."""
_ROUNDING = {"stochastic_rounding", "kahan_summation"}
"""Settings of that rounding."""
_FLAT_SGD = ("momentum", "dampening", "nesterov")
_FLAT_ADAMW = ("beta1", "beta2", "eps", "use_moreh_adamw", "use_kahan_summation")

_BETA1_KEYS = ("beta1_start", "beta1_end", "beta1_warmup_steps")
_SPEEDRUN_KEYS = ("max_lr", "hold_steps", *_BETA1_KEYS)
"""Keys of `scheduler_config` that only speedrun reads."""
SCHEDULE_KEYS: dict[ScheduleType, tuple[str, ...]] = {
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
    if training.optimizer is None:
        optimizer, given = _flat_optimizer(training, notices)
    else:
        optimizer, given = _optimizer_of_block(training, training.optimizer, notices)
    peak = scheduler.max_lr if schedule_type(training, scheduler) == "speedrun" else None
    if optimizer.type == "noop" or peak is None or peak == optimizer.lr:
        return optimizer
    notices.extend(
        f"training_config.{key}: {value} is without effect: the peak is scheduler_config.max_lr, {peak}"
        for key, value in given.items()
        if key in ("learning_rate", "optimizer.lr")
    )
    return optimizer.model_copy(update={"lr": peak})


def _flat_optimizer(training: TrainingSection, notices: list[str]) -> tuple[OptimizerConfig, dict[str, Any]]:
    """Return the update rule of settings in `training_config` itself, and those settings."""
    flat = {key: value for key in FLAT_OPTIMIZER_KEYS if (value := getattr(training, key)) is not None}
    if training.use_no_op:
        notices.extend(
            f"training_config.{key}: {format_value(value)} is without effect: NoOp changes no weights"
            for key, value in flat.items()
        )
        return _NO_OP, {}
    settings: dict[str, Any] = {"lr": _FLAT_LEARNING_RATE}
    sgd = next((key for key in _FLAT_SGD if key in flat), None)
    if sgd is not None:
        adamw = next((key for key in _FLAT_ADAMW if getattr(training, key)), None)
        if adamw is not None:
            raise Refused(
                f"training_config.{sgd}: {format_value(flat[sgd])}, a setting of SGD, given together with {adamw}, one "
                "of AdamW, expected settings of one optimizer; remove those of the other"
            )
        settings |= {"type": "sgd", "weight_decay": 0.0}
    settings |= {FLAT_OPTIMIZER_KEYS[key]: value for key, value in flat.items()}
    return OptimizerConfig(**settings), flat


def _optimizer_of_block(
    training: TrainingSection, block: dict[Any, Any], notices: list[str]
) -> tuple[OptimizerConfig, dict[str, Any]]:
    """Return the update rule of an `optimizer` block, and its settings by their names in `training_config`.

    Settings of another type have no effect, as in tt-train, so that `optimizer.type=SGD` may change the type alone.
    """
    for old, new in FLAT_OPTIMIZER_KEYS.items():
        if (value := getattr(training, old)) is not None:
            raise Refused(
                f"training_config.{old}: {format_value(value)} given together with {_FIELD}, expected one "
                f"spelling; write it as {_FIELD}.{new} alone"
            )
        if old != new and old in block:
            raise Refused(
                f"{_FIELD}.{old}: {format_value(block[old])} given, expected the name {new} inside the block; rename it"
            )
    kind = block.get("type", "AdamW")
    if not isinstance(kind, str) or kind not in OPTIMIZERS:
        near = nearest_name(kind, OPTIMIZERS) if isinstance(kind, str) else None
        raise Refused(
            f"{_FIELD}.type: {format_value(kind)} given, expected one of: {', '.join(OPTIMIZERS)}; "
            + (f"did you mean {near}?" if near else "write for example type: AdamW")
        )
    if training.use_no_op:
        notices.append(
            f"{_FIELD}: {format_value(block)} is without effect: training_config.use_no_op is true, and NoOp changes "
            "no weights"
        )
        return _NO_OP, {}
    if kind in _VARIANTS:
        notices.append(
            f'{_FIELD}.type: "{kind}" is {_VARIANTS[kind]} here, as weights and state are float32 for all types'
        )
    schema = OPTIMIZERS[kind]
    others = optimizer_keys() - set(yaml_keys(schema))
    notices.extend(
        f"{_FIELD}.{key}: {format_value(value)} is without effect with type {kind}"
        for key, value in block.items()
        if key in others - _ROUNDING  # `unsupported` reports those of any type
    )
    section = parse_section({key: value for key, value in block.items() if key not in others}, _FIELD, schema)
    given = {f"optimizer.{key}": value for key, value in block.items() if key not in others}
    settings = section.model_dump(exclude={"type", *_ROUNDING})
    if kind == "NoOp":
        return _NO_OP, given
    return OptimizerConfig(type="sgd" if isinstance(section, SGDSection) else "adamw", **settings), given


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
    for key in SCHEDULE_KEYS[kind]:
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
        if key not in SCHEDULE_KEYS[kind]:
            lines.append(
                f"scheduler_config.{key}: {value} is without effect with training_config.scheduler_type {kind}"
            )
        elif key in _BETA1_KEYS and optimizer.type != "adamw":
            lines.append(f"scheduler_config.{key}: {value} is without effect: only AdamW has a beta1")
        elif key in _BETA1_KEYS and not scheduler.beta1_warmup_steps:
            lines.append(f"scheduler_config.{key}: {value} is without effect with beta1_warmup_steps 0")
    return lines
