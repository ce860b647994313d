"""Learning rate schedules: pure functions of the step, so that a resumed job needs no state for them."""

from __future__ import annotations

import math

from services.config.job_parts import ScheduleConfig

_LAST_FACTOR = 0.01
"""Of `warmup_linear`: the share of the learning rate that is left at the last step."""


def learning_rate(schedule: ScheduleConfig, base: float, step: int) -> float:
    """The learning rate of the update that makes version `step + 1` from version `step`.

    Args:
        schedule: its type, total and warm-up steps and, for warmup_cosine, the learning rate it ends at.
        base: the job's learning rate.
        step: updates before this one; beyond `total_steps` the rate stays where the schedule ended.
    """
    if schedule.type == "warmup_linear":
        return base * _warmup_linear_factor(schedule, step + 1)
    if schedule.type == "warmup_cosine":
        return _warmup_cosine(schedule, base, step)
    return base


def _warmup_linear_factor(schedule: ScheduleConfig, update: int) -> float:
    """tt-train's: up to 1 at the warm-up's last update, then down to 0.01; updates are counted from 1."""
    warmup = schedule.warmup_steps
    if update <= warmup:
        return update / warmup
    progress = min(1.0, (update - warmup) / (schedule.total_steps - warmup))
    return 1.0 - (1.0 - _LAST_FACTOR) * progress


def _warmup_cosine(schedule: ScheduleConfig, base: float, step: int) -> float:
    """nanoGPT's: up to `base` at the first update after the warm-up, then half a cosine down to `min_lr`."""
    warmup = schedule.warmup_steps
    if step < warmup:
        return base * (step + 1) / (warmup + 1)
    if step >= schedule.total_steps:
        return schedule.min_lr
    progress = (step - warmup) / (schedule.total_steps - warmup)
    return schedule.min_lr + 0.5 * (1.0 + math.cos(math.pi * progress)) * (base - schedule.min_lr)
