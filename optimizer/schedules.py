"""Learning rate schedules: pure functions of the step, so that a resumed job needs no schedule state."""

from __future__ import annotations

import math

from services.config.job_parts import ScheduleConfig

_WARMUP_LINEAR_LAST_FACTOR = 0.01
"""Share of the learning rate that `warmup_linear` ends at."""


def learning_rate(schedule: ScheduleConfig, base: float, step: int) -> float:
    """Return the learning rate of the update from version `step` to version `step + 1`.

    Args:
        schedule: type, total steps and warm-up steps; for warmup_cosine also the learning rate at its end.
        base: learning rate of the job.
        step: number of earlier updates; beyond `total_steps` the rate keeps its last value.
    """
    if schedule.type == "warmup_linear":
        return base * _warmup_linear_factor(schedule, step + 1)
    if schedule.type == "warmup_cosine":
        return _warmup_cosine(schedule, base, step)
    return base


def _warmup_linear_factor(schedule: ScheduleConfig, update: int) -> float:
    """Return tt-train's factor: linear to 1 at the last warm-up update, then linear to 0.01.

    Args:
        schedule: total and warm-up steps.
        update: number of the update, from 1.
    """
    warmup = schedule.warmup_steps
    if update <= warmup:
        return update / warmup
    progress = min(1.0, (update - warmup) / (schedule.total_steps - warmup))
    return 1.0 - (1.0 - _WARMUP_LINEAR_LAST_FACTOR) * progress


def _warmup_cosine(schedule: ScheduleConfig, base: float, step: int) -> float:
    """Return the rate of nanoGPT's `get_lr`: linear to `base`, then half a cosine down to `min_lr`."""
    warmup = schedule.warmup_steps
    if step < warmup:
        return base * (step + 1) / (warmup + 1)
    if step >= schedule.total_steps:
        return schedule.min_lr
    progress = (step - warmup) / (schedule.total_steps - warmup)
    return schedule.min_lr + 0.5 * (1.0 + math.cos(math.pi * progress)) * (base - schedule.min_lr)
